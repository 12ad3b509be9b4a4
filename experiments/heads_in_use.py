"""Whether SmolLM2 needs its induction heads, and by which route other heads serve them.

Closes the eight heads with the highest induction scores of heads.json, by 0 and by their means over
other inputs of the same kind, on repeated random sequences and on addresses; and as many others of
the same layers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from experiments.heads import controls, repeats, windows
from experiments.shared import SOURCES, experiment, first_layers, gates_without, stored
from mha_book.masks import causal
from mha_book.models import smollm2
from mha_book.models.interface import next_token_losses
from mha_book.specialization import patching
from mha_book.specialization.patterns import prefix_matching, visible_pairs
from mha_book.specialization.synthetic import copied_positions

SEEDS = (
    "sequences: 11, 12 to close heads, 11 for routes, 13 for means; controls: 1; senders: 2; "
    "random weights: 3, their heads chosen on 14"
)
INPUTS = (*SOURCES, "heads.json")
ROUTES = ("queries", "keys", "values")


# batch: sequences of a seed, and windows read at a time.
Sizes = fields(layers=30, batch=8, batches=2, period=50, draws=6, looking_back=5, others=10)
QUICK = Sizes(2, 2, 1, 6, 1, 1, 1)


class Reading(NamedTuple):
    losses: jax.Array  # ``(B, T - 1)``
    scores: jax.Array  # ``(L, N, B)``, attention on the token after the earlier occurrence
    projected: jax.Array  # queries, keys and values of every head, ``(L, 3, B, N, T, H)``
    outputs: jax.Array  # ``(L, N, C)``, means over batch and positions


def sequences(config: Any, seed: int, sizes: Sizes) -> jax.Array:
    """Return repeated random sequences, ``(B, T)``; token 0 begins each."""
    return repeats(config, jax.random.key(seed), sizes.batch, sizes.period)


def reader(config: Any) -> Callable[..., Reading]:
    """Return a compiled reading of a batch with heads closed, and with projections put in.

    Its arguments: parameters, tokens, gates ``(L, N)``, what a closed head adds instead,
    ``(L, N, C)``, projections as in :class:`Reading`, and where they are put in, ``(L, 3, N)`` of 0
    and 1.
    """

    @jax.jit
    def read(params, ids, gates, means, given, is_given) -> Reading:
        pattern = prefix_matching(visible_pairs(causal(), *ids.shape), ids)
        counted = jnp.maximum(pattern.counted.sum(-1), 1).astype(jnp.float32)  # (B,)
        on_target = jnp.where(pattern.counted[..., None], pattern.score, 0.0)
        found: dict[str, list[Any]] = {site: [] for site in (*patching.ROUTES, "scores", "heads")}

        def hook(site: str, number: int, array: jax.Array) -> jax.Array:
            if site in patching.ROUTES:  # (B, N, T, H)
                found[site].append(array)
                route = patching.ROUTES.index(site)
                put = is_given[number, route][None, :, None, None]
                return jnp.where(put > 0, given[number, route], array)
            if site == "weights":
                seen = jnp.einsum("bntj,btj->nb", array, on_target)
                found["scores"].append(seen / counted[None])
            if site == "heads":
                found[site].append(array.mean((0, 2)))
                gate = gates[number][None, :, None, None]
                return gate * array + (1 - gate) * means[number][None, :, None]
            return array

        logits = patching.hooked_forward(params, ids, hook, config=config)
        stacked = {site: jnp.stack(each) for site, each in found.items()}
        projected = jnp.stack([stacked[route] for route in patching.ROUTES], 1)
        losses = next_token_losses(logits[:, :-1], ids)
        return Reading(losses, stacked["scores"], projected, stacked["heads"])

    return read


def untrained(params: Any, seed: int) -> Any:
    """Return parameters of the same shapes: independent normal weights of the same variances."""
    leaves, tree = jax.tree.flatten(params)
    rng = np.random.default_rng(seed)

    def drawn(leaf: Any) -> jax.Array:
        if leaf.ndim == 1:  # the gains of norms
            return jnp.ones_like(leaf)
        return jnp.asarray(rng.standard_normal(leaf.shape, np.float32) * float(jnp.std(leaf)))

    return jax.tree.unflatten(tree, [drawn(leaf) for leaf in leaves])


def senders(previous: np.ndarray, before: int, sizes: Sizes) -> tuple[list[Any], list[Any]]:
    """Return heads of the first layers: those that look one token back most, and others drawn."""
    flat, width = previous[:before].ravel(), previous.shape[1]
    back = np.argsort(-flat, kind="stable")[: sizes.looking_back]
    free = np.setdiff1d(np.arange(flat.size), back)
    drawn = np.random.default_rng(2).choice(free, sizes.others, replace=False)

    def heads(places: np.ndarray) -> list[Any]:
        return np.stack(np.divmod(places, width), axis=1).tolist()

    return heads(back), heads(drawn)


class Bench:
    def __init__(self, model: Any, top: np.ndarray, sizes: Sizes) -> None:
        config = model.config
        self.model, self.sizes, self.top = model, sizes, top
        self.shape = (config.num_layers, config.num_heads)
        self.read = reader(config)
        length = 2 * sizes.period + 1
        self.none = jnp.zeros((*self.shape, config.head_dim))
        self.nothing = jnp.zeros(
            (self.shape[0], 3, sizes.batch, self.shape[1], length, config.head_dim)
        )
        self.nowhere = np.zeros((self.shape[0], 3, self.shape[1]), np.float32)
        self.repeats = [sequences(config, 11 + n, sizes) for n in range(sizes.batches)]
        self.length = length

    def texts(self) -> list[jax.Array]:
        rows = windows(self.model, "validation", self.sizes.batch * self.sizes.batches, self.length)
        return [rows[n :: self.sizes.batches] for n in range(self.sizes.batches)]

    def plain(self, ids: jax.Array, heads: Any = (), means: Any = None) -> Reading:
        gates = gates_without(heads, self.shape)
        means = self.none if means is None else means
        return self.read(self.model.params, ids, gates, means, self.nothing, self.nowhere)

    def routed(self, ids: jax.Array, given: jax.Array, routes: Any) -> Reading:
        """Read with all heads open, the top heads given projections of another run."""
        where = self.nowhere.copy()
        for route in routes:
            where[self.top[:, 0], ROUTES.index(route), self.top[:, 1]] = 1
        gates = jnp.ones(self.shape)
        return self.read(self.model.params, ids, gates, self.none, given, where)

    def copied(self, run: Reading, ids: jax.Array) -> np.ndarray:
        """The loss of each sequence on what can be copied."""
        where = np.asarray(copied_positions(ids, self.sizes.period))[:, 1:]
        return np.array(
            [row[on].mean() for row, on in zip(np.asarray(run.losses), where, strict=True)]
        )

    def losses(self, heads: Any, means: dict[str, Any] | None, texts: Any) -> dict[str, Any]:
        found: dict[str, list[Any]] = {"copied": [], "first copy": [], "text": []}
        for ids in self.repeats:
            run = self.plain(ids, heads, means and means["repeats"])
            found["copied"] += self.copied(run, ids).tolist()
            found["first copy"] += run.losses[:, : self.sizes.period - 1].mean(-1).tolist()
        for ids in texts:
            run = self.plain(ids, heads, means and means["text"])
            found["text"] += run.losses.mean(-1).tolist()
        return found

    def of_top(self, run: Reading) -> np.ndarray:
        """Induction scores of the top heads, ``(heads, B)``."""
        return np.asarray(run.scores)[self.top[:, 0], self.top[:, 1]]


def routes_from(bench: Bench, heads: Any, means: Any, names: Any) -> dict[str, Any]:
    """Return scores and losses with heads closed altogether, and by one route at a time."""
    ids = bench.repeats[0]
    closed = bench.plain(ids, heads, means)
    found = {"altogether": closed}
    for name in names:
        found[name] = bench.routed(ids, closed.projected, [name])
    return {
        name: {"scores": bench.of_top(run), "copied": bench.copied(run, ids)}
        for name, run in found.items()
    }


@experiment("heads-in-use.json", Sizes(), QUICK, digits=5, seeds=SEEDS, inputs=INPUTS)
def main(run: Any, sizes: Any) -> dict[str, Any]:
    model = first_layers(smollm2.load_smollm2(), sizes.layers)
    told = [[1, 0], [1, 3]] if run.quick else stored("heads.json")["induction"]["top"]
    bench = Bench(model, np.array(told), sizes)
    top, of_training = bench.top, windows(model, "train", sizes.batch, bench.length)
    means = {
        "repeats": bench.plain(sequences(model.config, 13, sizes)).outputs,
        "text": bench.plain(of_training).outputs,
    }
    texts, others = bench.texts(), controls(top, bench.shape, sizes.draws, seed=1)

    def kept(name: str, compute: Callable[[], Any]) -> Any:
        return run.once(name, [sizes, told], compute, 6)

    def closed(name: str, heads: Any, by: Any = None) -> Any:
        return kept(name, lambda: bench.losses(heads, by, texts))

    document: dict[str, Any] = {
        "top": top,
        "controls": others,
        "closed": {
            "whole": closed("whole", ()),
            "zero": closed("zero", top),
            "mean": closed("mean", top, means),
            "zero controls": [closed(f"zero {n}", x) for n, x in enumerate(others)],
            "mean controls": [closed(f"mean {n}", x, means) for n, x in enumerate(others)],
        },
    }
    table = stored("heads-smollm2.csv")
    previous = np.asarray(table["previous"]).reshape(-1, model.config.num_heads)[: sizes.layers]
    back, drawn = senders(previous, int(top[:, 0].min()), sizes)
    document["senders"] = {"looking back": back, "others": drawn}
    ids = bench.repeats[0]

    def routes(name: str, heads: Any, ways: Any = ROUTES) -> Any:
        return kept(name, lambda: routes_from(bench, heads, means["repeats"], ways))

    def unpatched() -> dict[str, Any]:
        whole = bench.plain(ids)
        own = bench.routed(ids, whole.projected, ROUTES)  # its own projections: nothing changes
        return {
            "scores": bench.of_top(whole),
            "copied": bench.copied(whole, ids),
            "difference": float(jnp.abs(own.losses - whole.losses).max()),
        }

    document["routes"] = {
        "whole": kept("unpatched", unpatched),
        "looking back": [routes(f"back {n}", [head]) for n, head in enumerate(back)],
        "together": routes("together", back),
        "others": [routes(f"other {n}", [head], ("keys",)) for n, head in enumerate(drawn)],
        "others together": routes("others together", drawn[: len(back)], ("keys",)),
    }

    def without_training() -> dict[str, Any]:
        bench.model = model._replace(params=untrained(model.params, 3))
        chosen = np.asarray(bench.plain(sequences(model.config, 14, sizes)).scores).mean(-1)
        reading = bench.plain(ids)
        bench.model = model
        best = np.unravel_index(np.argsort(-chosen.ravel())[: len(top)], chosen.shape)
        pattern = prefix_matching(visible_pairs(causal(), *ids.shape), ids)
        rows = np.flatnonzero(np.asarray(pattern.counted)[0])
        even = float(np.mean(1 / (rows + 1)))
        best_scores = np.asarray(reading.scores)[best]
        return {"best": best_scores, "even": even, "top": bench.of_top(reading)}

    document["untrained"] = kept("untrained", without_training)
    return {**document, "processor seconds": run.seconds()}
