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

from mha_book._checks import as_key, check, check_floating, check_size, check_type, checked, widen
from mha_book.specialization.patterns import (
    Pattern,
    at_offset,
    distance,
    in_window,
    normalized_entropy,
    on_duplicate_token,
    on_first_token,
    on_keys,
    prefix_matching,
    uniform_weights,
)

__all__ = ["MEASURES", "MeasureSums", "add_texts", "measure_heads", "text_patterns"]


class Measure(NamedTuple):
    """What a measure is, in words, its unit, its least and its greatest value."""

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


class MeasureSums(NamedTuple):
    """Sums of one measure; a pytree that adds up over texts.

    Args:
        total: ``(…, L, N)``, the sum over counted rows, for each head.
        baseline: ``(…)``, the same of a head that attends evenly.
        rows: ``(…)``, how many rows count.

    Example:
        >>> sums = MeasureSums(jnp.array([[6.0]]), jnp.array(4.0), jnp.array(8.0))
        >>> sums.mean.item(), sums.baseline_mean.item(), sums.above_chance.item()
        (0.75, 0.5, 0.5)
    """

    total: Array
    baseline: Array
    rows: Array

    @property
    def mean(self) -> Float[Array, "*texts L N"]:
        """The measure of every head, ``(…, L, N)``; NaN where no row counts."""
        return self.total / self.rows[..., None, None]

    @property
    def baseline_mean(self) -> Float[Array, "*texts"]:
        """The measure of a head that attends evenly, on the same rows, ``(…)``."""
        return self.baseline / self.rows

    @property
    def above_chance(self) -> Float[Array, "*texts L N"]:
        r"""The chance-corrected measure, $(m^h - m_0) / (1 - m_0)$ with $m_0$ the baseline.

        0 at the baseline, 1 at the greatest value, negative below the baseline; for measures whose
        greatest value is 1 (Cohen, A coefficient of agreement for nominal scales, 1960).
        """
        baseline = self.baseline_mean[..., None, None]
        return (self.mean - baseline) / (1 - baseline)

    def resampled(self, rng_key: Key[Array, ""], draws: int = 1000) -> "MeasureSums":
        """Return the sums of texts drawn anew with replacement, for bootstrap intervals.

        The leading axis of texts becomes one of ``draws``, each of as many texts. With the same key
        the same texts are drawn for every measure.
        """
        rng_key = as_key(rng_key)
        check_size(draws, "draws")
        check(self.rows.ndim == 1, "sums", "one axis of texts", f"rows {self.rows.shape}")
        texts = self.rows.shape[0]
        drawn = jax.random.randint(rng_key, (draws, texts), 0, texts)
        times = jnp.zeros((draws, texts)).at[jnp.arange(draws)[:, None], drawn].add(1)
        return MeasureSums(*(jnp.tensordot(times, x, 1) for x in self))


@checked
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
        "induction": prefix_matching(visible, token_ids),
        "distance": distance(visible),
    }
    return patterns if special is None else {**patterns, "special": on_keys(visible, special)}


