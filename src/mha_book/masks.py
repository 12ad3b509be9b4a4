"""Masks: which key each query may attend to, kept as structure until an array is needed.

Boolean throughout, True = attend. A query stands in row ``i`` of ``T``, a key in column ``j`` of
``S``. ``torch.nn.MultiheadAttention`` has the opposite polarity (True = do not attend).

:func:`as_mask` makes one structure of what a caller gave, :func:`visibility` one array of that
structure and the bias, and :func:`zero_unattended` empties what nobody attends to.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Integer, Shaped

from mha_book._checks import (
    check,
    check_boolean,
    check_broadcastable,
    check_flag,
    check_integers,
    check_rank,
    check_shape,
    check_size,
    is_array,
)

__all__ = [
    "Mask",
    "array_mask",
    "causal",
    "padding",
    "segments",
    "sliding_window",
    "visibility",
]

FAR = 2**29
"""The farthest that a bound lies: what is farther hides as much, and sums of it would overflow."""

# What the fields hold, and what else JAX puts there: it builds pytrees of whatever it likes (axes
# for vmap, shapes, tracers), so the fields are not checked; `as_mask` checks them on use.
_Bound = Any  # int | Int[Array, "*batch"] | None
_Lengths = Any  # Int[Array, "*batch"] | None
_Segments = Any  # Int[Array, "*batch T"] | None


@dataclass(frozen=True, eq=False)
class Mask:
    r"""A mask as structure: a band on $j - i$, lengths, segments and an array; all must hold.

    Query $i$ may attend to key $j$ if ``lower <= j - i <= upper``, ``j < key_lengths``,
    ``i < query_lengths``, ``query_segments[i] == key_segments[j]`` and ``array`` is True there; a
    field that is None asks for nothing. Make a mask with :func:`causal`, :func:`sliding_window`,
    :func:`padding`, :func:`segments` or :func:`array_mask`, and combine masks with ``&``, ``|`` and
    ``~``; ``and``, ``or`` and ``not`` raise.

    A mask is a pytree. Arrays are its leaves; a bound that is an integer, Python's or NumPy's, is
    part of its structure, so that a mask that went through ``jit``, ``vmap`` or ``scan`` is still
    known to be causal; ``jax.tree.map(lambda leaf: 0, mask)`` gives ``in_axes`` of ``jax.vmap``.
    A mask without arrays compares and hashes; with arrays, both raise ``TypeError``.

    Args:
        lower: the least $j - i$ that is visible; an integer or an array of the batch axes.
        upper: the greatest $j - i$ that is visible; likewise.
        key_lengths: the number of real keys of each batch entry, shape of the batch axes.
        query_lengths: the number of real queries of each batch entry, shape of the batch axes.
        query_segments: the segment that each query belongs to, ``(…, T)``.
        key_segments: the segment that each key belongs to, ``(…, S)``.
        array: boolean, of the full rank of the scores, ``(…, N, T, S)``, each axis equal or 1.
        unions: what ``|`` and ``~`` made; it becomes an array where the mask is used.

    Example:
        >>> (causal() & sliding_window(2)).materialize(3, 3).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    lower: _Bound = None
    upper: _Bound = None
    key_lengths: _Lengths = None
    query_lengths: _Lengths = None
    query_segments: _Segments = None
    key_segments: _Segments = None
    array: Any = None  # Bool[Array, "..."] | None
    unions: tuple["_Union", ...] = ()

    __array_ufunc__ = None  # ``array & mask`` is for __rand__, not for NumPy entry by entry

    def __post_init__(self) -> None:
        for name in ("lower", "upper"):
            bound = getattr(self, name)
            is_number = isinstance(bound, (int, np.integer)) and not isinstance(bound, bool)
            if isinstance(bound, np.ndarray) and np.issubdtype(bound.dtype, np.integer):
                is_number = bound.ndim == 0
            if is_number:
                object.__setattr__(self, name, _near(bound))
            object.__setattr__(self, f"_{name}_is_static", is_number)

    def __eq__(self, other: object) -> bool:
        """Whether both are the same structure; arrays raise."""
        if not isinstance(other, Mask):
            return NotImplemented
        return self._structure("compared") == other._structure("compared")

    def __hash__(self) -> int:
        """Return the hash of the structure; arrays raise."""
        return hash(self._structure("hashed"))

    def _structure(self, done: str) -> Any:
        leaves, structure = jax.tree.flatten(self)
        if leaves:
            raise TypeError(
                f"mask: expected a mask without arrays to be {done}; got one with {len(leaves)}: "
                "compare what its materialize(T, S) returns, and pass it to jax.jit as an "
                "argument that is not static"
            )
        return structure

    def __and__(self, other: "Mask") -> "Mask":
        """Return the mask that allows what both allow; two arrays must have one rank."""
        check(isinstance(other, Mask), "other (right of &)", "a Mask", repr(type(other)))
        if self.array is not None and other.array is not None:
            what = f"an array of rank {self.array.ndim}, as the left one has"
            got = f"rank {other.array.ndim}, shape {other.array.shape}"
            check(self.array.ndim == other.array.ndim, "other (right of &)", what, got)
        mine, theirs = self, other
        segmented: tuple[_Union, ...] = ()
        if mine.query_segments is not None and theirs.query_segments is not None:
            pair = {name: getattr(theirs, name) for name in _SEGMENTS}
            segmented = (_Union((Mask(**pair),)),)  # both must hold: one stays structure
            theirs = replace(theirs, query_segments=None, key_segments=None)
        with_segments = mine if theirs.query_segments is None else theirs
        return Mask(
            lower=_both(self.lower, other.lower, max, jnp.maximum),
            upper=_both(self.upper, other.upper, min, jnp.minimum),
            key_lengths=_both(self.key_lengths, other.key_lengths, min, jnp.minimum),
            query_lengths=_both(self.query_lengths, other.query_lengths, min, jnp.minimum),
            query_segments=with_segments.query_segments,
            key_segments=with_segments.key_segments,
            array=_both(self.array, other.array, min, jnp.logical_and),
            unions=(*self.unions, *other.unions, *segmented),
        )

    def __or__(self, other: "Mask") -> "Mask":
        """Return the mask that allows what either allows."""
        check(isinstance(other, Mask), "other (right of |)", "a Mask", repr(type(other)))
        return Mask(unions=(_Union((self, other)),))

    def __rand__(self, other: object) -> "Mask":
        """Raise: what stands before & is no mask."""
        raise _no_mask(other, "(left of &)")

    def __ror__(self, other: object) -> "Mask":
        """Raise: what stands before | is no mask."""
        raise _no_mask(other, "(left of |)")

    def __invert__(self) -> "Mask":
        """Return the mask that allows what this one forbids."""
        return Mask(unions=(_Union((self,), is_negated=True),))

    def __bool__(self) -> bool:
        """Raise: ``causal() and padding(n)`` would silently be the second alone."""
        raise TypeError(
            "mask: expected &, | or ~ between masks; got and, or, not, or another word that asks "
            "for a truth value, which a mask has not"
        )

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of structure present.

        Of "causal" (``upper`` is the integer 0 and ``lower`` None), "window" (the same, and
        ``lower`` an integer: some keys before the query's own), "band" (any other bounds that are
        integers), "offsets" (a bound that is an array), "lengths", "segments" and "array".
        """
        ends_at_query = isinstance(self.upper, int) and self.upper == 0
        is_causal = ends_at_query and self.lower is None
        is_window = ends_at_query and isinstance(self.lower, int) and self.lower <= 0
        bounds = [bound for bound in (self.lower, self.upper) if bound is not None]
        is_static = all(isinstance(bound, int) for bound in bounds)
        present = {
            "causal": is_causal,
            "window": is_window,
            "band": bool(bounds) and is_static and not (is_causal or is_window),
            "offsets": not is_static,
            "lengths": self.key_lengths is not None or self.query_lengths is not None,
            "segments": self.query_segments is not None,
            "array": self.array is not None or bool(self.unions),
        }
        return frozenset(name for name, is_present in present.items() if is_present)

    def materialize(self, query_length: Any, key_length: Any) -> Bool[Array, "..."]:
        """Return the mask as a boolean array that broadcasts against scores ``(…, N, T, S)``.

        Args:
            query_length: ``T``.
            key_length: ``S``.

        Returns:
            Boolean array: ``(T, S)`` for a mask without batch axes, ``(B, 1, T, S)`` with such, the
            broadcast of ``array`` with these where it is set.

        Raises:
            ValueError: a length is no integer or negative, or not that of the segments.
        """
        for size, name in ((query_length, "query_length"), (key_length, "key_length")):
            if jax.export.is_symbolic_dim(size):
                continue  # left open in an exported program
            is_integer = isinstance(size, (int, np.integer)) and not isinstance(size, bool)
            check(bool(is_integer and size >= 0), name, "a non-negative integer", repr(size))
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
        if self.query_segments is not None:
            visible = _and(visible, _same_segment(self, query_length, key_length))
        visible = visible if self.array is None else _and(visible, self.array)
        for union in self.unions:
            visible = _and(visible, union.materialize(query_length, key_length))
        return visible


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Union:
    """What some of ``masks`` allows, or what none of them does."""

    masks: tuple[Mask, ...]
    is_negated: bool = field(default=False, metadata={"static": True})

    def materialize(self, query_length: Any, key_length: Any) -> Bool[Array, "..."]:
        allowed = [mask.materialize(query_length, key_length) for mask in self.masks]
        union = allowed[0]
        for one in allowed[1:]:
            union = jnp.logical_not(_and(jnp.logical_not(union), jnp.logical_not(one)))
        return jnp.logical_not(union) if self.is_negated else union


def _no_mask(other: object, where: str) -> ValueError:
    what = "a Mask (array_mask makes one of a boolean array)"
    return ValueError(f"other {where}: expected {what}; got {type(other)!r}")


_SEGMENTS = ("query_segments", "key_segments")
_LEAVES = tuple(one.name for one in fields(Mask))


def _flatten(mask: Mask) -> tuple[tuple[Any, ...], tuple[int | None, ...]]:
    """Keep bounds that are integers apart from what is a leaf, also where a leaf is an integer."""
    names = ("lower", "upper")
    static = tuple(getattr(mask, n) if getattr(mask, f"_{n}_is_static") else None for n in names)
    leaves = [getattr(mask, name) for name in _LEAVES]
    leaves[:2] = [b if s is None else None for b, s in zip(leaves, static, strict=False)]
    return tuple(leaves), static


def _flatten_with_keys(mask: Mask) -> tuple[list[tuple[Any, Any]], tuple[int | None, ...]]:
    children, static = _flatten(mask)
    names = map(jax.tree_util.GetAttrKey, _LEAVES)
    return list(zip(names, children, strict=True)), static


def _unflatten(static: tuple[int | None, ...], children: Any) -> Mask:
    mask = object.__new__(Mask)  # JAX builds pytrees of whatever it likes: nothing is looked at
    for name, value in zip(_LEAVES, children, strict=True):
        object.__setattr__(mask, name, value)
    for name, bound in zip(("lower", "upper"), static, strict=True):
        object.__setattr__(mask, f"_{name}_is_static", bound is not None)
        if bound is not None:
            object.__setattr__(mask, name, bound)
    return mask


jax.tree_util.register_pytree_with_keys(Mask, _flatten_with_keys, _unflatten, _flatten)


def _both(
    mine: Any, theirs: Any, of_ints: Callable[..., int], of_arrays: Callable[..., Array]
) -> Any:
    """Combine two optional fields; two Python integers stay one."""
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    if isinstance(mine, int) and isinstance(theirs, int):
        return of_ints(mine, theirs)
    if not isinstance(mine, int) and not isinstance(theirs, int):
        mine, theirs = _one_dtype(mine, theirs)
    return of_arrays(mine, theirs)


def _one_dtype(mine: Any, theirs: Any) -> tuple[Array, Array]:
    """Bring two arrays of integers to one dtype, with no warning."""
    if mine.dtype != theirs.dtype:
        dtype = jax.dtypes.canonicalize_dtype(np.promote_types(mine.dtype, theirs.dtype))
        mine, theirs = jnp.asarray(mine, dtype), jnp.asarray(theirs, dtype)
    return mine, theirs


def _same_segment(mask: Mask, query_length: Any, key_length: Any) -> Bool[Array, "..."]:
    """Return which key is of each query's segment, ``(T, S)`` or ``(…, 1, T, S)``."""
    for name, length in zip(_SEGMENTS, (query_length, key_length), strict=True):
        shape = jnp.shape(getattr(mask, name))
        what = f"one segment for each of {length} positions on the last axis"
        check(bool(shape) and shape[-1] == length, f"mask.{name}", what, f"shape {shape}")
    query, key = _one_dtype(mask.query_segments, mask.key_segments)
    same = jnp.equal(query[..., :, None], key[..., None, :])
    return same if same.ndim == 2 else same[..., None, :, :]


