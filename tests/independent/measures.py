"""Ten headline measurements, each from its definition, with the tolerance that was fixed before.

A row has what is measured, the ``place`` of the book's own numbers (a file and a path in it; of a
notebook a cell, whose numbers are counted in its output; of an explorer's file the bytes), which of
them (``at``), the definition, the numbers found here, and how far the book's may lie from them.
"""

import numpy as np
import torch

from tests.independent.models import (
    MiniLM,
    SmolLM2,
    middling,
    one_sentence_each,
    short_sentences,
    speeches,
)

DATA, SEED = "book/data/", 34
LOSS, SHARE = 5e-4, 2e-4  # nats, and shares of 1: float32 sums in another order


def row(name, place, definition, theirs, tolerance, at=None):
    theirs = [float(f"{float(x):.6g}") for x in np.ravel(theirs)]
    entry = {"name": name, "place": place, "definition": definition, "tolerance": tolerance}
    return {**entry, **({} if at is None else {"at": at}), "theirs": theirs}


def followers(ids):
    """Where an induction head looks: right behind earlier occurrences of the query's token."""
    found = torch.zeros(len(ids), len(ids))
    found[:, 1:] = (ids[:, None] == ids[None, :-1]).float()
    return found.tril()


def losses_of_smollm2(model):
    ids = model.windows("validation", 24, 101)
    means = torch.cat([model.run(batch).mean(1) for batch in ids.split(4)])
    told = "mean of minus log-probability of tokens 1 to 100 of each of 24 addresses"
    yield row("Loss of SmolLM2", DATA + "gates.json#smollm2/whole/before", told, means, LOSS)


def where_heads_look(model):
    """Previous token and induction (Olsson et al., 2022), first token (Xiao et al., 2024)."""
    total, counts = torch.zeros(3, model.layers, model.heads), torch.zeros(3)
    back, first = torch.diag(torch.ones(100), -1), torch.zeros(101, 101)
    first[1:, 0] = 1
    for text in model.windows("validation", 24, 101):
        targets = torch.stack([back, followers(text), first])
        counts += targets.any(-1).sum(-1)
        for layer, (_, weights) in enumerate(model.streams(text[None])):
            total[:, layer] += torch.einsum("nij,mij->mn", weights[0], targets)
    place = DATA + "heads-smollm2.csv#"
    told = "mean weight on the target over the queries that see one, 24 addresses of 101 tokens"
    for number, name in enumerate(("previous", "induction", "first")):
        title = f"Scores for {name} token, SmolLM2" if name != "induction" else "Induction scores"
        yield row(title, place + name, told, total[number] / counts[number], SHARE)

    rng, found = np.random.default_rng(SEED), torch.zeros(model.layers, model.heads)
    for _ in range(8):
        once = rng.permutation(np.arange(1000, 40_000))[:50]
        text = torch.tensor(np.concatenate([[0], once, once]))
        for layer, (_, weights) in enumerate(model.streams(text[None])):
            found[layer] += weights[0, :, torch.arange(51, 101), torch.arange(2, 52)].sum(-1)
    told = "the same on 50 random tokens said twice; eight other draws than the book's four"
    name = "Induction scores on random tokens"
    yield row(name, place + "induction on repeats", told, found / 400, 0.08)


def where_minilm_looks(model):
    total, special, count = torch.zeros(2, 6, 12), 0, 0
    for text in one_sentence_each(24):
        _, weights = model.run(model.encode(text))
        size = weights.shape[-1]
        total[0] += torch.diagonal(weights, -1, -2, -1).sum(-1)
        total[1] += weights[..., [0, -1]].sum((-1, -2))
        count, special = count + size - 1, special + size
    place = DATA + "heads-minilm.csv#"
    told = "mean weight on the target over the queries that see one, 24 sentences"
    yield row(
        "Scores for previous token, MiniLM", place + "previous", told, total[0] / count, SHARE
    )
    yield row("Weight on [CLS] and [SEP]", place + "special", told, total[1] / special, SHARE)


