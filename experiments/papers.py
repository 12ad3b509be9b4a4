"""Small measurements on SmolLM2 and MiniLM, each for what one paper claims.

How many heads a token needs, how few keys hold the attention, the largest score of each head, heads
aligned before they are merged, heads as combinations of fewer, the rank of keys with values, an
order of removal by importance and entropy, and heads that retrieve. What was expected stands in
expected/papers.md.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from experiments import shared
from experiments.heads import controls
from experiments.papers_merging import merged, of_few, random_turns, turned, turns
from experiments.papers_told import told
from experiments.pruning import passages, sentences
from experiments.shared import SOURCES, change_attention, experiment, first_layers, gates_without
from mha_book.models import minilm, smollm2
from mha_book.models.interface import next_token_losses
from mha_book.models.tokens import tokenize
from mha_book.pruning.order import head_mask, removal_order
from mha_book.rope import rotary_angles, rotate
from mha_book.specialization import patching

SEEDS = (
    "random heads: 0; random keys: 1; random weights: 2, MiniLM's 3; turns: 4; codes: 5; others: 6"
)
INPUTS = (*SOURCES, "heads.json")
NAMES = ("Boston", "Paris", "London", "Berlin", "Chicago", "Rome", "Madrid", "Dublin")
WAYS = ("own", "group", "layer", "nearest", "random")


# layers: of SmolLM2; texts: passages, of which every fourth is read, for orders of removal every
# second; heads: that a token keeps in each layer; before: tokens before a code, and behind it.
Sizes = fields(
    layers=30, texts=24, context=129, longer=257, heads=(7, 5, 3), keys=(16, 32, 64),
    sentences=24, minilm_groups=(6, 3), removed=(0.1, 0.3), codes=8, before=60, retrieving=13,
    draws=3,
)  # fmt: skip
QUICK = Sizes(1, 8, 9, 17, (5,), (4,), 4, (6,), (0.3,), 2, 6, 2, 1)


class Bench:
    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.model = first_layers(smollm2.load_smollm2(), sizes.layers)
        self.config, self.params = self.model.config, self.model.params
        self.shape = (sizes.layers, self.config.num_heads)
        self.by_heads, self.by_keys = by_heads(self.config), by_keys(self.config, sizes.keys)
        self.text = passages(self.model, "validation", sizes.texts, sizes.context)

    def read(
        self, ids, *, params=None, keep=None, own=0.0, given=0.0, gates=1.0
    ) -> dict[str, np.ndarray]:
        """Read tokens ``(B, T)``: all heads of all tokens, unless fewer are asked for."""
        count = self.config.num_heads if keep is None else keep
        full = (self.shape[0], len(ids), self.shape[1], ids.shape[1])
        given = jnp.broadcast_to(jnp.asarray(given, jnp.float32), full)
        gates = jnp.broadcast_to(jnp.asarray(gates, jnp.float32), self.shape)
        params = self.params if params is None else params
        return jax.tree.map(np.asarray, self.by_heads(params, ids, own, given, count, gates))


def by_heads(config: Any) -> Callable[..., dict[str, jax.Array]]:
    """Return a compiled reading in which each token keeps some heads of each layer.

    Its arguments: parameters, tokens ``(B, T)``, how much the length of a head's contribution
    counts, what else counts ``(L, B, N, T)``, how many heads stay, gates ``(L, N)``.
    """

    @jax.jit
    def read(params, ids, own, given, count, gates) -> dict[str, jax.Array]:
        group = config.num_heads // config.num_kv_heads
        found: dict[str, list[jax.Array]] = {n: [] for n in ("length", "top", "key", "value")}

        def hook(site: str, number: int, array: jax.Array) -> jax.Array:
            if site in ("key", "value"):
                found[site].append(array[:, ::group])
            if site == "weights":
                found["top"].append(array.argmax(-1))
            if site != "heads":
                return array
            written = jnp.einsum("bntc,ncd->bntd", array, params.layers[number].attention.w_o)
            found["length"].append(length := jnp.linalg.norm(written, axis=-1))
            place = jnp.argsort(jnp.argsort(-(own * length + given[number]), axis=1), axis=1)
            stay = (place < count).astype(array.dtype) * gates[number][None, :, None]
            return stay[..., None] * array

        logits = patching.hooked_forward(params, ids, hook, config=config)[:, :-1]
        right = logits.argmax(-1) == ids[:, 1:]
        return {
            "losses": next_token_losses(logits, ids),
            "right": right,
            **{n: jnp.stack(x) for n, x in found.items()},
        }

    return read


def by_keys(config: Any, counts: tuple[int, ...]) -> Callable[..., dict[str, Any]]:
    """Return a compiled reading of one text ``(1, T)`` in which queries read few keys.

    Its arguments: parameters, tokens, a number from 0 for each pair ``(T, T)``, which of
    :data:`WAYS` chooses the keys that are read, the middle one of the counts (a number beyond
    them: all are read).
    """
    n, group = config.num_heads, config.num_heads // config.num_kv_heads
    of_group = np.kron(np.eye(config.num_kv_heads), np.ones((group, group)))
    mixes = [np.eye(n), of_group, np.ones((n, n))]
    middle = len(counts) // 2

    @jax.jit
    def read(params: Any, ids: jax.Array, noise: jax.Array, way: Any) -> dict[str, Any]:
        length = ids.shape[1]
        angles = rotary_angles(jnp.arange(length), config.head_dim, config.rope_theta)
        place = jnp.arange(length)
        visible = (place[None, :] <= place[:, None])[None]  # (1, T, T)
        first = jnp.where(place == 0, 2.0, 0.0)
        late = slice(length // 2, None)
        found: dict[str, list[jax.Array]] = {}

        def note(name: str, value: jax.Array) -> None:
            found.setdefault(name, []).append(value)

        def hook(site: str, number: int, array: jax.Array) -> jax.Array:
            if site in patching.ROUTES:
                note(site, array[0])
            if site != "weights":
                return array
            weights = array[0]
            scores = jnp.einsum("nth,nsh->nts", found["query"][-1], found["key"][-1])
            scores = scores / config.head_dim**0.5
            note("largest", jnp.where(visible, scores, -jnp.inf).max((1, 2)))
            wishes = [jnp.einsum("nm,mts->nts", jnp.asarray(mix, jnp.float32), weights)
                      for mix in mixes]  # fmt: skip
            wishes += [
                jnp.broadcast_to(w, weights.shape)
                for w in ((place / length + first)[None, None], (noise + first[None])[None])
            ]
            wishes = [jnp.where(visible, wish, -1.0) for wish in wishes]

            def chosen(wish: jax.Array) -> list[jax.Array]:
                best = jax.lax.top_k(wish, max(counts))[0]
                return [(wish >= best[..., c - 1 : c]) & visible for c in counts]

            def measured() -> tuple[jax.Array, ...]:
                every = [chosen(wish) for wish in wishes]
                shares = []
                for keys_of in every:
                    for allowed in keys_of:
                        of_keys = jnp.where(allowed, weights, 0.0)[:, late]
                        others = of_keys[..., 1:].sum((1, 2)) / (1 - weights[:, late, 0]).sum(1)
                        shares.append(jnp.stack([of_keys.sum(-1).mean(1), others]))
                own = every[0][middle][:, late, 1:].astype(jnp.float32)
                both = jnp.einsum("nts,mts->nm", own, own)
                found = jnp.stack(shares, 1).reshape(2, len(WAYS), len(counts), n)
                return found, both / jnp.maximum(jnp.diag(both), 1.0)[:, None]

            def skipped() -> tuple[jax.Array, ...]:
                return jnp.zeros((2, len(WAYS), len(counts), n)), jnp.zeros((n, n))

            is_whole = way == len(WAYS)
            shares, agreement = jax.lax.cond(is_whole, measured, skipped)
            note("recalled", shares[0])
            note("recalled of the rest", shares[1])
            note("agreement", agreement)
            wish = jnp.stack(wishes)[jnp.minimum(way, len(WAYS) - 1)]
            allowed = jnp.where(is_whole, visible, chosen(wish)[middle])
            few = jnp.where(allowed, weights, 0.0)
            return (few / few.sum(-1, keepdims=True))[None]

        logits = patching.hooked_forward(params, ids, hook, config=config)
        losses = next_token_losses(logits[:, :-1], ids)[0, length // 2 :]
        stacked = {name: jnp.stack(x) for name, x in found.items() if name != "query"}
        stacked |= {name: stacked[name][:, ::group] for name in ("key", "value")}
        turned_back = rotate(stacked["key"], -angles)
        stacked |= {"rotated": stacked["key"], "key": turned_back, "loss": losses.mean()}
        return stacked

    return read


def heads_of_a_token(bench: Bench) -> dict[str, Any]:
    """Return the loss of each passage where a token keeps some heads of each layer."""
    text, every = bench.text[::4], bench.read(bench.text[::4])
    train = passages(bench.model, "train", len(text), bench.sizes.context)
    usual = bench.read(train)["length"].mean((1, 3))  # (L, N)
    drawn = np.random.default_rng(0).random(
        (bench.shape[0], len(text), bench.shape[1], text.shape[1])
    )
    ways = {"chosen": (1.0, 0.0), "fixed": (0.0, usual[:, None, :, None]), "random": (0.0, drawn)}
    found: dict[str, Any] = {"whole": every["losses"].mean(1)}
    for way, (own, given) in ways.items():
        for keep in bench.sizes.heads:
            run = bench.read(text, keep=keep, own=own, given=given)
            found[f"{way} {keep}"] = run["losses"].mean(1)
    return found


def untrained(params: Any, seed: int) -> Any:
    """Return parameters of the same shapes: independent normal weights of the same variances."""
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)

    def drawn(leaf: Any) -> jax.Array:
        if leaf.ndim == 1:  # the gains of norms
            return jnp.ones_like(leaf)
        return jnp.asarray(rng.standard_normal(leaf.shape, np.float32) * float(jnp.std(leaf)))

    return jax.tree.unflatten(tree, [drawn(leaf) for leaf in leaves])


def keys_of_a_query(bench: Bench) -> dict[str, Any]:
    """Return what few keys hold in each text, largest scores, directions of keys and values."""
    sizes = bench.sizes
    text = passages(bench.model, "validation", sizes.texts, sizes.longer)[::4]
    noise = jnp.asarray(np.random.default_rng(1).random((sizes.longer, sizes.longer)), jnp.float32)

    def run(way: int, params: Any = None, ids: jax.Array = text) -> list[dict[str, np.ndarray]]:
        params = bench.params if params is None else params
        each = [bench.by_keys(params, row[None], noise, way) for row in ids]
        return [jax.tree.map(np.asarray, one) for one in each]

    every = run(len(WAYS))
    found = {
        name: np.stack([one[name] for one in every])
        for name in ("loss", "recalled", "recalled of the rest", "largest", "agreement")
    }
    found["losses"] = {way: [one["loss"] for one in run(n)] for n, way in enumerate(WAYS)}
    bare = untrained(bench.params, 2)
    without = run(len(WAYS), bare, text[:1])
    found["largest, untrained"] = without[0]["largest"]
    found["recalled, untrained"] = without[0]["recalled"].mean((0, 3))
    found["directions"] = directions(every)
    found["directions, untrained"] = directions([*without, *run(len(WAYS), bare, text[1:2])])
    return found


def directions(runs: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return how many directions hold 90% of keys and values, and what half of both hold."""
    found: dict[str, Any] = {name: [] for name in ("key", "rotated", "value", "half of both")}
    for layer in range(len(runs[0]["key"])):
        flat = {}
        for name in ("key", "rotated", "value"):
            rows = np.concatenate([np.moveaxis(one[name][layer], 0, 1)[1:] for one in runs])
            flat[name] = rows.reshape(len(rows), -1).astype(np.float64)
            flat[name] /= np.linalg.norm(flat[name])
            found[name].append(int((_held(flat[name]) < 0.9).sum() + 1))
        both = np.concatenate([flat["key"], flat["value"]], axis=1)
        found["half of both"].append(float(_held(both)[both.shape[1] // 2 - 1]))
    return found


def _held(rows: np.ndarray) -> np.ndarray:
    energy = np.linalg.svd(rows, compute_uv=False) ** 2
    energy = np.pad(energy, (0, max(0, rows.shape[1] - len(energy))))
    return np.cumsum(energy) / energy.sum()


def merged_smollm2(bench: Bench) -> dict[str, Any]:
    """Return the loss of each passage with one key and value head a layer, aligned or not."""
    text, heads = bench.text[::4], bench.config.num_kv_heads
    train = passages(bench.model, "train", len(text), bench.sizes.context)
    seen = bench.read(train)

    def flat(x: np.ndarray) -> np.ndarray:  # (B, K, T, H), without the first token
        return np.moveaxis(x[:, :, 1:], 1, 0).reshape(heads, -1, x.shape[-1]).astype(np.float64)

    def align(params: Any, number: int) -> Any:
        keys, values = (flat(seen[name][number]) for name in ("key", "value"))
        return turned(params, turns(keys, 1, by_pairs=True), turns(values, 1, by_pairs=False))

    def at_random(params: Any, number: int) -> Any:
        width = bench.config.head_dim
        drawn = (random_turns(heads, width, 4 + number, by_pairs=by) for by in (True, False))
        return turned(params, *drawn)

    ways = {
        "whole": lambda p, i: p, "aligned, not merged": align, "plain": lambda p, i: merged(p, 1),
        "aligned": lambda p, i: merged(align(p, i), 1),
        "turned at random": lambda p, i: merged(at_random(p, i), 1),
    }  # fmt: skip
    return {
        way: bench.read(text, params=change_attention(bench.params, change))["losses"].mean(1)
        for way, change in ways.items()
    }


def of_minilm(sizes: Sizes) -> dict[str, Any]:
    """Return what merging and combining heads does to MiniLM's embeddings, and largest scores."""
    model = minilm.load_minilm()
    fitted = tokenize(model, sentences("train", sizes.sentences, 1))
    scored = tokenize(model, sentences("validation", sizes.sentences, 1))
    inside = jax.jit(minilm.encode_with_intermediates)
    _, records = inside(model.params, *fitted)
    real = np.arange(fitted[0].shape[1])[None] < np.asarray(fitted[1])[:, None]
    embed = jax.jit(minilm.embed)
    whole = np.asarray(embed(model.params, *scored), np.float64)

    def largest(params: Any) -> np.ndarray:
        shown = np.arange(scored[0].shape[1])[None] < np.asarray(scored[1])[:, None]
        pairs = shown[:, None, :, None] & shown[:, None, None]
        found = []
        for record in inside(params, *scored)[1]:
            q, k = (np.asarray(x) for x in (record.intermediates.query, record.intermediates.key))
            scores = q @ np.swapaxes(k, -1, -2) / q.shape[-1] ** 0.5
            found.append(np.where(pairs, scores, -np.inf).max((2, 3)))
        return np.stack(found, 1)  # (B, L, N)

    def align(groups: int, params: Any, number: int) -> Any:
        record = records[number].intermediates
        both = (
            np.moveaxis(np.asarray(x, np.float64), 1, 0)[:, real]
            for x in (record.key, record.value)
        )
        return turned(params, *(turns(x, groups, by_pairs=False) for x in both))

    def at_random(params: Any, number: int) -> Any:
        width, heads = params.w_k.shape[-1], params.w_k.shape[1]
        drawn = (random_turns(heads, width, s + number, by_pairs=False) for s in (4, 104))
        return turned(params, *drawn)

    cosines: dict[str, Any] = {}
    for groups in sizes.minilm_groups:
        ways: dict[str, Callable[[Any, int], Any]] = {
            "plain": lambda p, i, g=groups: merged(p, g),
            "aligned": lambda p, i, g=groups: merged(align(g, p, i), g),
            "turned at random": lambda p, i, g=groups: merged(at_random(p, i), g),
            "virtual": lambda p, i, g=groups: of_few(p, g)[0],
            "aligned, virtual": lambda p, i, g=groups: of_few(align(1, p, i), g)[0],
            "features": lambda p, i, g=groups: of_few(p, g, over_features=True)[0],
        }
        for way, change in ways.items():
            changed = embed(change_attention(model.params, change), *scored)
            cosines[f"{way} {groups}"] = (np.asarray(changed) * whole).sum(1)
    only = change_attention(model.params, functools.partial(align, sizes.minilm_groups[0]))
    cosines["aligned, not merged"] = (np.asarray(embed(only, *scored)) * whole).sum(1)
    cosines["another sentence"] = (whole * np.roll(whole, 1, 0)).sum(1)
    bare = minilm.init_minilm(jax.random.key(3))
    held = {
        name: {
            str(groups): [of_few(layer.attention, groups)[1] for layer in params.layers]
            for groups in sizes.minilm_groups
        }
        for name, params in (("trained", model.params), ("untrained", bare))
    }
    held["aligned"] = {
        str(g): [of_few(align(1, x.attention, i), g)[1] for i, x in enumerate(model.params.layers)]
        for g in sizes.minilm_groups
    }
    return {
        "cosines": cosines, "held": held, "largest": largest(model.params),
        "largest, untrained": largest(bare).max(0),
    }  # fmt: skip


def entropy_orders(bench: Bench) -> dict[str, Any]:
    """Return losses without the heads of least importance and entropy, beside importance alone."""
    sizes = bench.sizes
    importance = np.array(shared.stored("heads.json")["importance"]["gate gradient"])[
        : sizes.layers
    ]
    entropy = np.array(shared.stored("heads-smollm2.csv")["entropy"]).reshape(-1, 9)
    entropy = entropy[: sizes.layers]

    def scaled(x: np.ndarray) -> np.ndarray:
        return (x - x.min()) / (x.max() - x.min())

    text = bench.text[::2]
    half = max(1, len(text) // 2)
    orders = {
        "importance": removal_order(importance),
        "keeps low entropy": removal_order(scaled(importance) - scaled(entropy)),
        "keeps high entropy": removal_order(scaled(importance) + scaled(entropy)),
    }
    found: dict[str, Any] = {}
    for name, order in orders.items():
        for share in sizes.removed:
            keep = head_mask(order, round(share * importance.size), bench.shape)
            runs = [bench.read(text[i : i + half], gates=keep) for i in range(0, len(text), half)]
            found[f"{name} {share}"] = np.concatenate([run["losses"].mean(1) for run in runs])
    return found


def codes(bench: Bench, number: int) -> tuple[jax.Array, np.ndarray, np.ndarray]:
    """Return texts with a code inside and its question at the end, and where its digits stand."""
    sizes, encode = bench.sizes, bench.model.tokenizer.encode
    rng = np.random.default_rng([5, number])
    source = passages(bench.model, "train", 2 * sizes.codes, 2 * sizes.before + 1)
    rows = []
    for case in range(sizes.codes):
        words = np.asarray(source[number * sizes.codes + case]).tolist()
        ask = encode(f" The secret code of {NAMES[case]} is", add_special_tokens=False).ids
        digits = encode(
            " " + "".join(map(str, rng.permutation(10)[:6])), add_special_tokens=False
        ).ids
        end = encode(".", add_special_tokens=False).ids
        before, behind = words[: sizes.before + 1], words[sizes.before + 1 :]
        rows.append([*before, *ask, *digits, *end, *behind, *ask, *digits])
    inside = sizes.before + 1 + len(ask) + len(digits) - 6 + np.arange(6)
    return jnp.asarray(np.array(rows, np.int32)), inside, np.arange(-6, 0)


def retrieving(bench: Bench) -> dict[str, Any]:
    """Return how often each head looks at the digit that comes next, and codes without the best."""
    sizes = bench.sizes
    (ids, inside, answer), (others, _, _) = (codes(bench, number) for number in range(2))
    asking = ids.shape[1] + answer - 1  # where the digits are predicted
    run = bench.read(ids)
    score = (run["top"][..., asking] == inside).mean((1, 3))  # (L, N)
    best = np.argsort(-score, axis=None, kind="stable")[: sizes.retrieving]
    top = np.stack(np.unravel_index(best, bench.shape), 1)
    closed = {"none": np.zeros((0, 2), int), "retrieving": top}
    closed |= {f"others {n}": x for n, x in enumerate(controls(top, bench.shape, sizes.draws, 6))}
    found: dict[str, Any] = {"score": score, "heads": top, "right": {}, "plain": {}}
    found["score on the others"] = (bench.read(others)["top"][..., asking] == inside).mean((1, 3))
    for name, heads in closed.items():
        gates = gates_without(heads, bench.shape)
        found["right"][name] = bench.read(others, gates=gates)["right"][:, answer].mean(1)
        if not name.startswith("others") or name == "others 0":
            found["plain"][name] = bench.read(bench.text[::4], gates=gates)["losses"].mean(1)
    return found


@experiment("papers.json", Sizes(), QUICK, seeds=SEEDS, inputs=INPUTS)
def main(run: Any, sizes: Any) -> dict[str, Any]:
    bench = functools.cache(lambda: Bench(sizes))
    parts: dict[str, Callable[[], Any]] = {
        "of minilm": lambda: of_minilm(sizes),
        "heads of a token": lambda: heads_of_a_token(bench()),
        "keys of a query": lambda: keys_of_a_query(bench()),
        "merged": lambda: merged_smollm2(bench()),
        "retrieving": lambda: retrieving(bench()),
        "entropy orders": lambda: entropy_orders(bench()),
    }
    found = {name: run.once(name, sizes, compute, 5) for name, compute in parts.items()}
    return {**found, "told": told(found, sizes)}
