"""Types of heads that the literature describes, looked for in SmolLM2 by their published rules.

Copy suppression, successor, function-vector, name-mover and backup heads: each found on one half of
the material of ``catalogue_words.json`` and reported on the other. And zero-, mean- and
resample-ablation of the same heads. What was expected stands in ``expected/catalogue.md``.
"""

import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from experiments.heads import controls, windows
from experiments.shared import ROOT, SOURCES, Reader, experiment, first_layers, stored
from mha_book.layers import linear, rms_norm
from mha_book.models import smollm2
from mha_book.models.interface import next_token_losses
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.rope import rotary_angles
from mha_book.specialization import circuits
from mha_book.specialization.contribution import logit_directions

SEEDS = "tokens: 51; other tokens: 52; shuffled: 53; examples: 54; names: 55; other heads: 56, 57"
WORDS = json.loads((ROOT / "experiments" / "catalogue_words.json").read_text())
INPUTS = (*SOURCES, "heads.json")
HALVES = ("found", "reported")

# texts: windows of a half; alone: tokens read alone; shots, each: examples and prompts of a task;
# at: the layer where a function vector is added; each and names: prompts of a template.
Sizes = fields(layers=30, texts=8, length=101, alone=300, shots=5, each=6, at=10, names=8,
               movers=3, best=10, backups=5, draws=20, ablated=9)  # fmt: skip
QUICK = Sizes(2, 2, 21, 6, 2, 2, 1, 2, 1, 2, 2, 2, 2)


