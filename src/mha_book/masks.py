"""Masks: which key each query may attend to, kept as structure until an array is needed.

Boolean throughout, True = attend. A query stands in row ``i`` of ``T``, a key in column ``j`` of
``S``. ``torch.nn.MultiheadAttention`` has the opposite polarity (True = do not attend).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Integer

from mha_book._checks import check, check_boolean

__all__ = ["Mask", "causal", "explicit", "padding", "sliding_window"]

# What the fields hold, and what else JAX puts there: it builds pytrees of whatever it likes (axes
# for vmap, shapes, tracers), so the fields are not checked; `as_mask` checks them on use.
_Bound = Any  # int | Int[Array, "*batch"] | None
_Lengths = Any  # Int[Array, "*batch"] | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Mask:
    r"""A mask as structure: a band on $j - i$, lengths and an array, all of which must hold.

    Query $i$ may attend to key $j$ if ``lower <= j - i <= upper``, ``j < key_lengths``,
    ``i < query_lengths`` and ``array`` is True there; a field that is None asks for nothing.
    Every field is a leaf of the pytree; a bound that is a plain Python integer lets an
    implementation specialise on it. Make a mask with :func:`causal`, :func:`sliding_window`,
    :func:`padding` or :func:`explicit`, and combine masks with ``&``.

    Args:
        lower: the least $j - i$ that is visible; an integer or an array of the batch axes.
        upper: the greatest $j - i$ that is visible; likewise.
        key_lengths: the number of real keys of each batch entry, shape of the batch axes.
        query_lengths: the number of real queries of each batch entry, shape of the batch axes.
        array: boolean, of the full rank of the scores, ``(…, N, T, S)``, each axis equal or 1.

    Example:
        >>> (causal() & sliding_window(1)).materialise(3, 3).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    lower: _Bound = None
    upper: _Bound = None
    key_lengths: _Lengths = None
    query_lengths: _Lengths = None
    array: Any = None  # Bool[Array, "..."] | None

    def __and__(self, other: "Mask") -> "Mask":
        """Return the mask that allows what both allow; two arrays must have one rank."""
        check(isinstance(other, Mask), "other (right of &)", "a Mask", repr(type(other)))
        if self.array is not None and other.array is not None:
            what = f"an array of rank {self.array.ndim}, as the left one has"
            got = f"rank {other.array.ndim}, shape {other.array.shape}"
            check(self.array.ndim == other.array.ndim, "other (right of &)", what, got)
        return Mask(
            lower=_both(self.lower, other.lower, max, jnp.maximum),
            upper=_both(self.upper, other.upper, min, jnp.minimum),
            key_lengths=_both(self.key_lengths, other.key_lengths, min, jnp.minimum),
            query_lengths=_both(self.query_lengths, other.query_lengths, min, jnp.minimum),
            array=_both(self.array, other.array, min, jnp.logical_and),
        )

    @property
    def parts(self) -> frozenset[str]:
        """The kinds of structure present.

        Of "causal" (``upper`` is the integer 0 and ``lower`` None), "band" (any other bound),
        "lengths" and "array".
        """
        is_causal = self.lower is None and isinstance(self.upper, int) and self.upper == 0
        present = {
            "causal": is_causal,
            "band": not is_causal and (self.lower is not None or self.upper is not None),
            "lengths": self.key_lengths is not None or self.query_lengths is not None,
            "array": self.array is not None,
        }
        return frozenset(name for name, is_present in present.items() if is_present)

    def materialise(self, query_length: int, key_length: int) -> Bool[Array, "..."]:
        """Return the mask as a boolean array that broadcasts against scores ``(…, N, T, S)``.

        Args:
            query_length: ``T``.
            key_length: ``S``.

        Returns:
            Boolean array: ``(T, S)`` for a mask without batch axes, ``(B, 1, T, S)`` where lengths
            or bounds differ by batch entry, the broadcast of ``array`` with these where it is set.
        """
        i = jnp.arange(query_length)[:, None]  # (T, 1)
        j = jnp.arange(key_length)[None, :]  # (1, S)
        visible = jnp.ones((query_length, key_length), bool)
        for position, holds, bound in (
            (j - i, jnp.greater_equal, self.lower),
            (j - i, jnp.less_equal, self.upper),
            (j, jnp.less, self.key_lengths),
            (i, jnp.less, self.query_lengths),
        ):
            if bound is not None:
                visible = _and(visible, holds(*_against(position, bound)))
        return visible if self.array is None else _and(visible, self.array)


def _both(
    mine: Any, theirs: Any, of_ints: Callable[..., int], of_arrays: Callable[..., Array]
) -> Any:
    """Combine two optional fields; two Python integers stay one."""
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    if isinstance(mine, int) and isinstance(theirs, int):
        return of_ints(mine, theirs)
    return of_arrays(mine, theirs)


