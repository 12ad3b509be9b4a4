r"""Measures of all heads of a model, summed over texts in constant memory.

What is kept of each text is, for every measure, the sum over its counted rows for each head and for
the uninformed head, and their number. Sums over texts add up, so that a mean over any number of
tokens needs one such tally; kept text by text, they give intervals by resampling texts.

Shapes: ``B`` texts, ``L`` layers, ``N`` heads, ``T`` queries, ``S`` keys.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from mha_book._checks import check
from mha_book.specialization.patterns import (
    Pattern,
    entropy_rows,
    uniform_weights,
)

__all__ = [
    "MeasureSums",
    "add_texts",
    "bootstrap",
    "above_chance",
    "head_table",
    "mean",
    "measure_heads",
    "baseline_mean",
    "resampled",
]


class MeasureSums(NamedTuple):
    """Sums of one measure; a pytree that adds up over texts.

    Args:
        total: ``(…, L, N)``, the sum over counted rows, for each head.
        null: ``(…)``, the same of the uninformed head.
        rows: ``(…)``, how many rows count.
    """

    total: Array
    null: Array
    rows: Array


def measure_heads(
    weights: Sequence[Float[Array, "B N T S"]],
    visible: Bool[Array, "B T S"],
    patterns: Mapping[str, Pattern],
) -> dict[str, MeasureSums]:
    """Return the tallies of each text, for all heads of all layers.

    Inside one jitted function with the model's forward pass, the weights of a layer are used up
    before those of the next are there. For the running sum over texts see :func:`add_texts`.

    Args:
        weights: of each layer, ``(B, N, T, S)``.
        visible: ``(B, T, S)``.
        patterns: what to measure, by name; "entropy" is measured too.

    Returns:
        By name tallies with a leading axis ``B``.

    Raises:
        ValueError: the layers have different shapes, or the axes do not fit the patterns.

    Example:
        >>> from mha_book.specialization.patterns import distance
        >>> visible = jnp.ones((1, 4, 4), bool)
        >>> found = measure_heads([uniform_weights(visible)], visible, {"mean": distance(visible)})
        >>> mean(add_texts(found)["mean"]).tolist()
        [[1.25]]
    """
    shapes = {tuple(layer.shape) for layer in weights}
    batch, queries, keys = visible.shape
    fits = len(shapes) == 1 and all((s[0], *s[2:]) == (batch, queries, keys) for s in shapes)
    what = f"for each layer axes (B, N, T, S) = ({batch}, N, {queries}, {keys}), N the same"
    check(fits, "weights", what, f"shapes {sorted(shapes)}")
    names = list(patterns)
    score = jnp.stack([patterns[name].score for name in names], 1)  # (B, M, T, S)
    counted = jnp.stack([patterns[name].counted for name in names], 1)  # (B, M, T)
    rows = jnp.where(counted[..., None], score, 0.0)

    def sums(layer: Array) -> Array:  # (B, N, T, S) -> (B, M + 1, N)
        linear = jnp.einsum("bnts,bmts->bmn", layer.astype(jnp.float32), rows)
        entropy = entropy_rows(layer.astype(jnp.float32), visible)[0].sum(-1)
        return jnp.concatenate([linear, entropy[:, None]], 1)

    total = jnp.stack([sums(layer) for layer in weights], 2)  # (B, M + 1, L, N)
    null = sums(uniform_weights(visible))[..., 0]  # (B, M + 1)
    several = visible.sum(-1) > 1
    count = jnp.concatenate([counted, several[:, None]], 1).sum(-1).astype(jnp.float32)
    return {
        name: MeasureSums(total[:, m], null[:, m], count[:, m])
        for m, name in enumerate([*names, "entropy"])
    }


def add_texts(
    tallies: dict[str, MeasureSums], before: dict[str, MeasureSums] | None = None
) -> dict[str, MeasureSums]:
    """Add the tallies of texts up, and to those of earlier texts.

    Args:
        tallies: by name, with a leading axis of texts.
        before: a sum that this function returned; None at the start.

    Returns:
        By name tallies without that axis.

    Example:
        >>> tally = MeasureSums(jnp.ones((2, 1, 1)), jnp.ones(2), jnp.ones(2))
        >>> add_texts({"x": tally}, add_texts({"x": tally}))["x"].rows.item()
        4.0
    """
    summed = jax.tree.map(lambda x: x.sum(0), tallies)
    return summed if before is None else jax.tree.map(jnp.add, before, summed)


def mean(tally: MeasureSums) -> Float[Array, "*texts L N"]:
    """Return the measure of every head; NaN where no row counts.

    Args:
        tally: of one measure.

    Returns:
        ``(…, L, N)``.

    Example:
        >>> mean(MeasureSums(jnp.array([[6.0]]), jnp.array(2.0), jnp.array(4.0))).tolist()
        [[1.5]]
    """
    return tally.total / tally.rows[..., None, None]


def baseline_mean(tally: MeasureSums) -> Float[Array, "*texts"]:
    """Return the measure of the uninformed head on the same rows.

    Args:
        tally: of one measure.

    Returns:
        ``(…)``.

    Example:
        >>> baseline_mean(MeasureSums(jnp.array([[6.0]]), jnp.array(2.0), jnp.array(4.0))).item()
        0.5
    """
    return tally.null / tally.rows


def above_chance(tally: MeasureSums) -> Float[Array, "*texts L N"]:
    r"""Return how far each head is from the uninformed towards one with all its attention there.

    $(m^h - m_0) / (1 - m_0)$ with $m^h$ the measure and $m_0$ its null value, for measures whose
    greatest value is 1.

    Args:
        tally: of one measure.

    Returns:
        ``(…, L, N)``: 0 for the uninformed head, 1 for the greatest value, negative below the null.

    References:
        Cohen, A coefficient of agreement for nominal scales, 1960.

    Example:
        >>> above_chance(MeasureSums(jnp.array([[6.0]]), jnp.array(4.0), jnp.array(8.0))).item()
        0.5
    """
    null = baseline_mean(tally)[..., None, None]
    return (mean(tally) - null) / (1 - null)


def bootstrap(
    tally: MeasureSums, rng_key: Key[Array, ""], draws: int = 1000, level: float = 0.95
) -> Float[Array, "2 L N"]:
    """Return an interval for the measure of every head, by drawing texts anew with replacement.

    Args:
        tally: of one measure, with a leading axis of texts.
        rng_key: PRNG key.
        draws: how many sets of texts are drawn.
        level: the share of draws inside the interval.

    Returns:
        ``(2, L, N)``, the lower and the upper end.

    Raises:
        ValueError: the tally has no axis of texts, or ``level`` is not between 0 and 1.

    References:
        Efron and Tibshirani, An introduction to the bootstrap, 1993.

    Example:
        >>> tally = MeasureSums(jnp.ones((5, 1, 1)), jnp.ones(5), jnp.full(5, 2.0))
        >>> jax.jit(bootstrap)(tally, jax.random.key(0)).tolist()
        [[[0.5]], [[0.5]]]
    """
    check(0 < level < 1, "level", "a number between 0 and 1", level)
    means = mean(resampled(tally, rng_key, draws))
    return jnp.quantile(means, jnp.array([(1 - level) / 2, (1 + level) / 2]), axis=0)


def resampled(tally: MeasureSums, rng_key: Key[Array, ""], draws: int = 1000) -> MeasureSums:
    """Return the tallies of texts drawn anew with replacement, for intervals of what follows.

    With the same key the same texts are drawn for every measure.

    Args:
        tally: of one measure, with a leading axis of texts.
        rng_key: PRNG key.
        draws: how often as many texts are drawn.

    Returns:
        A tally with a leading axis of draws in the place of the texts.

    Raises:
        ValueError: the tally has no axis of texts.

    Example:
        >>> tally = MeasureSums(jnp.ones((5, 1, 1)), jnp.ones(5), jnp.full(5, 2.0))
        >>> jax.jit(resampled, static_argnums=2)(tally, jax.random.key(0), 3).rows.tolist()
        [10.0, 10.0, 10.0]
    """
    check(tally.rows.ndim == 1, "tally", "one axis of texts", f"rows {tally.rows.shape}")
    texts = tally.rows.shape[0]
    drawn = jax.random.randint(rng_key, (draws, texts), 0, texts)
    times = jax.nn.one_hot(drawn, texts).sum(1)  # (draws, texts): how often each was drawn
    return jax.tree.map(lambda x: jnp.tensordot(times, x, 1), tally)


def head_table(tallies: Mapping[str, MeasureSums]) -> dict[str, np.ndarray]:
    """Return one row for each head, for :func:`mha_book.storage.write_table`.

    Args:
        tallies: by name, summed over texts.

    Returns:
        Columns by name: "layer", "head", and for each measure its value and, under
        "… (uninformed)", the null value.

    Example:
        >>> tally = MeasureSums(jnp.array([[6.0, 4.0]]), jnp.array(2.0), jnp.array(4.0))
        >>> {name: column.tolist() for name, column in head_table({"x": tally}).items()}
        {'layer': [0, 0], 'head': [0, 1], 'x': [1.5, 1.0], 'x (uninformed)': [0.5, 0.5]}
    """
    shape = next(iter(tallies.values())).total.shape
    check(len(shape) == 2, "tallies", "summed over texts, axes (L, N)", f"shape {shape}")
    layer, head = (index.ravel() for index in np.indices(shape))
    columns: dict[str, Any] = {"layer": layer, "head": head}
    for name, tally in tallies.items():
        columns[name] = np.asarray(mean(tally)).ravel()
        columns[f"{name} (uninformed)"] = np.full(layer.shape, baseline_mean(tally))
    return columns