def ablation(model, minilm):
    """Zero-ablation, one head at a time: Michel et al., 2019."""
    rng = np.random.default_rng(SEED)
    ids, heads = model.windows("train", 24, 101)[:4], rng.integers(0, 9, model.layers)
    whole, found = model.run(ids).mean(), []
    for layer, (before, _) in enumerate(model.streams(ids)):
        gates = torch.ones(model.layers, model.heads)
        gates[layer, heads[layer]] = 0
        found.append(model.run(ids, gates, before, layer).mean() - whole)
    told = "rise of the loss on 4 addresses with the head's output set to 0; one head of each layer"
    at = [9 * layer + int(head) for layer, head in enumerate(heads)]
    place = DATA + "heads.json#importance/ablation"
    yield row("Zero-ablation, SmolLM2", place, told, found, LOSS, at)

    texts = [minilm.encode(middling(text)[3]) for text in speeches("train", 24)]
    at = [int(12 * layer + head) for layer in range(6) for head in rng.permutation(12)[:2]]
    found = np.zeros(len(at))
    for text in texts:
        base, _ = minilm.run(text)
        for number, place in enumerate(at):
            gates = torch.ones(72)
            gates[place] = 0
            without, _ = minilm.run(text, gates.reshape(6, 12))
            found[number] += 1 - float(base.double() @ without.double())
    told = "1 minus the cosine of a sentence's embedding with that of the whole model, 24 sentences"
    place = DATA + "pruning.json#minilm/importance/ablation"
    yield row("Zero-ablation, MiniLM", place, told, found / len(texts), 1e-5, at)


def importance(model):
    """The size of the loss's gradient by each head's gate, in the mean: Michel et al., 2019."""
    found = torch.zeros(model.layers, model.heads)
    for text in model.windows("train", 24, 101):
        gates = torch.ones(model.layers, model.heads, requires_grad=True)
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(model.run(text[None], gates).mean(), gates)
        found += gradient.abs() / 24
    return found


def order_and_pruning(model):
    found = importance(model)
    told = "mean of the size of dL/dgate over 24 addresses of 101 tokens, by autograd"
    place = DATA + "heads.json#importance/gate gradient"
    yield row("Importance of heads", place, told, found, LOSS)
    order = found.flatten().argsort(stable=True)
    told = "the place of each head when they are sorted by that importance"
    yield row("Order of importance", f"{place}#ranks", told, order.argsort(), 3)

    ids, rows = model.windows("validation", 24, 33, start=2000), []
    for count in (0, 14, 27, 54, 81, 108, 135):
        gates = torch.ones(model.layers * model.heads)
        gates[order[:count]] = 0
        rows.append(model.run(ids, gates.reshape(model.layers, model.heads)).mean(1))
    told = "loss on 24 passages of 33 tokens"
    yield row("Nothing pruned", DATA + "pruning.json#smollm2/whole/0", told, rows[0], LOSS)
    told = "the same without the 5%, 10%, 20%, 30%, 40%, 50% of heads that matter least"
    place = DATA + "pruning.json#smollm2/curves/gate gradient/scores/*/0"
    yield row("The pruning table", place, told, torch.stack(rows[1:]), 1e-3)


def sinks(model):
    """The weight on the first position: Xiao et al., 2024."""
    ids = model.windows("validation", 12, 130)[:, :129]
    masses = torch.stack([w[:, :, 8:, 0].mean((1, 2)) for _, w in model.streams(ids)], 1)
    place = DATA + "sinks.json#mass/speeches, special first/"
    told = "mean weight of queries 8 to 128 on position 0; 12 addresses, by layer"
    yield row("Shares of the sinks", place + "by layer", told, masses, SHARE)
    yield row("The sink's share of each text", place + "by text/*/0", told, masses.mean(1), SHARE)