def _against(position: Array, bound: _Bound) -> tuple[Array, Array]:
    """Give positions and a bound of the batch axes the axes ``(…, N, T, S)`` in one dtype."""
    bound = jnp.asarray(bound, position.dtype)
    if bound.ndim:
        bound = jnp.reshape(bound, (*bound.shape, 1, 1, 1))
        position = jnp.reshape(position, (1,) * (bound.ndim - 2) + position.shape)
    return position, bound


def _and(a: Bool[Array, "..."], b: Bool[Array, "..."]) -> Bool[Array, "..."]:
    """``a & b`` with leading axes added to the one of lower rank."""
    rank = max(a.ndim, b.ndim)
    a, b = (jnp.reshape(m, (1,) * (rank - m.ndim) + m.shape) for m in (a, b))
    return jnp.logical_and(a, b)


def _check_integers(value: object, name: str, what: str) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    is_array = hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.signedinteger)
    check(is_int or is_array, name, what, repr(getattr(value, "dtype", value)))


def causal(query_offset: int | Int[Array, "*batch"] = 0) -> Mask:
    r"""Let each query see its own position and earlier ones: $j \le i + \text{offset}$.

    Args:
        query_offset: the position of the first query in the sequence of the keys: the number of
            keys already in the cache when decoding. An integer, or an array of the batch axes.

    Returns:
        The mask.

    Raises:
        ValueError: ``query_offset`` is not an integer.

    Differs from:
        ``jax.nn.dot_product_attention(is_causal=True)``, which knows no offset: with one query and
        a cache of ``S`` keys it shows the query the first key alone.

    Example:
        >>> causal(query_offset=2).materialise(1, 4).tolist()
        [[True, True, True, False]]
    """
    _check_integers(query_offset, "query_offset", "an integer or an array of integers")
    return Mask(upper=query_offset)


def sliding_window(
    left: int | None, right: int | None = None, query_offset: int | Int[Array, "*batch"] = 0
) -> Mask:
    r"""Let each query see ``left`` keys before its own position and ``right`` keys after it.

    Args:
        left: keys visible before the query's own position; None for all of them.
        right: keys visible after it; None for all of them (combine with :func:`causal` for none).
        query_offset: the position of the first query in the sequence of the keys.

    Returns:
        The mask.

    Raises:
        ValueError: ``left`` or ``right`` is negative or not an integer.

    Example:
        >>> sliding_window(1, 0).materialise(3, 3).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    for name, value in (("left", left), ("right", right)):
        is_int = isinstance(value, int) and not isinstance(value, bool)
        ok = value is None or (is_int and value >= 0)
        check(ok, name, "a non-negative integer or None", repr(value))
    _check_integers(query_offset, "query_offset", "an integer or an array of integers")
    return Mask(
        lower=None if left is None else query_offset - left,
        upper=None if right is None else query_offset + right,
    )


def padding(
    key_lengths: Integer[Array, "*batch"], query_lengths: Integer[Array, "*batch"] | None = None
) -> Mask:
    """Hide the positions at and after each sequence's length.

    Args:
        key_lengths: the number of real keys of each batch entry, shape of the batch axes, ``(B,)``.
        query_lengths: the number of real queries; a padded query has an empty row, whose output and
            gradients are zero. None leaves padded queries alone.

    Returns:
        The mask.

    Raises:
        ValueError: a length is not an integer array.

    Example:
        >>> padding(jnp.array([1, 2])).materialise(1, 3).tolist()
        [[[[True, False, False]]], [[[True, True, False]]]]
    """
    for name, value in (("key_lengths", key_lengths), ("query_lengths", query_lengths)):
        if value is not None or name == "key_lengths":
            dtype = getattr(value, "dtype", None)
            ok = dtype is not None and jnp.issubdtype(dtype, jnp.integer)
            got = repr(value) if dtype is None else dtype
            check(ok, name, "an array of integers, one length a batch entry", got)
    return Mask(key_lengths=key_lengths, query_lengths=query_lengths)


def explicit(array: Bool[Array, "..."]) -> Mask:
    """Take a boolean array as it is, True = attend.

    Args:
        array: boolean, of the full rank of the scores, ``(…, N, T, S)``, each axis equal or 1.

    Returns:
        The mask.

    Raises:
        ValueError: ``array`` is not boolean (an additive mask is called ``bias``), or has fewer
            than two axes.

    Example:
        >>> explicit(jnp.array([[True, False]])).materialise(1, 2).tolist()
        [[True, False]]
    """
    check_boolean(array, "array", "a boolean array (an additive mask is a bias)")
    check(array.ndim >= 2, "array", "axes (…, N, T, S), that is rank 2 or more", array.shape)
    return Mask(array=array)