def _against(position: Array, bound: _Bound) -> tuple[Array, Array]:
    """Give positions and a bound of the batch axes the axes ``(…, N, T, S)`` in one dtype."""
    bound = jnp.asarray(bound, position.dtype)
    if bound.ndim:
        bound = jnp.reshape(bound, (*bound.shape, 1, 1, 1))
        position = jnp.reshape(position, (1,) * (bound.ndim - 2) + position.shape)
    return position, bound


def _near(number: int | np.integer) -> int:
    """Return a distance as one that can be added to a position: no mask is as long as these."""
    return min(max(int(number), -FAR), FAR)


def _wide(offset: Any) -> Any:
    """Return an offset that a window and a position can be added to: the sum would wrap."""
    if isinstance(offset, (int, np.integer)):
        return int(offset)
    return (offset.astype(np.int32) if offset.dtype.itemsize < 4 else offset).clip(-FAR, FAR)


def _and(a: Bool[Array, "..."], b: Bool[Array, "..."]) -> Bool[Array, "..."]:
    """``a & b`` with leading axes added to the one of lower rank."""
    rank = max(a.ndim, b.ndim)
    a, b = (jnp.reshape(m, (1,) * (rank - m.ndim) + m.shape) for m in (a, b))
    return jnp.logical_and(a, b)


