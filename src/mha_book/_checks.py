"""Argument checks whose messages name the argument, its axes, what was expected and what came.

Every check is one call that raises itself: tracing a layer makes dozens of them.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, DTypeLike, Float, Int, Integer, Key, UInt32

RngKey = Key[Array, ""] | UInt32[Array, " words"] | Integer[Array, ""] | int | np.integer
"""What stands for a PRNG key: one of ``jax.random.key``, a raw one, or an integer seed."""


GREATEST = float(np.finfo(np.float32).max)
"""The greatest number of float32: beyond it is what no default computation holds."""


def as_key(rng_key: Any, name: str = "rng_key") -> Array:
    """Return a PRNG key from a key, typed or raw as ``jax.random`` takes it, or from a seed."""
    dtype, shape = getattr(rng_key, "dtype", None), getattr(rng_key, "shape", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key) and shape == ():
        return jnp.asarray(rng_key)
    if isinstance(rng_key, np.generic | np.ndarray) and shape == () and rng_key.dtype.kind in "iu":
        rng_key = rng_key.item()
    if isinstance(rng_key, int) and not isinstance(rng_key, bool):
        check(-(2**63) <= rng_key < 2**63, name, "a seed of 64 bits", rng_key)
        if 0 <= rng_key < 2**32:
            return jax.random.key(rng_key)
        with jax.ensure_compile_time_eval(), jax.enable_x64(True):
            return jax.random.key(rng_key)  # of 32 bits alone, 2**32 + 7 would be 7
    if dtype is not None and shape == () and jnp.issubdtype(dtype, jnp.integer):
        return jax.random.key(rng_key)
    words = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0))).shape
    if dtype == jnp.uint32 and shape == words:
        return jnp.asarray(jax.random.wrap_key_data(jnp.asarray(rng_key)))
    got = repr(rng_key) if dtype is None else f"{dtype} of shape {shape}"
    raise _error(name, "one PRNG key such as jax.random.key(42), or an integer seed", got)


def check_number(value: Any, name: str, expected: str, *, positive: bool = False) -> None:
    """Raise unless ``value`` is a finite real number, not negative, of Python, NumPy or JAX.

    Of one inside a traced function nothing but its rank and dtype is known.
    """
    if isinstance(value, jax.Array):
        if value.shape != () or not _is_real(value.dtype):
            raise _error(name, expected, f"{value.dtype} of shape {value.shape}")
        if isinstance(value, jax.core.Tracer):
            return
        value = value.item()
    number = value.item() if isinstance(value, np.generic) else value  # float16 has no GREATEST
    fits = isinstance(number, int | float) and not isinstance(number, bool)
    if not (fits and (number > 0 if positive else number >= 0) and number <= GREATEST):
        raise _error(name, expected, repr(value))


def _is_real(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)


def accumulator_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    """Return float32 for a half-precision dtype, and any other floating-point dtype as it is."""
    dtype = jax.dtypes.canonicalize_dtype(dtype)  # of a NumPy array, what JAX makes of it
    return dtype if jnp.finfo(dtype).bits >= 32 else jnp.dtype(jnp.float32)


def check(condition: bool, name: str, expected: str, got: object) -> None:
    """Raise ``ValueError`` with ``name``, ``expected`` and ``got`` unless ``condition`` holds."""
    if not condition:
        raise _error(name, expected, got)


def _error(name: str, expected: str, got: object) -> ValueError:
    return ValueError(f"{name}: expected {expected}; got {got}")


def is_array(array: Any) -> bool:
    """Whether JAX can take it for an array, or it stands for one.

    An array of another library has a dtype of its own, a masked one would lose its mask, and there
    are numbers in NumPy that JAX has not: of more than 64 bits, or with their bytes exchanged.
    """
    if isinstance(array, jax.Array):
        return True
    dtype = getattr(array, "dtype", None)
    is_known = isinstance(dtype, np.dtype) and dtype.isnative and dtype.char not in "gG"
    return is_known and hasattr(array, "shape") and not isinstance(array, np.ma.MaskedArray)


def check_array(array: Any, name: str) -> None:
    """Raise unless ``array`` is an array of JAX or NumPy."""
    if not is_array(array):
        dtype = getattr(array, "dtype", None)
        of_dtype = "" if dtype is None else f" of {dtype}"
        raise _error(name, "an array of JAX or NumPy", f"{type(array)!r}{of_dtype}")


def check_rank(array: Any, name: str, axes: str, at_least: int) -> None:
    """Raise unless ``array`` has at least ``at_least`` axes; ``axes`` names them."""
    if not isinstance(array, jax.Array):  # a call less for each of the many that are
        check_array(array, name)
    shape = tuple(array.shape)
    if len(shape) < at_least:
        expected = f"axes {axes}, that is rank {at_least} or more"
        raise _error(name, expected, f"rank {len(shape)}, shape {shape}")


def check_floating(array: Any, name: str, like: Any = None, like_name: str = "") -> None:
    """Raise unless ``array`` is floating point and, where ``like`` is given, of the same dtype."""
    if not isinstance(array, jax.Array):  # a call less for each of the many that are
        check_array(array, name)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        raise _error(name, "a floating-point dtype", array.dtype)
    if like is not None and array.dtype != like.dtype:
        # A NumPy array has the dtype that JAX makes of it, as it has it inside jax.jit.
        one, other = (jax.dtypes.canonicalize_dtype(x.dtype) for x in (array, like))
        if one != other:
            raise _error(name, f"the dtype of {like_name}, {other}", one)


def check_shape(array: Any, name: str, shape: Sequence[int], what: str) -> None:
    """Raise unless ``array`` has exactly ``shape``; ``what`` says which that is."""
    if not isinstance(array, jax.Array):  # a call less for each of the many that are
        check_array(array, name)
    if tuple(array.shape) != tuple(shape):
        raise _error(name, f"{what} {tuple(shape)}", f"shape {tuple(array.shape)}")


def check_numbers(array: Any, name: str, shape: Sequence[int], what: str) -> None:
    """Raise unless ``array`` is floating point and has exactly ``shape``."""
    check_floating(array, name)
    check_shape(array, name, shape, what)


def check_flag(value: Any, name: str) -> None:
    """Raise unless ``value`` is a truth value: text, numbers and arrays would pass for one."""
    got = repr(value) if isinstance(value, (str, int, float, type(None))) else repr(type(value))
    check(isinstance(value, (bool, np.bool_)), name, "True or False, not an array or a name", got)


def check_scale(scale: Any, name: str = "scale") -> None:
    """Raise unless ``scale`` is one real number: an array would scale features or keys."""
    is_number = isinstance(scale, (int, float, np.generic)) and not isinstance(scale, bool)
    if is_number:
        number = scale.item() if isinstance(scale, np.generic) else scale  # float16 has no GREATEST
        if _is_real(type(scale)) and abs(number) <= GREATEST:  # not so for NaN
            return
        raise _error(name, "a finite number", repr(scale))
    got = repr(scale)
    if is_array(scale):
        is_real = _is_real(scale.dtype)
        if is_real and scale.shape == ():
            return
        got = f"shape {tuple(scale.shape)}" if is_real else f"{scale.dtype}"
    raise _error(name, "a number or an array of shape ()", got)


def check_size(value: Any, name: str, least: int = 1, expected: str = "") -> None:
    """Raise unless ``value`` is an integer of Python or NumPy, at least ``least``."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not (is_integer and value >= least):
        usual = {0: "a non-negative integer", 1: "a positive integer"}
        what = expected or usual.get(least, f"an integer of {least} or more")
        raise _error(name, what, repr(value))