def conversion(model):
    """Multi-head to grouped-query: the mean (Ainslie et al., 2023), the first head, the best fit.

    The fit is that of Eckart and Young, 1936: the leading left singular vectors of the products
    W_K W_Q of a group side by side, and of W_V W_O, where queries' and values' biases are rows.
    """
    names = ("query", "key", "value")
    texts = [model.encode(text) for text in short_sentences()]
    base = [model.run(text)[0] for text in texts]

    def leading(products):  # (H, D); eigenvalues come in ascending order
        return torch.linalg.eigh(products @ products.T)[1][:, -32:].T

    def grouped(way, count):
        tensors = dict(model.tensors)
        for layer in range(6):
            at = f"encoder.layer.{layer}.attention."
            w = {n: tensors[f"{at}self.{n}.weight"].unflatten(0, (12, 32)) for n in names}  # N H D
            b = {n: tensors[f"{at}self.{n}.bias"].unflatten(0, (12, 32)) for n in names}
            q, k, v = (torch.cat([w[n], b[n][..., None]], -1).double() for n in names)
            out = tensors[at + "output.dense.weight"].T.unflatten(0, (12, 32)).double()  # N C D
            k[..., -1] = 0 if way == "fit" else k[..., -1]  # no weight depends on it
            for group in torch.arange(12).chunk(count):
                if way == "mean":
                    k[group], v[group] = (z[group].mean(0, keepdim=True) for z in (k, v))
                elif way == "pick":
                    k[group], v[group] = (z[group[:1]] for z in (k, v))
                else:
                    shared = leading(torch.cat([k[h, :, :-1].T @ q[h] for h in group], 1))
                    for h in group:
                        q[h] = shared @ k[h, :, :-1].T @ q[h]
                    k[group] = torch.cat([shared, torch.zeros(32, 1)], 1)
                    shared = leading(torch.cat([v[h].T @ out[h] for h in group], 1))
                    for h in group:
                        out[h] = shared @ v[h].T @ out[h]
                    v[group] = shared
            for n, z in zip(names, (q, k, v), strict=True):
                z = z.float().flatten(0, 1)
                tensors[f"{at}self.{n}.weight"], tensors[f"{at}self.{n}.bias"] = z[:, :-1], z[:, -1]
            tensors[at + "output.dense.weight"] = out.float().flatten(0, 1).T
        after = [model.run(text, tensors=tensors)[0] for text in texts]
        return (torch.stack(base) * torch.stack(after)).sum(-1).mean()

    found = [grouped(way, count) for way in ("fit", "mean", "pick") for count in (6, 3, 1)]
    told = "mean cosine of the embeddings with 6, 3, 1 KV heads and before; fit, mean, first head"
    place = "book/further-inference.ipynb#convert"
    yield row("MiniLM converted to GQA", place, told, found, 6e-3, list(range(9)))


# Layers, KV heads, width of a head, layers with a window and its width: Brown et al., 2020; Touvron
# et al., 2023a, b; Grattafiori et al., 2024; Almazrouei et al., 2023; Jiang et al., 2023; Gemma
# Team, 2024, 2025; OpenAI, 2025. SmolLM2's are in its file. DeepSeek-V3 (DeepSeek-AI, 2024) keeps a
# latent of 512 and a key of 64, as many elements as a key and a value of 288.
PUBLISHED = {
    "GPT-3 175B": (96, 96, 128, 0, 0), "Llama 7B": (32, 32, 128, 0, 0),
    "Llama 3 8B": (32, 8, 128, 0, 0), "Llama 2 70B": (80, 8, 128, 0, 0),
    "Falcon 7B": (32, 1, 64, 0, 0), "SmolLM2 135M": None,
    "Mistral 7B": (32, 8, 128, 32, 4096), "Gemma 2 27B": (46, 16, 128, 23, 4096),
    "Gemma 3 1B": (26, 1, 256, 22, 512), "gpt-oss-120b": (36, 8, 64, 18, 128),
    "DeepSeek-V3": (61, 1, 288, 0, 0),
}  # fmt: skip


def cache_sizes(model):
    """Two arrays, for keys and for values, of 2 bytes a number: Shazeer, 2019."""
    found = []
    of_file = (model.layers, model.kv_heads, model.size, 0, 0)
    for sizes in PUBLISHED.values():
        layers, heads, width, local, window = sizes or of_file
        for length in (4096, 32768):
            kept = [min(length, window)] * local + [length] * (layers - local)
            found.append(sum(2 * 2 * heads * width * positions for positions in kept) / 2**20)
    told = "MiB of keys and values in 2 bytes each, of eleven models at 4,096 and 32,768 positions"
    yield row("Sizes of KV caches", "book/cost.ipynb#memory-table", told, found, 0.5)


def explorer(models, sentences):
    """100 weights of each of the explorer's maps of twelve sentences, drawn here."""
    rng = np.random.default_rng(SEED)
    for name, model in models.items():
        found, at, losses = [], {}, []
        for key, text in sentences.items():
            if name == "smollm2":
                ids = torch.tensor(model.encode(text))
                weights = torch.cat([w for _, w in model.streams(ids[None])])
                weights = weights[:, :, *np.tril_indices(len(ids))]
                losses += model.run(ids[None])[0].tolist()
            else:
                weights = model.run(model.encode(text))[1]
            at[key] = sorted(rng.permutation(weights.numel())[:100].tolist())
            found.append(weights.flatten()[at[key]])
        told = "attention weights, which the page keeps in a byte each"
        place = f"book/_static/explorer/{name}-*.js"
        yield row(f"Maps of the explorer, {name}", place, told, torch.stack(found), 6e-3, at)
        if losses:
            told = "minus log-probability of each token of the sentences"
            place = DATA + "explorer.json#sentences/*/smollm2/losses"
            # The book keeps four digits of them.
            yield row("Losses of the explorer", place, told, losses, 6e-3)