class Bench(Reader):
    def __init__(self, sizes: Any) -> None:
        super().__init__(first_layers(smollm2.load_smollm2(), sizes.layers))
        self.sizes = sizes
        table = self.params.token_embedding
        self.readout, self.centered = (
            table * self.params.output_norm[None],
            table - table.mean(0, keepdims=True),
        )
        self.w_o = jnp.stack([layer.attention.w_o for layer in self.params.layers])
        self.last = jax.jit(self.last_token)

    def ids(self, text: str) -> list[int]:
        return list(self.model.tokenizer.encode(text, add_special_tokens=False).ids)

    def tokens(self, words: Any) -> list[int]:
        return [self.ids(" " + word)[0] for word in words]

    def directions(self, kept: Any, wanted: Any) -> jax.Array:
        """Return what the logits of tokens, less the vocabulary's mean, read of the stream."""
        last = kept["residual"][-1] + kept["mlp"][-1]
        stream = last + jnp.einsum("bntc,ncd->btd", kept["heads"][-1], self.w_o[-1])
        return logit_directions(
            stream, self.params.output_norm, wanted, self.config.epsilon, centered=False
        )

    def streams(self, tokens: Any) -> jax.Array:
        """Return what enters the heads of each layer when tokens stand alone, ``(L, A, D)``."""
        rows = np.zeros((-(-len(tokens) // 30), 30, 2), int)  # so that one program serves all
        rows.reshape(-1, 2)[: len(tokens), 1] = tokens
        kept = [self.run(part)[1]["residual"][:, :, 1] for part in rows]
        every = zip(jnp.concatenate(kept, 1)[:, : len(tokens)], self.params.layers, strict=True)
        return jnp.stack([rms_norm(x, of.attention_norm, self.config.epsilon) for x, of in every])

    def written(self, streams: Any, readout: Any) -> Any:
        """Yield each head's OV circuit from tokens to logits, ``(A, V)``."""
        for number, x in enumerate(streams):
            for head in range(self.shape[1]):
                attention = self.params.layers[number].attention
                yield circuits.ov_circuit(attention, head, x, readout)

    def last_token(self, params, token, keys, values, put, where, added) -> jax.Array:
        """Return log-probabilities ``(P, V)`` after the last token of one sequence.

        The tokens before it are as read, keys and values ``(L, N, T - 1, H)``; of each run some
        heads are ``put`` ``(L, N, H)`` in, ``where`` ``(P, L, N)``; ``added`` ``(P, D)``.
        """
        group, runs = self.config.num_heads // self.config.num_kv_heads, len(where)
        position = jnp.full((1,), keys.shape[2])
        angles = rotary_angles(position, self.config.head_dim, self.config.rope_theta)

        def attention(number: int, layer: Any, x: jax.Array, normalized: jax.Array) -> jax.Array:
            query, *own = project_qkv(layer.attention, normalized, angles=angles)
            key, value = (jnp.repeat(array, group, axis=1)[:, :, 0] for array in own)
            before = jnp.einsum("pnh,nth->pnt", query[:, :, 0], keys[number])
            scores = jnp.concatenate([before, (query[:, :, 0] * key).sum(-1)[..., None]], -1)
            weights = jax.nn.softmax(scores / self.config.head_dim**0.5)
            out = jnp.einsum("pnt,nth->pnh", weights[..., :-1], values[number])
            out = jnp.where(where[:, number, :, None], put[number], out + weights[..., -1:] * value)
            further = added[:, None] if number == self.sizes.at else 0.0
            return project_output(layer.attention, out[:, :, None]) + further

        hidden = smollm2.hidden_states(params, jnp.full((runs, 1), token), attention, self.config)
        return jax.nn.log_softmax(linear(hidden[:, 0], params.token_embedding.T))


def places(order: Any, count: int) -> np.ndarray:
    """Return the heads of the first places of an order of ``(L, N)`` scores."""
    first = np.argsort(order, axis=None, kind="stable")[:count]
    return np.stack(np.unravel_index(first, order.shape), 1)


def suppression(bench: Bench) -> dict[str, Any]:
    """What each head adds, by attending to it, to the earlier token that the lens rates highest."""
    found, rng = {}, np.random.default_rng(52)
    for half, split in zip(HALVES, ("train", "validation"), strict=True):
        ids = windows(bench.model, split, bench.sizes.texts, bench.sizes.length)
        kept, length = bench.run(ids)[1], ids.shape[1]
        before = jnp.tril(jnp.ones((1, length, length), bool), -1).at[:, :, 0].set(False)
        others = jnp.asarray(1 + rng.integers(0, np.maximum(np.arange(length) - 1, 1), ids.shape))

        @jax.jit
        def through(residual, weights, value, w_o, end, place, ids=ids, before=before):
            token = jnp.take_along_axis(ids, place, 1)
            towards = end * bench.centered[token]  # the direction is linear in what is wanted
            read = jnp.einsum("ncd,btd->bntc", w_o, towards)
            same = before & (ids[:, None, :] == token[:, :, None])
            seen = jnp.where(same[:, None], weights, 0.0)
            return jnp.einsum("bnts,bnsc,bntc->bnt", seen, value, read)[..., 8:].mean(-1).T

        scale = bench.directions(kept, jnp.ones((*ids.shape, bench.config.d_model)))
        rows: dict[str, list[Any]] = {"predicted": [], "another": []}
        for number, residual in enumerate(kept["residual"]):
            lens = rms_norm(residual, bench.params.output_norm, bench.config.epsilon)
            rated = jnp.einsum("btd,bsd->bts", lens, bench.centered[ids])
            best = jnp.where(before, rated, -jnp.inf).argmax(-1)
            for name, place in (("predicted", best), ("another", others)):
                given = (residual, kept["weights"][number], kept["value"][number])
                rows[name].append(through(*given, bench.w_o[number], scale, place))
        found[half] = {name: jnp.stack(values) for name, values in rows.items()}  # (L, N, B)
    tokens = np.random.default_rng(51).choice(np.arange(1000, 40_000), bench.sizes.alone, False)
    rank, own = jax.jit(lambda x, own: (x < own).sum(-1)), (jnp.arange(len(tokens)), tokens)
    every = bench.written(bench.streams(tokens), bench.readout)
    lower = np.array([rank(logits, logits[own][:, None]) for logits in every])
    return {**found, "lowered": (lower.reshape(*bench.shape, -1) < 10).mean(-1)}


def successors(bench: Bench) -> dict[str, Any]:
    """The share of a sequence's tokens whose successor a head raises most, and of shuffled ones."""
    found, rng = {}, np.random.default_rng(53)
    for half in HALVES:
        rows = []
        for words in WORDS["sequences"][half].values():
            tokens = np.array(bench.tokens(words))
            every = bench.written(bench.streams(tokens), bench.readout[tokens])
            first = np.array([np.asarray(logits)[:-1].argmax(-1) for logits in every])
            wanted = [np.arange(1, len(words))]
            wanted += [rng.permutation(len(words))[:-1] for _ in range(bench.sizes.draws)]
            rows.append([(first == w).mean(-1).reshape(bench.shape) for w in wanted])
        shares = np.mean(rows, 0)
        found[half] = {"score": shares[0], "best of shuffled": shares[1:].max((1, 2))}
    return found


def examples(bench: Bench, pairs: Any, rng: Any, shuffled: bool) -> tuple[list[int], int]:
    """Return a prompt of questions and answers that ends before the last answer, and that."""
    last = rng.choice(np.arange(int(shuffled), len(pairs), 2))  # never asked both ways
    drawn = [n for n in rng.permutation(len(pairs)) if n != last][: bench.sizes.shots] + [last]
    asked, answers = (bench.tokens(pairs[n][side] for n in drawn) for side in (0, 1))
    shown = np.roll(answers[:-1], 1).tolist() if shuffled else answers[:-1]
    ask, say, end = (bench.ids(text) for text in ("Q:", "\nA:", "\n\n"))
    ids = [0]
    for question, answer in zip(asked, [*shown, None], strict=True):
        ids += [*ask, question, *say, *([] if answer is None else [answer, *end])]
    return ids, answers[-1]


def function_vectors(bench: Bench) -> dict[str, Any]:
    """What the mean outputs of single heads do to prompts whose examples are wrong."""
    sizes, rng, found, means = bench.sizes, np.random.default_rng(54), {}, {}
    every = np.eye(np.prod(bench.shape), dtype=bool).reshape(-1, *bench.shape)
    single = jnp.asarray(np.concatenate([0 * every[:1], every]))
    nothing = jnp.zeros((len(single), bench.config.d_model))

    def run(ids: Any, where: Any, put: Any, added: Any) -> Any:
        logits, kept = bench.run([ids])
        before = (kept[site][:, 0, :, :-1] for site in ("key", "value"))
        told = bench.last(bench.params, ids[-1], *before, put, where, added)
        assert jnp.abs(told[0] - jax.nn.log_softmax(logits[0, -1])).max() < 1e-2  # none put in
        return told

    for half in HALVES:
        effects, right = [], []
        for name, pairs in WORDS["tasks"][half].items():
            shown = [examples(bench, pairs, rng, False) for _ in range(sizes.each)]
            logits, kept = bench.run([ids for ids, _ in shown])
            right += (logits[:, -1].argmax(-1) == np.array([a for _, a in shown])).tolist()
            means[name] = kept["heads"][:, :, :, -1].mean(1)
            for _ in range(sizes.each):
                ids, answer = examples(bench, pairs, rng, True)
                told = run(ids, single, means[name], nothing)[:, answer]
                effects.append((told[1:] - told[0]).reshape(bench.shape))
        found[half] = {"effects": np.array(effects), "right": right}  # (prompts, L, N)
    mean = found["found"]["effects"].mean(0)
    sets = {"writers": places(-mean, sizes.best), "cancellers": places(mean, sizes.best)}
    for seed, name in ((56, "writers"), (57, "cancellers")):
        for n, heads in enumerate(controls(sets[name], bench.shape, 3, seed)):
            sets[f"others of {name} {n}"] = heads
    added: dict[str, list[Any]] = {"answer": [], "right": []}
    for name, pairs in WORDS["tasks"]["reported"].items():
        vectors = [jnp.zeros(bench.config.d_model)]
        for heads in sets.values():
            at = tuple(heads.T)
            vectors.append(jnp.einsum("nc,ncd->d", means[name][at], bench.w_o[at]))
        nowhere = jnp.zeros((len(vectors), *bench.shape), bool)
        for _ in range(sizes.each):
            question, answer = bench.tokens(pairs[rng.choice(np.arange(1, len(pairs), 2))])
            ids = [0, *bench.ids("Q:"), question, *bench.ids("\nA:")]
            told = run(ids, nowhere, means[name], jnp.stack(vectors))
            added["answer"].append(told[:, answer])
            added["right"].append(told.argmax(-1) == answer)
    return {**found, "sets": sets, "added": added}


class Prompts:
    """Sentences with an indirect object and a subject, and means of heads over other names."""

    def __init__(self, bench: Bench, names: list[str], rng: Any) -> None:
        self.bench, own, apart, marks = bench, [], [], []
        for template in WORDS["templates"]:
            for number in range(bench.sizes.names):
                io, s, *rest = (" " + name for name in rng.permutation(names)[:5])
                first, second = (io, s) if number % 2 else (s, io)
                own.append(bench.ids(template.format(A=first, B=second, S=s)))
                apart.append(bench.ids(template.format(A=rest[0], B=rest[1], S=rest[2])))
                marks.append((bench.ids(io)[0], bench.ids(s)[0]))
        width = max(map(len, own))
        self.ids, other = (
            np.array([[0, *prompt, *[0] * (width - len(prompt))] for prompt in prompts])
            for prompts in (own, apart)
        )
        self.end, (self.io, self.s) = np.array([len(p) for p in own]), np.array(marks).T
        outputs, names_ = bench.run(other)[1]["heads"], bench.sizes.names
        means = outputs.reshape(len(outputs), -1, names_, *outputs.shape[2:]).mean(2)
        self.means = jnp.repeat(means, names_, 1)  # of the same template, by position

    def direct(self, without: Any = ()) -> dict[str, Any]:
        """Return what each head adds to the difference of the two logits, and where it attends."""
        bench, rows = self.bench, np.arange(len(self.ids))
        logits, kept = bench.run(self.ids, without, self.means)
        table, shape = bench.params.token_embedding, (*self.ids.shape, bench.config.d_model)
        wanted = jnp.broadcast_to((table[self.io] - table[self.s])[:, None], shape)
        towards = bench.directions(kept, wanted)[rows, self.end]
        outputs, weights = (kept[site][:, rows, :, self.end] for site in ("heads", "weights"))
        seen = {
            name: jnp.einsum(
                "blnt,bt->lnb", weights, jnp.asarray(self.ids == x[:, None], jnp.float32)
            )
            for name, x in (("on indirect object", self.io), ("on subject", self.s))
        }
        gap = logits[rows, self.end, self.io] - logits[rows, self.end, self.s]
        direct = jnp.einsum("blnc,lncd,bd->lnb", outputs, bench.w_o, towards)
        return {"gap": gap, "direct": direct, **seen}


def indirect_objects(bench: Bench) -> dict[str, Any]:
    """What heads add to the indirect object, with all heads and without the name movers."""
    rng, found, sets = np.random.default_rng(55), {}, {}
    for half in HALVES:
        names = WORDS["names"][half]
        prompts = Prompts(bench, names, rng)
        whole = prompts.direct()
        if not sets:
            mean = np.array(whole["direct"]).mean(-1)
            sets = {"movers": places(-mean, bench.sizes.movers), "lowest": places(mean, 1)}
            sets["others"] = controls(sets["movers"], bench.shape, 1, 56)[0]
        without = {name: prompts.direct(sets[name]) for name in ("movers", "others")}
        if half == "found":
            rise = np.array(without["movers"]["direct"] - whole["direct"]).mean(-1)
            rise[tuple(sets["movers"].T)] = -np.inf
            sets["backups"] = places(-rise, bench.sizes.backups)
        tokens, copied = np.array(bench.tokens(names)), []
        for logits in bench.written(bench.streams(tokens), bench.readout):
            own = logits[np.arange(len(tokens)), tokens][:, None]
            copied.append(float(((logits > own).sum(-1) < 5).mean()))
        found[half] = {**whole, "copied": np.reshape(copied, bench.shape)}
        for name, run in without.items():
            found[half] |= {f"{x} without {name}": run[x] for x in ("gap", "direct")}
    return {**found, "sets": sets}


def ablations(bench: Bench) -> dict[str, Any]:
    """The rise of the loss on addresses with one head ablated, by zero, means and another text."""
    order = -np.array(stored("heads.json")["importance"]["ablation"])[: bench.shape[0]]
    heads = [*places(order, bench.sizes.ablated - 3).tolist(), [18, 8], [16, 0], [18, 6]]
    heads = [head for head in heads if head[0] < bench.shape[0]]
    ids, other = (
        windows(bench.model, split, bench.sizes.texts, bench.sizes.length)
        for split in ("validation", "train")
    )
    outputs = bench.run(other)[1]["heads"]
    mean = jnp.broadcast_to(outputs.mean((1, 3), keepdims=True), outputs.shape)
    found: dict[str, Any] = {"heads": heads}

    def loss(*changes: Any) -> Any:
        return next_token_losses(bench.run(ids, *changes)[0][:, :-1], ids).mean(-1)

    for way, values in (("zero", 0 * outputs), ("mean", mean), ("resample", outputs)):
        found[way] = [loss([head], values) for head in heads]
    return {**found, "whole": loss((), outputs)}


@experiment("catalogue.json", Sizes(), QUICK, digits=5, seeds=SEEDS, inputs=INPUTS)
def main(run: Any, sizes: Any) -> dict[str, Any]:
    bench, found = Bench(sizes), {}
    for part in (suppression, successors, function_vectors, indirect_objects, ablations):
        found[part.__name__] = run.once(part.__name__, sizes, lambda part=part: part(bench), 6)
    return {**found, "processor seconds": run.seconds()}
