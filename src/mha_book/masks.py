"""Masks: which key each query may attend to, kept as structure until an array is needed.

Boolean throughout, True = attend. A query stands in row ``i`` of ``T``, a key in column ``j`` of
``S``. ``torch.nn.MultiheadAttention`` has the opposite polarity (True = do not attend).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

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

__all__ = ["Mask", "array_mask", "causal", "padding", "segments", "sliding_window"]

_BOUNDS, _SEGMENTS = ("lower", "upper"), ("query_segments", "key_segments")
FAR = 2**29
"""The farthest that a bound lies: what is farther hides as much, and sums of it would overflow."""


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
        upper: the greatest; likewise.
        key_lengths: the number of real keys of each batch entry, shape of the batch axes.
        query_lengths: of real queries; likewise.
        query_segments: the segment of each query, ``(…, T)``.
        key_segments: of each key, ``(…, S)``.
        array: boolean, of the full rank of the scores, ``(…, N, T, S)``, each axis equal or 1.
        unions: what ``|`` and ``~`` made; it becomes an array where the mask is used.

    Example:
        >>> (causal() & sliding_window(2)).materialize(3, 3).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """

    # JAX puts whatever it likes there (axes for vmap, tracers): `as_mask` checks the fields on use.
    lower: Any = None  # int | Int[Array, "*batch"] | None
    upper: Any = None
    key_lengths: Any = None  # Int[Array, "*batch"] | None
    query_lengths: Any = None
    query_segments: Any = None  # Int[Array, "*batch T"] | None
    key_segments: Any = None
    array: Any = None  # Bool[Array, "..."] | None
    unions: tuple["_Union", ...] = ()

    _static: ClassVar[dict[str, int]]  # of each mask: its bounds that are structure

    __array_ufunc__ = None  # ``array & mask`` is for __rand__, not for NumPy entry by entry

    def __post_init__(self) -> None:
        static = {}  # the bounds that are structure, not leaves
        for name in _BOUNDS:
            bound = getattr(self, name)
            if isinstance(bound, np.ndarray) and bound.ndim == 0 and bound.dtype.kind in "iu":
                bound = bound.item()
            if isinstance(bound, (int, np.integer)) and not isinstance(bound, bool):
                static[name] = _near(bound)
        self._set(**static, _static=static)

    def _set(self, **values: Any) -> None:
        self.__dict__.update(values)  # a frozen dataclass: not by assignment

    def __eq__(self, other: object) -> bool:
        """Whether both are the same structure; arrays raise."""
        if not isinstance(other, Mask):
            return NotImplemented
        return bool(self._structure("compared") == other._structure("compared"))

    def __hash__(self) -> int:
        """Return the hash of the structure; arrays raise."""
        return hash(self._structure("hashed"))

    def _structure(self, done: str) -> Any:
        leaves, structure = jax.tree.flatten(self)
        if leaves:
            what = f"expected a mask without arrays to be {done}; got one with {len(leaves)}"
            raise TypeError(f"mask: {what}: compare materialize(T, S), and pass it as an operand")
        return structure

    def __and__(self, other: "Mask") -> "Mask":
        """Return the mask that allows what both allow; two arrays must have one rank."""
        check(isinstance(other, Mask), "other (right of &)", "a Mask", repr(type(other)))
        if self.array is not None and other.array is not None:
            what = f"an array of rank {self.array.ndim}, as the left one has"
            got = f"rank {other.array.ndim}, shape {other.array.shape}"
            check(self.array.ndim == other.array.ndim, "other (right of &)", what, got)
        mine, theirs = ({n: getattr(m, n) for n in _SEGMENTS} for m in (self, other))
        unions = (*self.unions, *other.unions)
        if None not in (*mine.values(), *theirs.values()):  # one pair stays structure
            unions = (*unions, _Union((Mask(**theirs),)))
        return Mask(
            lower=_both(self.lower, other.lower, max, jnp.maximum),
            upper=_both(self.upper, other.upper, min, jnp.minimum),
            key_lengths=_both(self.key_lengths, other.key_lengths, min, jnp.minimum),
            query_lengths=_both(self.query_lengths, other.query_lengths, min, jnp.minimum),
            **(theirs if mine["query_segments"] is None else mine),
            array=_both(self.array, other.array, min, jnp.logical_and),
            unions=unions,
        )

    def __or__(self, other: "Mask") -> "Mask":
        """Return the mask that allows what either does."""
        check(isinstance(other, Mask), "other (right of |)", "a Mask", repr(type(other)))
        return Mask(unions=(_Union((self, other)),))

    def __rand__(self, other: object) -> "Mask":
        """Raise: what stands before & is no mask."""
        what = "a Mask (array_mask makes one of a boolean array)"
        raise ValueError(f"other (left of & or |): expected {what}; got {type(other)!r}")

    __ror__ = __rand__

    def __invert__(self) -> "Mask":
        """Return the mask that allows what this one forbids."""
        return Mask(unions=(_Union((self,), is_negated=True),))

    def __bool__(self) -> bool:
        """Raise: ``causal() and padding(n)`` would silently be the second alone."""
        got = "and, or, not, or another word that asks for a truth value, which a mask has not"
        raise TypeError(f"mask: expected &, | or ~ between masks; got {got}")

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of structure present, of "causal", "window", "band" and more.

        "causal" is ``upper == 0`` alone, "window" the same with a ``lower`` of 0 or less, "band"
        any other integers, "offsets" a bound in an array; "lengths", "segments" and "array".
        """
        bounds = [bound for bound in (self.lower, self.upper) if bound is not None]
        is_static = all(isinstance(bound, int) for bound in bounds)
        before_query = is_static and self.upper == 0 and (self.lower is None or self.lower <= 0)
        band = "band" if not before_query else "causal" if self.lower is None else "window"
        present = {
            band if is_static else "offsets": bool(bounds),
            "lengths": self.key_lengths is not None or self.query_lengths is not None,
            "segments": self.query_segments is not None,
            "array": self.array is not None or bool(self.unions),
        }
        return frozenset(filter(present.get, present))

    def materialize(self, query_length: Any, key_length: Any) -> Bool[Array, "..."]:
        """Return the mask as a boolean array that broadcasts against scores ``(…, N, T, S)``.

        Args:
            query_length: ``T``.
            key_length: ``S``.

        Returns:
            Boolean array: ``(T, S)`` for a mask without batch axes, ``(B, 1, T, S)`` with such, the
            broadcast of ``array`` with these where it is set.
        """
        for size, name in ((query_length, "query_length"), (key_length, "key_length")):
            if not jax.export.is_symbolic_dim(size):  # left open in an exported program
                check_size(size, name, 0)
        i, j = jnp.arange(query_length)[:, None], jnp.arange(key_length)[None, :]
        conditions = [
            holds(*_against(position, bound))
            for position, holds, bound in (
                (j - i, jnp.greater_equal, self.lower),
                (j - i, jnp.less_equal, self.upper),
                (j, jnp.less, self.key_lengths),
                (i, jnp.less, self.query_lengths),
            )
            if bound is not None
        ]
        if self.query_segments is not None:
            conditions.append(_same_segment(self, query_length, key_length))
        conditions += [] if self.array is None else [self.array]
        conditions += [union.materialize(query_length, key_length) for union in self.unions]
        visible = jnp.ones((query_length, key_length), bool)
        return functools.reduce(lambda a, b: _aligned(jnp.logical_and, a, b), conditions, visible)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class _Union:
    """What some of ``masks`` allows, or what none of them does."""

    masks: tuple[Mask, ...]
    is_negated: bool = field(default=False, metadata={"static": True})

    def materialize(self, query_length: Any, key_length: Any) -> Bool[Array, "..."]:
        allowed = (mask.materialize(query_length, key_length) for mask in self.masks)
        union = functools.reduce(lambda a, b: _aligned(jnp.logical_or, a, b), allowed)
        return jnp.logical_not(union) if self.is_negated else union


_LEAVES = tuple(one.name for one in fields(Mask))


def _flatten(mask: Any) -> tuple[tuple[Any, ...], tuple[tuple[str, int], ...]]:
    """Keep bounds that are structure apart from leaves, which may be integers too."""
    leaves = (None if name in mask._static else getattr(mask, name) for name in _LEAVES)
    return tuple(leaves), tuple(mask._static.items())


def _flatten_with_keys(mask: Mask) -> tuple[list[tuple[Any, Any]], tuple[tuple[str, int], ...]]:
    children, static = _flatten(mask)
    return list(zip(map(jax.tree_util.GetAttrKey, _LEAVES), children, strict=True)), static


def _unflatten(static: tuple[tuple[str, int], ...], children: Any) -> Mask:
    mask, bounds = object.__new__(Mask), dict(static)  # nothing is looked at
    mask._set(**{**dict(zip(_LEAVES, children, strict=True)), **bounds}, _static=bounds)
    return mask


jax.tree_util.register_pytree_with_keys(Mask, _flatten_with_keys, _unflatten, _flatten)


def _both(
    mine: Any, theirs: Any, of_ints: Callable[..., int], of_arrays: Callable[..., Array]
) -> Any:
    """Combine two optional fields; two Python integers stay one."""
    if mine is None or theirs is None:
        return theirs if mine is None else mine
    are_ints = isinstance(mine, int), isinstance(theirs, int)
    if all(are_ints):
        return of_ints(mine, theirs)
    return of_arrays(*((mine, theirs) if any(are_ints) else _one_dtype(mine, theirs)))


def _one_dtype(mine: Any, theirs: Any) -> tuple[Array, Array]:
    """Bring two arrays of integers to one dtype, with no warning."""
    if mine.dtype == theirs.dtype:
        return mine, theirs
    dtype = jax.dtypes.canonicalize_dtype(np.promote_types(mine.dtype, theirs.dtype))
    return jnp.asarray(mine, dtype), jnp.asarray(theirs, dtype)


def _same_segment(mask: Mask, query_length: Any, key_length: Any) -> Bool[Array, "..."]:
    """Return which key is of each query's segment, ``(T, S)`` or ``(…, 1, T, S)``."""
    for name, length in zip(_SEGMENTS, (query_length, key_length), strict=True):
        shape = jnp.shape(getattr(mask, name))
        what = f"one segment for each of {length} positions on the last axis"
        check(bool(shape) and shape[-1] == length, f"mask.{name}", what, f"shape {shape}")
    query, key = _one_dtype(mask.query_segments, mask.key_segments)
    same = jnp.equal(query[..., :, None], key[..., None, :])
    return same if same.ndim == 2 else same[..., None, :, :]