def gradient_by_hand():
    """The gradient of the queries as Dao et al., 2022, appendix B.2, write it."""

    def backward(q, k, v, d_out, average=True):
        scale = q.shape[-1] ** -0.5
        e = np.exp(scale * q @ np.swapaxes(k, -1, -2))
        a = e / e.sum(-1, keepdims=True)
        d_a = d_out @ np.swapaxes(v, -1, -2)
        d_s = a * (d_a - average * (a * d_a).sum(-1, keepdims=True))
        return a, scale * d_s @ k

    found, key, value = [[], [], []], np.array([[1.0], [0.0]]), np.array([[8.0], [4.0]])
    for odds in (1, 3, 9, 99, 999):
        query = np.log([[float(odds)]])
        a, d_q = backward(query, key, value, np.ones((1, 1)))
        # -log of the second weight: the output is that weight where the values are 0 and 1.
        _, direct = backward(query, key, np.array([[0.0], [1.0]]), -1 / a[:, 1:])
        for column, number in zip(found, (a[0, 0], d_q[0, 0], direct[0, 0]), strict=True):
            column.append(number)
    told = "one query and two keys: the first weight, dQ of the output, dQ of the cross-entropy"
    at = "book/gradients.ipynb#"
    yield row("A gradient by hand", at + "one-hot", told, np.transpose(found), 6e-4)

    # The page's layer: 5 heads of 2 (keys) and 7 (values), width 11, with biases; drawn as there.
    rng, (t, n, h, c, d) = np.random.default_rng(5), (3, 5, 2, 7, 11)
    shapes = ((d, n, h), (d, n, h), (d, n, c), (n, c, d), (n, h), (n, h), (n, c), (d,))
    w_q, w_k, w_v, w_o, b_q, b_k, b_v, b_o = (rng.normal(size=s) / 2 for s in shapes)
    x, above = rng.normal(size=(t, d)), rng.normal(size=(t, d))
    way = rng.normal(size=w_q.shape)
    way /= np.linalg.norm(way)

    def project(weight, bias):
        return np.einsum("tb,bnh->nth", x, weight) + bias[:, None]

    q, k, v = project(w_q, b_q), project(w_k, b_k), project(w_v, b_v)
    slopes = []
    for average in (True, False):
        d_q = backward(q, k, v, np.einsum("td,ncd->ntc", above, w_o), average)[1]
        slopes.append(np.vdot(np.einsum("tb,nth->bnh", x, d_q), way))

    tensors = (x, above, w_q, w_o, b_q, b_o, k, v, way)
    x, above, w_q, w_o, b_q, b_o, k, v, way = map(torch.tensor, tensors)

    def loss(step):
        q = torch.einsum("tb,bnh->nth", x, w_q + step * way) + b_q[:, None]
        out = torch.softmax(q @ k.mT / h**0.5, -1) @ v
        return ((torch.einsum("ntc,ncd->td", out, w_o) + b_o) * above).sum()

    with torch.enable_grad():
        step = torch.zeros((), dtype=torch.float64, requires_grad=True)
        (automatic,) = torch.autograd.grad(loss(step), step)
    differences = (loss(1e-5) - loss(-1e-5)) / 2e-5
    told = "slope along a direction of W_Q: by hand, automatic, finite differences, without r"
    slopes = [slopes[0], float(automatic), float(differences), slopes[1]]
    yield row("The layer's gradient", at + "three-checks", told, slopes, 6e-4, [0, 1, 2, 4])


def measure(sentences):
    """All rows."""
    with torch.no_grad():
        smollm2, minilm = SmolLM2(), MiniLM()
        for found in (
            losses_of_smollm2(smollm2), where_heads_look(smollm2), where_minilm_looks(minilm),
            ablation(smollm2, minilm), order_and_pruning(smollm2), sinks(smollm2),
            conversion(minilm), cache_sizes(smollm2),
            explorer({"smollm2": smollm2, "minilm": minilm}, sentences), gradient_by_hand(),
        ):  # fmt: skip
            yield from found
