"""Measures of all heads of a model by name, summed over texts in constant memory.

What is kept of each text is, for every measure, three things: the sum over its counted rows for
each head, the same for a head that attends evenly, and the number of these rows. Sums over texts
add up, so that a mean over any number of tokens needs one such sum. Kept text by text, they give
intervals by resampling texts.

Shapes: ``B`` texts, ``L`` layers, ``N`` heads, ``T`` queries, ``S`` keys.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from mha_book._checks import as_key, check, check_floating, check_share, check_size, check_type
from mha_book.specialization.patterns import (
    Pattern,
    at_offset,
    check_pairs,
    distance,
    in_window,
    normalized_entropy,
    on_duplicate_token,
    on_first_token,
    on_induction_target,
    on_keys,
    uniform_weights,
)

__all__ = [
    "MEASURES",
    "Measure",
    "MeasureSums",
    "above_chance",
    "add_texts",
    "baseline_mean",
    "bootstrap_interval",
    "bootstrap_samples",
    "head_table",
    "mean",
    "measure_heads",
    "text_patterns",
]


class Measure(NamedTuple):
    """What a measure is.

    Args:
        meaning: in words.
        unit: of its values.
        lowest: the least value.
        highest: the greatest, as text where it depends on the length.
    """

    meaning: str
    unit: str
    lowest: float
    highest: float | str


MEASURES = {
    "previous": Measure("attention on the token before", "share", 0.0, 1.0),
    "self": Measure("attention on the token itself", "share", 0.0, 1.0),
    "next": Measure("attention on the token after", "share", 0.0, 1.0),
    "first": Measure("attention on the first token", "share", 0.0, 1.0),
    "special": Measure("attention on flagged tokens", "share", 0.0, 1.0),
    "local": Measure("attention within the window", "share", 0.0, 1.0),
    "same token": Measure("attention on the same token elsewhere", "share", 0.0, 1.0),
    "induction": Measure("attention on what followed the same token", "share", 0.0, 1.0),
    "distance": Measure("mean distance attended over", "tokens", 0.0, "length - 1"),
    "entropy": Measure("entropy over the greatest possible", "share", 0.0, 1.0),
}
"""The measures of :func:`text_patterns` and the entropy, by name."""


def text_patterns(
    visible: Bool[Array, "B T T"],
    token_ids: Int[Array, "B T"],
    special: Bool[Array, "B T"] | None = None,
    window: int = 4,
) -> dict[str, Pattern]:
    """Return the patterns of :data:`MEASURES` for texts; entropy is measured beside them.

    Args:
        visible: ``(B, T, T)``, see :func:`~mha_book.specialization.patterns.visible_pairs`.
        token_ids: ``(B, T)``.
        special: ``(B, T)``, the tokens that "special" is about; None to leave it out.
        window: how far the local window reaches, in tokens.

    Returns:
        Patterns by name. For a causal model no row counts for "next".

    Example:
        >>> pairs = jnp.ones((1, 3, 3), bool)
        >>> sorted(text_patterns(pairs, jnp.array([[1, 2, 3]])))[:3]
        ['distance', 'first', 'induction']
    """
    patterns = {
        "previous": at_offset(visible, -1),
        "self": at_offset(visible, 0),
        "next": at_offset(visible, 1),
        "first": on_first_token(visible),
        "local": in_window(visible, window),
        "same token": on_duplicate_token(visible, token_ids),
        "induction": on_induction_target(visible, token_ids),
        "distance": distance(visible),
    }
    return patterns if special is None else {**patterns, "special": on_keys(visible, special)}


class MeasureSums(NamedTuple):
    """Sums of one measure; a pytree that adds up over texts.

    Args:
        total: ``(…, L, N)``, the sum over counted rows, for each head.
        baseline: ``(…)``, the same of a head that attends evenly.
        rows: ``(…)``, how many rows count.
    """

    total: Array
    baseline: Array
    rows: Array


def measure_heads(
    weights: Sequence[Float[Array, "B N T S"]],
    visible: Bool[Array, "B T S"],
    patterns: Mapping[str, Pattern],
) -> dict[str, MeasureSums]:
    """Return the sums of each text, for all heads of all layers.

    Inside one jitted function with the model's forward pass, the weights of a layer are used up
    before those of the next are there. For the running sum over texts see :func:`add_texts`.

    Args:
        weights: of each layer, ``(B, N, T, S)``.
        visible: ``(B, T, S)``.
        patterns: what to measure, by name; "entropy" is measured too.

    Returns:
        Sums by name, with a leading axis ``B``.

    Raises:
        ValueError: the layers have different shapes, or the axes do not fit the patterns.

    Example:
        >>> visible = jnp.ones((1, 4, 4), bool)
        >>> found = measure_heads([uniform_weights(visible)], visible, {"mean": distance(visible)})
        >>> mean(add_texts(found)["mean"]).tolist()
        [[1.25]]
    """
    check_pairs(visible)
    what = "a list of arrays (B, N, T, S), one for each layer"
    is_list = isinstance(weights, (list, tuple)) and len(weights) > 0
    got = f"shape {weights.shape}" if hasattr(weights, "shape") else repr(weights)
    check(is_list, "weights", what, got)
    for layer in weights:
        check_floating(layer, "weights")
    shapes = {tuple(layer.shape) for layer in weights}
    batch, queries, keys = visible.shape
    fits = len(shapes) == 1 and all((s[0], *s[2:]) == (batch, queries, keys) for s in shapes)
    what = f"for each layer axes (B, N, T, S) = ({batch}, N, {queries}, {keys}), N the same"
    check(fits, "weights", what, f"shapes {sorted(shapes)}")
    names = list(patterns)
    score = jnp.stack([patterns[name].score for name in names], 1)  # (B, M, T, S)
    counted = jnp.stack([patterns[name].counted for name in names], 1)  # (B, M, T)
    rows = jnp.where(counted[..., None], score, 0.0)

    def of_layer(layer: Array) -> Array:  # (B, N, T, S) -> (B, M + 1, N)
        linear = jnp.einsum("bnts,bmts->bmn", layer.astype(jnp.float32), rows)
        entropy = normalized_entropy(layer.astype(jnp.float32), visible)[0].sum(-1)
        return jnp.concatenate([linear, entropy[:, None]], 1)

    total = jnp.stack([of_layer(layer) for layer in weights], 2)  # (B, M + 1, L, N)
    baseline = of_layer(uniform_weights(visible))[..., 0]  # (B, M + 1)
    several = visible.sum(-1) > 1
    count = jnp.concatenate([counted, several[:, None]], 1).sum(-1).astype(jnp.float32)
    return {
        name: MeasureSums(total[:, m], baseline[:, m], count[:, m])
        for m, name in enumerate([*names, "entropy"])
    }


def add_texts(
    sums: dict[str, MeasureSums], before: dict[str, MeasureSums] | None = None
) -> dict[str, MeasureSums]:
    """Add up the sums of texts, and add them to those of earlier texts.

    Args:
        sums: by name, with a leading axis of texts.
        before: a sum that this function returned; None at the start.

    Returns:
        Sums by name, without that axis.

    Example:
        >>> sums = MeasureSums(jnp.ones((2, 1, 1)), jnp.ones(2), jnp.ones(2))
        >>> add_texts({"x": sums}, add_texts({"x": sums}))["x"].rows.item()
        4.0
    """
    check_type(sums, "sums", (Mapping, MeasureSums), "of MeasureSums by name")
    if isinstance(sums, Mapping):
        for name, measure in sums.items():
            check_type(measure, f"sums[{name!r}]", MeasureSums)
    total: dict[str, MeasureSums] = jax.tree.map(lambda x: x.sum(0), sums)
    if before is not None:
        total = jax.tree.map(jnp.add, before, total)
    return total


def mean(sums: MeasureSums) -> Float[Array, "*texts L N"]:
    """Return the measure of every head; NaN where no row counts.

    Args:
        sums: of one measure.

    Returns:
        ``(…, L, N)``.

    Example:
        >>> mean(MeasureSums(jnp.array([[6.0]]), jnp.array(2.0), jnp.array(4.0))).tolist()
        [[1.5]]
    """
    _check_sums(sums)
    return sums.total / sums.rows[..., None, None]


def baseline_mean(sums: MeasureSums) -> Float[Array, "*texts"]:
    """Return the measure of a head that attends evenly, on the same rows.

    Args:
        sums: of one measure.

    Returns:
        ``(…)``.

    Example:
        >>> baseline_mean(MeasureSums(jnp.array([[6.0]]), jnp.array(2.0), jnp.array(4.0))).item()
        0.5
    """
    _check_sums(sums)
    return sums.baseline / sums.rows


def above_chance(sums: MeasureSums) -> Float[Array, "*texts L N"]:
    r"""Return how far each head is from the baseline towards the greatest value, chance-corrected.

    $(m^h - m_0) / (1 - m_0)$ with $m^h$ the measure and $m_0$ its baseline, for measures whose
    greatest value is 1.

    Args:
        sums: of one measure.

    Returns:
        ``(…, L, N)``: 0 at the baseline, 1 at the greatest value, negative below the baseline.

    References:
        Cohen, A coefficient of agreement for nominal scales, 1960.

    Example:
        >>> above_chance(MeasureSums(jnp.array([[6.0]]), jnp.array(4.0), jnp.array(8.0))).item()
        0.5
    """
    baseline = baseline_mean(sums)[..., None, None]
    return (mean(sums) - baseline) / (1 - baseline)


def bootstrap_interval(
    sums: MeasureSums, rng_key: Key[Array, ""], draws: int = 1000, level: float = 0.95
) -> Float[Array, "2 L N"]:
    """Return an interval for the measure of every head, by drawing texts anew with replacement.

    Args:
        sums: of one measure, with a leading axis of texts.
        rng_key: PRNG key.
        draws: how many sets of texts are drawn.
        level: the share of draws inside the interval.

    Returns:
        ``(2, L, N)``, the lower and the upper end.

    Raises:
        ValueError: the sums have no axis of texts, or ``level`` is not between 0 and 1.

    References:
        Efron and Tibshirani, An introduction to the bootstrap, 1993.

    Example:
        >>> sums = MeasureSums(jnp.ones((5, 1, 1)), jnp.ones(5), jnp.full(5, 2.0))
        >>> jax.jit(bootstrap_interval)(sums, jax.random.key(0)).tolist()
        [[[0.5]], [[0.5]]]
    """
    check_share(level, "level")
    means = mean(bootstrap_samples(sums, rng_key, draws))
    return jnp.quantile(means, jnp.array([(1 - level) / 2, (1 + level) / 2]), axis=0)


def bootstrap_samples(sums: MeasureSums, rng_key: Key[Array, ""], draws: int = 1000) -> MeasureSums:
    """Return the sums of texts drawn anew with replacement, for intervals of what follows.

    With the same key the same texts are drawn for every measure.

    Args:
        sums: of one measure, with a leading axis of texts.
        rng_key: PRNG key.
        draws: how often as many texts are drawn.

    Returns:
        Sums with a leading axis of draws in the place of the texts.

    Raises:
        ValueError: the sums have no axis of texts.

    Example:
        >>> sums = MeasureSums(jnp.ones((5, 1, 1)), jnp.ones(5), jnp.full(5, 2.0))
        >>> jax.jit(bootstrap_samples, static_argnums=2)(sums, jax.random.key(0), 3).rows.tolist()
        [10.0, 10.0, 10.0]
    """
    _check_sums(sums)
    rng_key = as_key(rng_key)
    check_size(draws, "draws")
    check(sums.rows.ndim == 1, "sums", "one axis of texts", f"rows {sums.rows.shape}")
    texts = sums.rows.shape[0]
    drawn = jax.random.randint(rng_key, (draws, texts), 0, texts)
    times = jax.nn.one_hot(drawn, texts).sum(1)  # (draws, texts): how often each was drawn
    drawn_sums: MeasureSums = jax.tree.map(lambda x: jnp.tensordot(times, x, 1), sums)
    return drawn_sums


def head_table(sums: Mapping[str, MeasureSums]) -> dict[str, np.ndarray]:
    """Return one row for each head, for :func:`mha_book.storage.write_table`.

    Args:
        sums: by name, summed over texts.

    Returns:
        Columns by name: "layer", "head", and for each measure its value and, under
        "… (uninformed)", its baseline.

    Example:
        >>> sums = MeasureSums(jnp.array([[6.0, 4.0]]), jnp.array(2.0), jnp.array(4.0))
        >>> {name: column.tolist() for name, column in head_table({"x": sums}).items()}
        {'layer': [0, 0], 'head': [0, 1], 'x': [1.5, 1.0], 'x (uninformed)': [0.5, 0.5]}
    """
    check_type(sums, "sums", Mapping, "of MeasureSums by name")
    check(len(sums) > 0, "sums", "at least one measure", "none")
    shape = next(iter(sums.values())).total.shape
    check(len(shape) == 2, "sums", "summed over texts, axes (L, N)", f"shape {shape}")
    layer, head = (index.ravel() for index in np.indices(shape))
    columns: dict[str, Any] = {"layer": layer, "head": head}
    for name, of_one in sums.items():
        columns[name] = np.asarray(mean(of_one)).ravel()
        columns[f"{name} (uninformed)"] = np.full(layer.shape, baseline_mean(of_one))
    return columns


def _check_sums(sums: MeasureSums) -> None:
    check_type(sums, "sums", MeasureSums, "those of one measure")