def _against(position: Array, bound: Any) -> tuple[Array, Array]:
    """Give positions and a bound of the batch axes the axes ``(…, N, T, S)`` in one dtype."""
    bound = jnp.asarray(bound, position.dtype)
    if bound.ndim:
        bound = jnp.reshape(bound, (*bound.shape, 1, 1, 1))
        position = jnp.reshape(position, (1,) * (bound.ndim - 2) + position.shape)
    return position, bound


def _near(number: int | np.integer) -> int:
    """Return a distance that can be added to a position: no mask is as long as these."""
    return min(max(int(number), -FAR), FAR)


def _summable(offset: Any) -> Any:
    """Return an offset that a window and a position can be added to: the sum would wrap."""
    if isinstance(offset, int | np.integer):
        return int(offset)
    return (offset.astype(np.int32) if offset.dtype.itemsize < 4 else offset).clip(-FAR, FAR)


def _aligned(operation: Callable[..., Array], a: Array, b: Array) -> Array:
    """Combine two arrays, with leading axes added to the one of lower rank."""
    rank = max(a.ndim, b.ndim)
    return operation(*(jnp.reshape(m, (1,) * (rank - m.ndim) + m.shape) for m in (a, b)))


def _check_integers(value: Any, name: str, what: str) -> None:
    is_int = isinstance(value, int | np.integer) and not isinstance(value, bool)
    is_signed = is_array(value) and jnp.issubdtype(value.dtype, jnp.signedinteger)
    check(is_int or is_signed, name, what, repr(getattr(value, "dtype", value)))


