r"""The keys that each query may see, as an interval: what a structured mask says in O(T) numbers.

A mask without an array shows query $i$ the keys $j$ with $a_i \le j < b_i$. Both ends grow with
$i$, so that any run of queries sees one run of keys too; from these ends follow which blocks of
keys a block of queries needs, and which of them it sees whole.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from mha_book.masks import Mask

__all__ = ["Spans", "seen", "spans"]


class Spans(NamedTuple):
    """The keys of each query: ``start <= j < stop``; both are 0 where it sees none.

    Args:
        start: ``(*batch, T)``, the first key.
        stop: ``(*batch, T)``, one more than the last.
    """

    start: Int[Array, "*batch T"]
    stop: Int[Array, "*batch T"]


def spans(mask: Mask | None, batch: tuple[int, ...], query_length: int, key_length: int) -> Spans:
    """Return the interval of keys that each query may see; the mask's array is not looked at.

    Args:
        mask: a structured mask, checked by :func:`~mha_book.visibility.as_mask`, or None.
        batch: the batch axes of the operands.
        query_length: ``T``.
        key_length: ``S``.

    Returns:
        Arrays ``(*batch, T)``.

    Example:
        >>> from mha_book.masks import causal
        >>> spans(causal(-1), (), 3, 3).stop.tolist()  # the first query sees nothing
        [0, 1, 2]
    """
    mask = Mask() if mask is None else mask
    i = _positions(query_length, len(batch))

    def by_row(field: Any, default: int) -> Array:
        field = jnp.asarray(default if field is None else field, jnp.int32)
        return jnp.reshape(field, field.shape or (1,) * len(batch))[..., None]

    start = jnp.zeros((*batch, query_length), jnp.int32)
    stop = start + key_length
    if mask.lower is not None:
        start = jnp.maximum(start, i + by_row(mask.lower, 0))
    if mask.upper is not None:
        stop = jnp.minimum(stop, i + by_row(mask.upper, 0) + 1)
    stop = jnp.minimum(stop, by_row(mask.key_lengths, key_length))
    sees = jnp.logical_and(start < stop, i < by_row(mask.query_lengths, query_length))
    return Spans(jnp.where(sees, start, 0), jnp.where(sees, stop, 0))


def seen(rows: Spans, key_length: int) -> Bool[Array, "*batch S"]:
    """Return which keys some query sees.

    Args:
        rows: what :func:`spans` gave: intervals whose ends grow with the row.
        key_length: ``S``.

    Returns:
        ``(*batch, S)``.

    Example:
        >>> from mha_book.masks import sliding_window
        >>> seen(spans(sliding_window(0, 0), (), 2, 3), 3).tolist()
        [True, True, False]
    """
    sees = rows.start < rows.stop
    first = jnp.min(jnp.where(sees, rows.start, key_length), axis=-1, keepdims=True)
    last = jnp.max(rows.stop, axis=-1, keepdims=True)
    j = _positions(key_length, first.ndim - 1)
    return jnp.logical_and(first <= j, j < last)


def _positions(length: int, batch_axes: int) -> Array:
    """Return 0, 1, …, with an axis of length 1 for each batch axis."""
    return jnp.reshape(jnp.arange(length, dtype=jnp.int32), (1,) * batch_axes + (length,))