def check_share(value: Any, name: str) -> None:
    """Raise unless ``value`` is a number between 0 and 1, both left out."""
    is_number = isinstance(value, (float, np.floating))
    check(bool(is_number and 0 < value < 1), name, "a number between 0 and 1", repr(value))


def check_float_dtype(dtype: Any, name: str = "dtype") -> None:
    """Raise unless ``dtype`` is the name or type of floating-point numbers."""
    try:
        fits = not is_array(dtype) and jnp.issubdtype(jnp.dtype(dtype), jnp.floating)
    except TypeError:
        fits = False
    check(fits, name, "a floating-point dtype", repr(dtype))


def check_function(value: Any, name: str, what: str) -> None:
    """Raise unless ``value`` can be called; ``what`` says of what it is a function."""
    got = repr(value) if isinstance(value, (str, int, float)) else repr(type(value))
    check(callable(value), name, f"a function {what}", got)


def check_type(value: Any, name: str, types: type | tuple[type, ...], hint: str = "") -> None:
    """Raise unless ``value`` is of one of ``types``; ``hint`` says how to make one."""
    if not isinstance(value, types):
        named = " or ".join(t.__name__ for t in (types if isinstance(types, tuple) else (types,)))
        raise _error(name, named + (f", {hint}" if hint else ""), repr(type(value)))


def check_boolean(array: Any, name: str, expected: str) -> None:
    """Raise unless ``array`` is an array of booleans; ``expected`` says what was wanted."""
    dtype = array.dtype if is_array(array) else None
    got = type(array).__name__ if dtype is None else dtype
    check(dtype is not None and jnp.issubdtype(dtype, jnp.bool_), name, expected, got)


