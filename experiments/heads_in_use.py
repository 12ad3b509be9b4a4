"""Whether SmolLM2 needs its induction heads, and by which route other heads serve them.

    python -m experiments.heads_in_use [--quick]

Closes the eight heads with the highest induction scores of heads.json, by 0 and by their means over
other inputs of the same kind, on repeated random sequences and on addresses; and as many others of
the same layers. Then closes heads before them, altogether and by one route at a time: the queries,
the keys or the values that the eight heads compute without such a head are put into a run that has
it. What was expected is in experiments/expected/heads-in-use.md. Takes three to ten minutes of one
core and stores book/data/heads-in-use.json.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.heads import controls, repeats, windows
from experiments.shared import ROOT, SOURCES, arguments, first_layers, once, store
from mha_book.attention.reference import attention_weights
from mha_book.layers import linear
from mha_book.masks import causal
from mha_book.models import smollm2
from mha_book.models.interface import next_token_losses
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.pruning.order import head_mask
from mha_book.rope import rotary_angles
from mha_book.specialization.patterns import prefix_matching, visible_pairs
from mha_book.specialization.synthetic import copied_positions
from mha_book.storage import read_table

__all__ = ["QUICK", "ROUTES", "Run", "Sizes", "main", "reader", "senders", "sequences", "untrained"]

COMMAND = "python -m experiments.heads_in_use"
SEEDS = (
    "sequences: 11, 12 to close heads, 11 for routes, 13 for means; controls: 1; senders: 2; "
    "random weights: 3, their heads chosen on 14"
)
INPUTS = (*SOURCES, "heads.json")
ROUTES = ("queries", "keys", "values")


class Sizes(NamedTuple):
    """How large the experiment is."""

    layers: int = 30
    batch: int = 8  # sequences of a seed, and windows read at a time
    batches: int = 2
    period: int = 50
    draws: int = 6
    looking_back: int = 5
    others: int = 10


QUICK = Sizes(2, 2, 1, 6, 1, 1, 1)


class Run(NamedTuple):
    """What one reading of a batch gives.

    Args:
        losses: ``(B, T - 1)``.
        scores: ``(L, N, B)``, attention on the token after the earlier occurrence.
        projected: queries, keys and values of every head, ``(L, 3, B, N, T, H)``.
        outputs: ``(L, N, C)``, means over batch and positions.
    """

    losses: jax.Array
    scores: jax.Array
    projected: jax.Array
    outputs: jax.Array


def sequences(config: Any, seed: int, sizes: Sizes) -> jax.Array:
    """Return repeated random sequences, ``(B, T)``; token 0 begins each."""
    return repeats(config, jax.random.key(seed), sizes.batch, sizes.period)


def reader(config: Any) -> Callable[..., Run]:
    """Return a compiled reading of a batch with heads closed, and with projections put in.

    Its arguments: parameters, tokens, gates ``(L, N)``, what a closed head adds instead,
    ``(L, N, C)``, projections as in :class:`Run`, and where they are put in, ``(L, 3, N)`` of 0
    and 1.
    """

    @jax.jit
    def read(params: Any, ids: jax.Array, gates: Any, means: Any, given: Any, is_given: Any) -> Run:
        angles = rotary_angles(jnp.arange(ids.shape[1]), config.head_dim, config.rope_theta)
        pattern = prefix_matching(visible_pairs(causal(), *ids.shape), ids)
        counted = jnp.maximum(pattern.counted.sum(-1), 1).astype(jnp.float32)  # (B,)
        scores, projected, outputs = [], [], []

        def attention(number: int, layer: Any, x: jax.Array, normalized: jax.Array) -> jax.Array:
            qkv = project_qkv(layer.attention, normalized, angles=angles)
            group = config.num_heads // config.num_kv_heads
            own = [qkv[0], *(jnp.repeat(x, group, axis=1) for x in qkv[1:])]  # (B, N, T, H) each
            projected.append(jnp.stack(own))
            put = is_given[number][:, None, :, None, None]
            query, key, value = jnp.where(put > 0, given[number], projected[-1])
            weights = attention_weights(query, key, is_causal=True)
            on_target = jnp.where(pattern.counted[..., None], pattern.score, 0.0)
            seen = jnp.einsum("bntj,btj->nb", weights, on_target)
            scores.append(seen / counted[None])
            out = jnp.einsum("bntj,bnjc->bntc", weights, value)
            outputs.append(out.mean((0, 2)))
            gate = gates[number][None, :, None, None]
            closed = gate * out + (1 - gate) * means[number][None, :, None]
            return project_output(layer.attention, closed)

        hidden = smollm2.hidden_states(params, ids, attention, config)
        losses = next_token_losses(linear(hidden[:, :-1], params.token_embedding.T), ids)
        return Run(losses, jnp.stack(scores), jnp.stack(projected), jnp.stack(outputs))

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
    """Return heads of the first layers: those that look one token back most, and others drawn.

    Args:
        previous: ``(L, N)``, attention on the token before.
        before: the layer that they lie before.
        sizes: how many of each.
    """
    flat, width = previous[:before].ravel(), previous.shape[1]
    back = np.argsort(-flat, kind="stable")[: sizes.looking_back]
    free = np.setdiff1d(np.arange(flat.size), back)
    drawn = np.random.default_rng(2).choice(free, sizes.others, replace=False)

    def heads(places: np.ndarray) -> list[Any]:
        return np.stack(np.divmod(places, width), axis=1).tolist()

    return heads(back), heads(drawn)


class Bench:
    """The model, its inputs, and readings of them."""

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

    def plain(self, ids: jax.Array, heads: Any = (), means: Any = None) -> Run:
        """Read with some heads closed."""
        closed = np.asarray(heads, int).reshape(-1, 2)
        gates = jnp.asarray(head_mask(closed, len(closed), self.shape), jnp.float32)
        means = self.none if means is None else means
        return self.read(self.model.params, ids, gates, means, self.nothing, self.nowhere)

    def routed(self, ids: jax.Array, given: jax.Array, routes: Any) -> Run:
        """Read with all heads open, the top heads given projections of another run."""
        where = self.nowhere.copy()
        for route in routes:
            where[self.top[:, 0], ROUTES.index(route), self.top[:, 1]] = 1
        gates = jnp.ones(self.shape)
        return self.read(self.model.params, ids, gates, self.none, given, where)

    def copied(self, run: Run, ids: jax.Array) -> np.ndarray:
        """The loss of each sequence on what can be copied."""
        where = np.asarray(copied_positions(ids, self.sizes.period))[:, 1:]
        return np.array(
            [row[on].mean() for row, on in zip(np.asarray(run.losses), where, strict=True)]
        )

    def losses(self, heads: Any, means: dict[str, Any] | None, texts: Any) -> dict[str, Any]:
        """Return losses by sequence and by text with some heads closed."""
        found: dict[str, list[Any]] = {"copied": [], "first copy": [], "text": []}
        for ids in self.repeats:
            run = self.plain(ids, heads, means and means["repeats"])
            found["copied"] += self.copied(run, ids).tolist()
            found["first copy"] += run.losses[:, : self.sizes.period - 1].mean(-1).tolist()
        for ids in texts:
            run = self.plain(ids, heads, means and means["text"])
            found["text"] += run.losses.mean(-1).tolist()
        return found

    def of_top(self, run: Run) -> np.ndarray:
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


def main(given: list[str] | None = None) -> Path:
    """Run the experiment and return the path of the stored result."""
    options = arguments(__doc__ or "", given)
    sizes = QUICK if options.quick else Sizes()
    command, start = COMMAND + (" --quick" if options.quick else ""), time.process_time()
    model = first_layers(smollm2.load_smollm2(), sizes.layers)
    data = ROOT / "book" / "data"
    stored = json.loads((data / "heads.json").read_text(encoding="utf8"))
    top = np.array([[1, 0], [1, 3]]) if options.quick else np.array(stored["induction"]["top"])
    bench = Bench(model, top, sizes)

    def kept(name: str, compute: Callable[[], Any]) -> Any:
        found = once(options.work / f"heads-in-use-{name}.json", [sizes, top.tolist()], compute, 6)
        print(f"{name}: {time.process_time() - start:.0f} s of processor time", flush=True)
        return found

    length = bench.length
    of_training = windows(model, "train", sizes.batch, length)
    means = {
        "repeats": bench.plain(sequences(model.config, 13, sizes)).outputs,
        "text": bench.plain(of_training).outputs,
    }
    texts = bench.texts()
    others = controls(top, bench.shape, sizes.draws, seed=1)
    document: dict[str, Any] = {"config": sizes._asdict(), "top": top, "controls": others}
    document["closed"] = {
        "whole": kept("whole", lambda: bench.losses((), None, texts)),
        "zero": kept("zero", lambda: bench.losses(top, None, texts)),
        "mean": kept("mean", lambda: bench.losses(top, means, texts)),
        "zero controls": [
            kept(f"zero-{n}", lambda heads=heads: bench.losses(heads, None, texts))
            for n, heads in enumerate(others)
        ],
        "mean controls": [
            kept(f"mean-{n}", lambda heads=heads: bench.losses(heads, means, texts))
            for n, heads in enumerate(others)
        ],
    }

    table = read_table(data / "heads-smollm2.csv")
    previous = np.asarray(table["previous"]).reshape(-1, model.config.num_heads)[: sizes.layers]
    back, drawn = senders(previous, int(top[:, 0].min()), sizes)
    document["senders"] = {"looking back": back, "others": drawn}
    of_repeats, ids = means["repeats"], bench.repeats[0]

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
        "looking back": [
            kept(f"back-{n}", lambda head=head: routes_from(bench, [head], of_repeats, ROUTES))
            for n, head in enumerate(back)
        ],
        "together": kept("together", lambda: routes_from(bench, back, of_repeats, ROUTES)),
        "others": [
            kept(f"other-{n}", lambda head=head: routes_from(bench, [head], of_repeats, ("keys",)))
            for n, head in enumerate(drawn)
        ],
        "others together": kept(
            "others-together",
            lambda: routes_from(bench, drawn[: len(back)], of_repeats, ("keys",)),
        ),
    }

    def without_training() -> dict[str, Any]:
        bench.model = model._replace(params=untrained(model.params, 3))
        chosen = np.asarray(bench.plain(sequences(model.config, 14, sizes)).scores).mean(-1)
        run = bench.plain(ids)
        bench.model = model
        best = np.unravel_index(np.argsort(-chosen.ravel())[: len(top)], chosen.shape)
        pattern = prefix_matching(visible_pairs(causal(), *ids.shape), ids)
        rows = np.flatnonzero(np.asarray(pattern.counted)[0])
        scores = np.asarray(run.scores)
        return {
            "best": scores[best],
            "even": float(np.mean(1 / (rows + 1))),
            "top": bench.of_top(run),
        }

    document["untrained"] = kept("untrained", without_training)
    path = options.out / "heads-in-use.json"
    document["processor seconds"] = time.process_time() - start
    store(path, command, document, digits=5, seeds=SEEDS, inputs=INPUTS)
    return path


if __name__ == "__main__":
    main()