def _check_integers(value: Any, name: str, what: str) -> None:
    is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    is_signed = is_array(value) and jnp.issubdtype(value.dtype, jnp.signedinteger)
    check(is_int or is_signed, name, what, repr(getattr(value, "dtype", value)))


def causal(query_offset: int | np.integer | Int[Array, "*batch"] = 0) -> Mask:
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
        >>> causal(query_offset=2).materialize(1, 4).tolist()
        [[True, True, True, False]]
    """
    _check_integers(query_offset, "query_offset", "an integer or an array of integers")
    return Mask(upper=_wide(query_offset))


def sliding_window(
    window: int | np.integer | None,
    right: int | np.integer | None = 0,
    query_offset: int | np.integer | Int[Array, "*batch"] = 0,
) -> Mask:
    r"""Let each query see ``window`` keys, its own the last of them: $i - W < j \le i$.

    Args:
        window: ``W``, how many keys a query sees up to its own position, that included; None for
            all of them.
        right: keys visible after it: none unless asked for, None for all of them.
        query_offset: the position of the first query in the sequence of the keys.

    Returns:
        The mask.

    Raises:
        ValueError: ``window`` is no positive integer, or ``right`` is negative or not an integer.

    Example:
        >>> sliding_window(2).materialize(3, 3).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    if window is not None:
        check_size(window, "window", 1, "a positive integer (a window of 1 is the query's own key)")
    if right is not None:
        check_size(right, "right", 0, "a non-negative integer or None")
    _check_integers(query_offset, "query_offset", "an integer or an array of integers")
    offset = _wide(query_offset)
    return Mask(
        lower=None if window is None else offset - _near(window - 1),
        upper=None if right is None else offset + _near(right),
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
        ValueError: a length is not an integer array, or is negative.

    Example:
        >>> padding(jnp.array([1, 2])).materialize(1, 3).tolist()
        [[[[True, False, False]]], [[[True, True, False]]]]
    """
    for name, value in (("key_lengths", key_lengths), ("query_lengths", query_lengths)):
        if value is not None or name == "key_lengths":
            dtype = getattr(value, "dtype", None) if is_array(value) else None
            ok = dtype is not None and jnp.issubdtype(dtype, jnp.integer)
            got = repr(value) if dtype is None else dtype
            check(ok, name, "an array of integers, one length a batch entry", got)
            if not isinstance(value, jax.core.Tracer):
                values = np.asarray(value)
                check(bool((values >= 0).all()), name, "lengths of 0 or more", values.tolist())
    return Mask(key_lengths=key_lengths, query_lengths=query_lengths)


def segments(
    query_ids: Integer[Array, "*batch T"], key_ids: Integer[Array, "*batch S"] | None = None
) -> Mask:
    """Let each query see the keys of its own segment: several texts packed into one sequence.

    Combine it with :func:`causal`; positions that hold no text get an id of their own.

    Args:
        query_ids: the segment of each query, ``(…, T)``; any integers, in any order.
        key_ids: the segment of each key, ``(…, S)``; None for those of the queries.

    Returns:
        The mask.

    Raises:
        ValueError: the ids are no array of integers, or their batch axes differ.

    Example:
        >>> packed = causal() & segments(jnp.array([7, 7, 4, 4]))
        >>> packed.materialize(4, 4).astype(int).tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    """
    key_ids = query_ids if key_ids is None else key_ids
    for name, ids in (("query_ids", query_ids), ("key_ids", key_ids)):
        check_integers(ids, name)
        check_rank(ids, name, "(…, T)" if name == "query_ids" else "(…, S)", 1)
    what = f"the batch axes of query_ids, {tuple(query_ids.shape[:-1])}"
    fits = query_ids.shape[:-1] == key_ids.shape[:-1]
    check(fits, "key_ids", what, f"shape {tuple(key_ids.shape)}")
    query_ids, key_ids = _one_dtype(query_ids, key_ids)
    return Mask(query_segments=query_ids, key_segments=key_ids)


def array_mask(array: Bool[Array, "..."]) -> Mask:
    """Make a mask of a boolean array, True = attend.

    Args:
        array: boolean, of the full rank of the scores, ``(…, N, T, S)``, each axis equal or 1.

    Returns:
        The mask.

    Raises:
        ValueError: ``array`` is not boolean (an additive mask is called ``bias``), or has fewer
            than two axes.

    Example:
        >>> array_mask(jnp.array([[True, False]])).materialize(1, 2).tolist()
        [[True, False]]
    """
    check_boolean(array, "array", "a boolean array (an additive mask is a bias)")
    check(array.ndim >= 2, "array", "axes (…, N, T, S), that is rank 2 or more", array.shape)
    return Mask(array=array)


def as_mask(
    mask: Mask | Bool[Array, "..."] | None, is_causal: bool, scores_shape: tuple[Any, ...]
) -> Mask | None:
    """Return what a caller gave as ``mask`` and ``is_causal`` as one checked structure.

    Args:
        mask: a :class:`Mask`, a boolean array of full rank, or None.
        is_causal: whether to combine it with :func:`causal`.
        scores_shape: the shape of the scores, ``(…, N, T, S)`` (or ``(T, S)`` for one head).

    Returns:
        The mask, or None where everything is visible.

    Raises:
        ValueError: the array is not boolean or does not have the rank of the scores with each axis
            equal or 1; lengths, bounds or segments do not have the shape of the batch axes; a
            mask that bounds the keys after a query otherwise than ``is_causal`` meets it.

    Example:
        >>> as_mask(None, True, (3, 3)).upper
        0
    """
    if type(is_causal) is not bool:
        check_flag(is_causal, "is_causal")
    if mask is not None and not isinstance(mask, Mask):
        check_boolean(mask, "mask", "a Mask or a boolean array (an additive mask is a bias)")
        mask = Mask(array=jnp.asarray(mask))
    if mask is not None:
        mask = _checked(mask, scores_shape)
    if not is_causal or mask is None:
        return causal() if is_causal else mask
    no_offset = mask.upper is None or (isinstance(mask.upper, int) and mask.upper == 0)
    what = (
        "False beside a mask that says itself where the keys end (for both, write causal() & mask)"
    )
    offset = mask.upper if isinstance(mask.upper, int) else "in an array"
    check(no_offset, "is_causal", what, f"True and a mask with the query offset {offset}")
    return mask & causal()


def _checked(mask: Mask, scores_shape: tuple[Any, ...]) -> Mask:
    """Check every field against the scores, and make an array of the unions."""
    for name in ("lower", "upper"):
        bound = getattr(mask, name)
        if bound is not None:
            _check_integers(bound, f"mask.{name}", "an integer or an array of (signed) integers")
            if jnp.ndim(bound):
                _check_batch(bound, f"mask.{name}", scores_shape)
    for name, most in zip(("query_lengths", "key_lengths"), scores_shape[-2:], strict=True):
        lengths = getattr(mask, name)
        if lengths is not None:
            _check_batch(lengths, f"mask.{name}", scores_shape)
            if not isinstance(lengths, jax.core.Tracer):
                values = np.asarray(lengths)
                fits = bool(((values >= 0) & (values <= most)).all())
                check(fits, f"mask.{name}", f"lengths from 0 to {most}", values.tolist())
    for name, length in zip(_SEGMENTS, scores_shape[-2:], strict=True):
        ids = getattr(mask, name)
        if ids is not None:
            check_integers(ids, f"mask.{name}")
            whole = (*scores_shape[:-3], length)
            check_shape(ids, f"mask.{name}", whole, "one segment for each position, shape")
    if mask.array is not None:
        check_boolean(mask.array, "mask", "a boolean array (an additive mask is a bias)")
        _check_array(mask.array, scores_shape)
    if not mask.unions:
        return mask
    visible = mask.array
    for union in mask.unions:
        checked = _Union(tuple(_checked(m, scores_shape) for m in union.masks), union.is_negated)
        array = checked.materialize(*scores_shape[-2:])
        array = jnp.reshape(array, (1,) * (len(scores_shape) - array.ndim) + array.shape)
        visible = array if visible is None else jnp.logical_and(visible, array)
    return replace(mask, array=visible, unions=())


def _check_batch(value: Any, name: str, scores_shape: tuple[Any, ...]) -> None:
    batch = tuple(scores_shape[:-3])
    dtype = value.dtype if is_array(value) else None
    is_integer = dtype is not None and jnp.issubdtype(dtype, jnp.integer)
    check(is_integer, name, "an array of integers", repr(value) if dtype is None else dtype)
    what = f"one number for each entry of the batch axes, shape {batch}"
    check(jnp.shape(value) == batch, name, what, f"shape {jnp.shape(value)}")


def _check_array(array: Array, scores_shape: tuple[Any, ...]) -> None:
    """Raise unless the array has the full rank of the scores; say how to write the usual ones."""
    shape, full = tuple(array.shape), tuple(scores_shape)
    if len(full) > 2 and len(shape) == 2:
        missing = len(full) - 2
        hints = {
            full[-2:]: f"mask[{', '.join(['None'] * missing)}] if these are (T, S)",
            (full[0], full[-1]): f"mask[:, {'None, ' * missing}:] if these are (B, S)",
        }
        if shape in hints:
            written = " or ".join(hint for axes, hint in hints.items() if axes == shape)
            what = f"axes (…, N, T, S) = {full}, each equal or 1, none left out: write {written}"
            check(False, "mask", what, f"shape {shape}")
    check_broadcastable(array, "mask", full, "(…, N, T, S)")


def visibility(
    mask: Mask | None, bias: Float[Array, "..."] | None, scores_shape: tuple[Any, ...]
) -> Bool[Array, "..."] | None:
    """Return everything that hides a key from a query as one boolean array, True = attend.

    Args:
        mask: what :func:`as_mask` gave.
        bias: added to the scores, of their full rank; -inf hides a key. None for no bias.
        scores_shape: ``(…, N, T, S)``, or ``(T, S)`` for one head.

    Returns:
        Array of the rank of the scores, each axis equal or 1; None where nothing is hidden.

    Example:
        >>> visibility(causal(), None, (2, 3)).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0]]
    """
    visible = None
    if mask is not None:
        visible = mask.materialize(*scores_shape[-2:])
        visible = jnp.reshape(visible, (1,) * (len(scores_shape) - visible.ndim) + visible.shape)
    if bias is not None:
        unhidden = bias != -jnp.inf  # NaN hides nothing
        visible = unhidden if visible is None else jnp.logical_and(visible, unhidden)
    return visible


def zero_unattended(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    value: Float[Array, "*kv_batch S C"],
    visible: Bool[Array, "..."] | None,
) -> tuple[Array, Array, Array]:
    """Replace by zeros the queries that see no key, and the keys and values that no query sees.

    A masked score is thrown away after the product, but zero times NaN is NaN, forward and
    backward; so padding that may hold anything has to be emptied before the product.

    Args:
        query: ``(…, N, T, H)``.
        key: ``(…, K, S, H)``.
        value: ``(…, K, S, C)``.
        visible: what :func:`visibility` gave.

    Returns:
        The three arrays.

    Example:
        >>> visible = jnp.array([[True, False]])
        >>> key = value = jnp.array([[1.0], [jnp.nan]])
        >>> zero_unattended(jnp.ones((1, 1)), key, value, visible)[2].tolist()
        [[1.0], [0.0]]
    """
    if visible is None:
        return query, key, value
    rows = jnp.any(visible, axis=-1)[..., None]  # (…, N, T, 1), each axis equal or 1
    columns = jnp.any(visible, axis=-2)[..., None]  # (…, N, S, 1), likewise
    if query.ndim > 2 and columns.shape[-3] not in (
        1,
        key.shape[-3],
    ):  # a key lives if a query of its group sees it
        num_kv_heads = key.shape[-3]
        group = query.shape[-3] // num_kv_heads
        shape = (*columns.shape[:-3], num_kv_heads, group, *columns.shape[-2:])
        columns = jnp.any(jnp.reshape(columns, shape), axis=-3)  # (…, K, S, 1)

    def zero(array: Array, is_attended: Array) -> Array:
        return jnp.where(is_attended, array, jnp.zeros((), array.dtype))

    return zero(query, rows), zero(key, columns), zero(value, columns)


def one_batch_axis(
    array: Shaped[Array, "..."] | None, batch: tuple[int, ...]
) -> Shaped[Array, "..."] | None:
    """Fold the batch axes of a mask or bias of full rank into one, of full size or 1.

    Args:
        array: ``(*batch, N, T, S)``, each axis equal or 1; None stays None.
        batch: the batch axes of the operands.

    Returns:
        ``(B, N, T, S)``, where ``B`` is the product of the batch axes, or 1.

    Example:
        >>> one_batch_axis(jnp.ones((3, 1, 1, 4, 5)), (3, 2)).shape
        (6, 1, 4, 5)
    """
    if array is None:
        return None
    if math.prod(array.shape[:-3]) != 1:
        array = jnp.broadcast_to(array, (*batch, *array.shape[-3:]))
    return jnp.reshape(array, (-1, *array.shape[-3:]))