@checked
def measure_heads(
    weights: Sequence[Float[Array, "B N T S"]],
    visible: Bool[Array, "B T S"],
    patterns: Mapping[str, Pattern],
) -> dict[str, MeasureSums]:
    """Return the sums of each text, for all heads of all layers.

    Inside one jitted function with the model's forward pass, the weights of a layer are used up
    before those of the next are there. For the running sum over texts see :func:`add_texts`.

    Args:
        weights: of each layer, ``(B, N, T, S)``; half precision is summed up in float32.
        visible: ``(B, T, S)``.
        patterns: what to measure, by name; "entropy" is measured too.

    Returns:
        Sums by name, with a leading axis ``B``.

    Example:
        >>> visible = jnp.ones((1, 4, 4), bool)
        >>> found = measure_heads([uniform_weights(visible)], visible, {"mean": distance(visible)})
        >>> add_texts(found)["mean"].mean.tolist()
        [[1.25]]
    """
    is_list = isinstance(weights, (list, tuple)) and len(weights) > 0
    got = f"shape {weights.shape}" if hasattr(weights, "shape") else repr(weights)
    check(is_list, "weights", "a list of arrays (B, N, T, S), one for each layer", got)
    for layer in weights:
        check_floating(layer, "weights")
    shapes = sorted({np.shape(layer) for layer in weights})
    batch, queries, keys = visible.shape
    what = f"for each layer axes (B, N, T, S) = ({batch}, N, {queries}, {keys}), N the same"
    fits = len(shapes) == 1 and (shapes[0][:1], shapes[0][2:]) == ((batch,), (queries, keys))
    check(fits, "weights", what, f"shapes {shapes}")
    check_type(patterns, "patterns", Mapping, "of Pattern by name")
    check(len(patterns) > 0, "patterns", "at least one", "none")
    check("entropy" not in patterns, "patterns", "a name other than that of entropy", "'entropy'")
    for name, pattern in patterns.items():
        check_type(pattern, f"patterns[{name!r}]", Pattern, "as on_target gives one")
        what = f"axes (B, T, S) = {visible.shape}"
        fits = pattern.score.shape == visible.shape
        check(fits, f"patterns[{name!r}]", what, pattern.score.shape)
    names = list(patterns)
    score = jnp.stack([pattern.score for pattern in patterns.values()], 1)  # (B, M, T, S)
    counted = jnp.stack([pattern.counted for pattern in patterns.values()], 1)  # (B, M, T)
    rows = jnp.where(counted[..., None], score, 0.0)

    def of_layer(layer: Array) -> Array:  # (B, N, T, S) -> (B, M + 1, N)
        entropy = normalized_entropy(layer, visible)[0].sum(-1)
        wide = widen(layer)
        linear = jnp.einsum("bnts,bmts->bmn", wide, rows.astype(wide.dtype))
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
    """Add up sums over their leading axis of texts, and add those of earlier texts, ``before``."""
    _check_named(sums)
    total: dict[str, MeasureSums] = jax.tree.map(lambda x: x.sum(0), sums)
    if before is not None:
        total = jax.tree.map(jnp.add, before, total)
    return total


def head_table(sums: Mapping[str, MeasureSums]) -> dict[str, np.ndarray]:
    """Return one row for each head, for :func:`mha_book.storage.write_table`.

    The columns are "layer", "head", and for each measure, summed over texts, its value and, under
    "… (uninformed)", its baseline.

    Example:
        >>> sums = MeasureSums(jnp.array([[6.0, 4.0]]), jnp.array(2.0), jnp.array(4.0))
        >>> {name: column.tolist() for name, column in head_table({"x": sums}).items()}
        {'layer': [0, 0], 'head': [0, 1], 'x': [1.5, 1.0], 'x (uninformed)': [0.5, 0.5]}
    """
    _check_named(sums)
    check(len(sums) > 0, "sums", "at least one measure", "none")
    shape = next(iter(sums.values())).total.shape
    check(len(shape) == 2, "sums", "summed over texts, axes (L, N)", f"shape {shape}")
    layer, head = (index.ravel() for index in np.indices(shape))
    columns: dict[str, Any] = {"layer": layer, "head": head}
    for name, of_one in sums.items():
        even = f"{name} (uninformed)"
        is_new = name not in columns and even not in columns
        check(is_new, "sums", "names of columns that differ from each other", repr(name))
        columns[name] = np.asarray(of_one.mean).ravel()
        columns[even] = np.full(layer.shape, of_one.baseline_mean)
    return columns


def _check_named(sums: Mapping[str, MeasureSums]) -> None:
    check_type(sums, "sums", Mapping, "of MeasureSums by name")
    for name, of_one in sums.items():
        check_type(of_one, f"sums[{name!r}]", MeasureSums)