def causal(query_offset: int | np.integer | Int[Array, "*batch"] = 0) -> Mask:
    r"""Let each query see its own position and earlier ones: $j \le i + \text{offset}$.

    Args:
        query_offset: the position of the first query in the sequence of the keys: the number of
            keys already in the cache when decoding. An integer, or an array of the batch axes.

    Differs from:
        ``jax.nn.dot_product_attention(is_causal=True)``, which knows no offset: with one query and
        a cache of ``S`` keys it shows the query the first key alone.

    Example:
        >>> causal(query_offset=2).materialize(1, 4).tolist()
        [[True, True, True, False]]
    """
    _check_integers(query_offset, "query_offset", "an integer or an array of integers")
    return Mask(upper=_summable(query_offset))


CAUSAL = causal()


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

    Example:
        >>> sliding_window(2).materialize(3, 3).astype(int).tolist()
        [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    """
    if window is not None:
        check_size(window, "window", 1, "a positive integer (a window of 1 is the query's own key)")
    if right is not None:
        check_size(right, "right", 0, "a non-negative integer or None")
    _check_integers(query_offset, "query_offset", "an integer or an array of integers")
    offset = _summable(query_offset)
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

    Example:
        >>> padding(jnp.array([1, 2])).materialize(1, 3).tolist()
        [[[[True, False, False]]], [[[True, True, False]]]]
    """
    given = {"key_lengths": key_lengths, "query_lengths": query_lengths}
    for name, value in given.items():
        if value is not None or name == "key_lengths":
            check_integers(value, name)
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

    Example:
        >>> packed = causal() & segments(jnp.array([7, 7, 4, 4]))
        >>> packed.materialize(4, 4).astype(int).tolist()
        [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    """
    key_ids = query_ids if key_ids is None else key_ids
    for name, ids in (("query_ids", query_ids), ("key_ids", key_ids)):
        check_integers(ids, name)
        check_rank(ids, name, "(…, T)" if name == "query_ids" else "(…, S)", 1)
    batch, shape = query_ids.shape[:-1], key_ids.shape
    check(batch == shape[:-1], "key_ids", f"the batch axes of query_ids, {batch}", f"shape {shape}")
    query_ids, key_ids = _one_dtype(query_ids, key_ids)
    return Mask(query_segments=query_ids, key_segments=key_ids)


def array_mask(array: Bool[Array, "..."]) -> Mask:
    """Make a mask of a boolean array, True = attend.

    Args:
        array: boolean, of the full rank of the scores, ``(…, N, T, S)``, each axis equal or 1.

    Example:
        >>> array_mask(jnp.array([[True, False]])).materialize(1, 2).tolist()
        [[True, False]]
    """
    check_boolean(array, "array", "a boolean array (an additive mask is a bias)")
    check_rank(array, "array", "(…, N, T, S)", 2)
    return Mask(array=array)


def as_mask(
    mask: Mask | Bool[Array, "..."] | None, is_causal: bool, scores_shape: tuple[Any, ...]
) -> Mask | None:
    """Return what a caller gave as ``mask`` and ``is_causal`` as one checked structure, or None.

    Raises ``ValueError`` for an array that is not boolean or of the rank ``(…, N, T, S)`` of the
    scores with each axis equal or 1; for lengths, bounds or segments of another shape than the
    batch axes; and for ``is_causal`` beside a mask with a bound of its own after the query.
    """
    check_flag(is_causal, "is_causal")
    if mask is None:
        return CAUSAL if is_causal else None
    if not isinstance(mask, Mask):
        check_boolean(mask, "mask", "a Mask or a boolean array (an additive mask is a bias)")
        mask = Mask(array=jnp.asarray(mask))
    mask = _checked(mask, scores_shape)
    if not is_causal:
        return mask
    is_static = mask.upper is None or isinstance(mask.upper, int)
    what = "False beside a mask that says where the keys end (for both, write causal() & mask)"
    got = f"True and a mask with the query offset {mask.upper if is_static else 'of an array'}"
    check(is_static and not mask.upper, "is_causal", what, got)
    return mask & CAUSAL


def _checked(mask: Mask, scores_shape: tuple[Any, ...]) -> Mask:
    """Check every field against the scores, and make an array of the unions."""
    batch, lengths = tuple(scores_shape[:-3]), scores_shape[-2:]
    each, all_of = "one number for each entry of the batch axes, shape", "one for each position,"
    for name in _BOUNDS:
        bound = getattr(mask, name)
        if bound is not None:
            _check_integers(bound, f"mask.{name}", "an integer or an array of (signed) integers")
            if jnp.ndim(bound):
                check_shape(bound, f"mask.{name}", batch, each)
    for names, shapes, what in (
        (("query_lengths", "key_lengths"), (batch, batch), each),
        (_SEGMENTS, [(*batch, length) for length in lengths], all_of),
    ):
        for name, shape in zip(names, shapes, strict=True):
            if getattr(mask, name) is not None:
                check_integers(getattr(mask, name), f"mask.{name}")
                check_shape(getattr(mask, name), f"mask.{name}", shape, what)
    for name, most in zip(("query_lengths", "key_lengths"), lengths, strict=True):
        numbers = getattr(mask, name)
        if numbers is not None and not isinstance(numbers, jax.core.Tracer):
            values = np.asarray(numbers)
            fits = bool(((values >= 0) & (values <= most)).all())
            check(fits, f"mask.{name}", f"lengths from 0 to {most}", values.tolist())
    if mask.array is not None:
        check_boolean(mask.array, "mask", "a boolean array (an additive mask is a bias)")
        _check_array(mask.array, scores_shape)
    if not mask.unions:
        return mask
    arrays = [] if mask.array is None else [mask.array]
    for union in mask.unions:
        checked = _Union(tuple(_checked(m, scores_shape) for m in union.masks), union.is_negated)
        array = checked.materialize(*lengths)
        arrays.append(jnp.reshape(array, (1,) * (len(scores_shape) - array.ndim) + array.shape))
    return replace(mask, array=functools.reduce(jnp.logical_and, arrays), unions=())


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

    ``mask`` is what :func:`as_mask` gave, and -inf in ``bias`` hides too. The array has the rank of
    ``scores_shape``, ``(…, N, T, S)`` or ``(T, S)``, each axis equal or 1; None hides nothing.
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
    backward; so padding that may hold anything has to be emptied before the product. ``visible`` is
    what :func:`visibility` gave.
    """
    if visible is None:
        return query, key, value
    rows = jnp.any(visible, axis=-1)[..., None]  # (…, N, T, 1), each axis equal or 1
    columns = jnp.any(visible, axis=-2)[..., None]  # (…, N, S, 1), likewise
    if query.ndim > 2 and columns.shape[-3] not in (1, key.shape[-3]):
        group = query.shape[-3] // key.shape[-3]
        shape = (*columns.shape[:-3], key.shape[-3], group, *columns.shape[-2:])
        columns = jnp.any(jnp.reshape(columns, shape), axis=-3)  # a query of its group sees a key

    seen = zip((query, key, value), (rows, columns, columns), strict=True)
    query, key, value = (jnp.where(s, x, jnp.zeros((), x.dtype)) for x, s in seen)
    return query, key, value


def one_batch_axis(
    array: Shaped[Array, "..."] | None, batch: tuple[int, ...]
) -> Shaped[Array, "..."] | None:
    """Fold the batch axes of a mask or bias ``(*batch, N, T, S)`` into one, of full size or 1."""
    if array is None:
        return None
    if math.prod(array.shape[:-3]) != 1:
        array = jnp.broadcast_to(array, (*batch, *array.shape[-3:]))
    return jnp.reshape(array, (-1, *array.shape[-3:]))