def check_integers(array: Any, name: str) -> None:
    """Raise unless ``array`` is an array of integers."""
    dtype = array.dtype if is_array(array) else None
    is_integer = dtype is not None and jnp.issubdtype(dtype, jnp.integer)
    got = type(array).__name__ if dtype is None else dtype
    check(is_integer, name, "an array of integers", got)


def check_axis(array: Any, name: str, axis: int, axes: str, size: Any, whose: str) -> None:
    """Raise unless axis number ``axis`` of ``array`` has ``size`` entries, as ``whose`` has."""
    shape = tuple(array.shape)
    if shape[axis] != size:
        expected = f"axis {axis} of {axes} to be {size}, as in {whose}"
        raise _error(name, expected, f"{shape[axis]}, shape {shape}")


def check_broadcastable(array: Any, name: str, shape: Sequence[int], axes: str) -> None:
    """Raise unless ``array`` has the full rank of ``shape`` and each axis equals it or is 1."""
    if not isinstance(array, jax.Array):  # a call less for each of the many that are
        check_array(array, name)
    got = tuple(array.shape)
    if len(got) != len(shape) or any(g not in (1, s) for g, s in zip(got, shape, strict=True)):
        expected = f"axes {axes} = {tuple(shape)}, each equal or 1, none left out"
        raise _error(name, expected, f"shape {got}")


def check_like_scores(array: Any, name: str, scores_shape: Sequence[int]) -> None:
    """Raise unless ``array`` is floating point and has the full rank of the scores."""
    check_floating(array, name)
    check_broadcastable(array, name, scores_shape, "(…, N, T, S)")


def check_operands(query: Any, key: Any, value: Any) -> None:
    """Raise unless query, key and value fit together as operands of attention, heads first."""
    if isinstance(query, jax.Array) and isinstance(key, jax.Array) and isinstance(value, jax.Array):
        q, k, v = query.shape, key.shape, value.shape
        if (  # the usual case, in one look
            query.dtype == key.dtype == value.dtype
            and jnp.issubdtype(query.dtype, jnp.floating)
            and len(q) == len(k) == len(v) > 2
            and q[:-3] == k[:-3]
            and k[:-1] == v[:-1]
            and q[-1] == k[-1]
            and (q[-3] == k[-3] or (k[-3] and q[-3] % k[-3] == 0))
        ):
            return
    for array, name, axes in (
        (query, "query", "(…, N, T, H)"),
        (key, "key", "(…, K, S, H)"),
        (value, "value", "(…, K, S, C)"),
    ):
        check_rank(array, name, axes, 2)
        check_floating(array, name, query, "query")
        shape = tuple(array.shape)
        if len(shape) != query.ndim:
            expected = f"axes {axes}, rank {query.ndim} as query has"
            raise _error(name, expected, f"rank {len(shape)}, shape {shape}")
        if shape[:-3] != query.shape[:-3]:
            expected = f"the leading axes of query, {tuple(query.shape[:-3])}"
            raise _error(name, expected, f"{shape[:-3]}, shape {shape}")
    check_axis(key, "key", -1, "(…, K, S, H)", query.shape[-1], "query")
    check_axis(value, "value", -2, "(…, K, S, C)", key.shape[-2], "key")
    if query.ndim == 2:
        return
    num_heads, num_kv_heads = query.shape[-3], key.shape[-3]
    # No heads at all is a layer whose heads were all removed: an output of no heads.
    if num_heads != num_kv_heads and (num_kv_heads == 0 or num_heads % num_kv_heads):
        expected = f"a number of key heads K (axis -3) that divides the {num_heads} query heads N"
        raise _error("key", expected, f"K = {num_kv_heads}, shape {tuple(key.shape)}")
    check_axis(value, "value", -3, "(…, K, S, C)", num_kv_heads, "key")


def check_model(params: Any) -> None:
    """Raise unless ``params`` are those of a model of this package."""
    what = "the parameters of a model, with layers that have attention"
    if hasattr(params, "params"):  # a loaded model: its config and tokenizer are beside them
        what += ": write model.params"
    check(hasattr(params, "layers"), "params", what, type(params).__name__)


def widen(array: Array) -> Array:
    """Return floating-point numbers as they are summed up: half precision becomes float32."""
    return jnp.asarray(array, accumulator_dtype(array.dtype))


def within_one(x: Array, axis: int | tuple[int, ...]) -> Array:
    """Return numbers divided by the largest along ``axis``, if it is not 0: no square overflows."""
    x = widen(x)
    largest = jnp.max(jnp.abs(jax.lax.stop_gradient(x)), axis=axis, keepdims=True, initial=0)
    # A compiler may multiply by the inverse, which would be 0 where the largest nearly overflows.
    shrink = jnp.where(largest > 2.0**64, 2.0**-64, 1.0).astype(x.dtype)
    return x * shrink / jnp.where(largest > 0, largest * shrink, 1)


def as_numbers(values: Any, name: str, what: str) -> np.ndarray:
    """Return real numbers, a list's too, as NumPy's in float64; ``what`` says of which axes."""
    try:
        array = np.ma.array(values)  # numpy.asarray would drop masks without a word
        is_real = jnp.issubdtype(array.dtype, jnp.bool_) or _is_real(array.dtype)
    except (TypeError, ValueError):
        is_real = False
    check(is_real, name, f"real numbers, {what}", repr(values))
    check(not np.ma.is_masked(array), name, f"numbers without a mask, {what}", "a masked array")
    return np.asarray(array.data, np.float64)


Function = TypeVar("Function", bound=Callable[..., Any])


def checked(function: Function) -> Function:
    """Check the arrays of each call against their jaxtyping annotations, with our message.

    Dtypes have to be of the kind that is annotated, and axes of one name of one size in all
    arguments; ``#`` before a name lets that axis be 1, ``*`` is for any number of axes.
    """
    return _with_checks(function, one_dtype=False)


def checked_alike(function: Function) -> Function:
    """Do what :func:`checked` does; floating-point arrays have the dtype of the first, too."""
    return _with_checks(function, one_dtype=True)


def _with_checks(function: Function, one_dtype: bool) -> Function:
    signature = inspect.signature(function)
    wanted: dict[str, tuple[Any, list[str], bool]] = {}
    for name, parameter in signature.parameters.items():
        kind = parameter.annotation
        hints = [*(get_args(kind) if isinstance(kind, UnionType) else (kind,))]
        arrays = [hint for hint in hints if getattr(hint, "dtype", None) in (Float, Int, Bool)]
        if len(arrays) == len({*hints} - {NoneType}) == 1:  # no number may stand for the array
            wanted[name] = arrays[0].dtype, arrays[0].dim_str.split(), parameter.default is None
    first = next((name for name, (kind, *_) in wanted.items() if one_dtype and kind is Float), "")

    @functools.wraps(function)
    def with_checks(*args: Any, **kwargs: Any) -> Any:
        given, sizes = signature.bind(*args, **kwargs).arguments, dict[str, Any]()
        for name, (kind, axes, is_optional) in wanted.items():
            if name in given and not (is_optional and given[name] is None):
                like = None if name == first else given.get(first)
                check_axes(given[name], name, axes, sizes, kind, like, first)
        return function(*args, **kwargs)

    return cast(Function, with_checks)


def check_axes(
    array: Any,
    name: str,
    axes: Sequence[str],
    sizes: dict[str, Any],
    kind: Any = Float,
    like: Any = None,
    like_name: str = "",
) -> None:
    """Raise unless the dtype is of ``kind`` and the axes fit ``sizes``, which are filled in.

    ``axes`` are written as jaxtyping does; a name that begins with ``_`` stands for any size.
    """
    if kind is Float:
        check_floating(array, name, like, like_name)
    elif kind is Bool:
        check_boolean(array, name, "an array of booleans")
    else:
        check_integers(array, name)
    shape, count = tuple(array.shape), len(axes)
    at = next((n for n, axis in enumerate(axes) if axis[0] in "*."), count)
    end = len(shape) - (count - at - 1)  # of the axes that have no names
    parts = shape if at == count else (*shape[:at], shape[at:end], *shape[end:])
    fits = len(parts) == count and end >= at - (at == count)
    found: dict[str, Any] = {}
    for axis, size in zip(axes, parts):  # noqa: B905
        if not (axis[0] in "_." or axis == "*" or (axis[0] == "#" and size == 1)):
            name_of_axis = axis.strip("#")
            known = sizes.get(name_of_axis, found.get(name_of_axis, size))
            found[name_of_axis] = known if not axis.isdigit() else int(axis)
            fits &= size == found[name_of_axis]
    if fits:
        sizes.update(found)
        return
    names = ["…" if axis[0] in "*." else axis.strip("#_") for axis in axes]
    known = [sizes.get(axis.strip("#"), "…" if axis[0] in "*." else "any") for axis in axes]
    comma = "," * (count == 1)
    what = f"axes ({', '.join(names)}{comma})"
    if set(known) - {"any", "…"}:
        what += f" = ({', '.join(str(size).strip('(,)') for size in known)}{comma})"
    raise _error(name, what if axes else "a scalar", f"shape {shape}")
