"""The parameters of a multi-head layer: how they start; separate, fused, and both ways between.

Shapes: ``D`` width of the model, ``N`` query heads, ``K`` key/value heads, ``H`` width of queries
and keys, ``C`` width of values.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, DTypeLike, Float

from mha_book._checks import (
    RngKey,
    as_key,
    check,
    check_axes,
    check_flag,
    check_float_dtype,
    check_function,
    check_shape,
    check_size,
    check_type,
)

__all__ = [
    "FusedMultiHeadParams",
    "MultiHeadParams",
    "fuse",
    "identity_params",
    "init_multi_head",
    "unfuse",
]


class MultiHeadParams(NamedTuple):
    r"""The weights of a layer, one array each for $W_Q$, $W_K$, $W_V$, $W_O$, and biases.

    Args:
        w_q: ``(D, N, H)``. Column block ``h`` of the matrix ``(D, N·H)`` is $W_Q^h$.
        w_k: ``(D_k, K, H)``.
        w_v: ``(D_v, K, C)``.
        w_o: ``(N, C, D)``. Row block ``h`` of the matrix ``(N·C, D)`` is $W_O^h$.
        b_q: ``(N, H)`` or None.
        b_k: ``(K, H)`` or None.
        b_v: ``(K, C)`` or None.
        b_o: ``(D,)`` or None.
    """

    w_q: Array
    w_k: Array
    w_v: Array
    w_o: Array
    b_q: Array | None = None
    b_k: Array | None = None
    b_v: Array | None = None
    b_o: Array | None = None


class FusedMultiHeadParams(NamedTuple):
    r"""The weights of a layer with $W_Q$, $W_K$, $W_V$ side by side in one array.

    Args:
        w_qkv: ``(D, N + 2K, H)``: the query heads, then the key heads, then the value heads.
        w_o: ``(N, H, D)``.
        b_qkv: ``(N + 2K, H)`` or None.
        b_o: ``(D,)`` or None.
    """

    w_qkv: Array
    w_o: Array
    b_qkv: Array | None = None
    b_o: Array | None = None


def fuse(params: MultiHeadParams) -> FusedMultiHeadParams:
    """Put the three input projections side by side; :func:`unfuse` gives them back exactly.

    Args:
        params: separate parameters whose three inputs have one width and ``C = H``.

    Raises:
        ValueError: the widths differ, or some but not all of the input biases are None.

    Example:
        >>> w, w_o = jnp.ones((4, 2, 2)), jnp.ones((2, 2, 4))
        >>> fuse(MultiHeadParams(w, w, w, w_o)).w_qkv.shape
        (4, 6, 2)
    """
    check_params(params)
    shapes = [(w.shape[0], w.shape[2]) for w in (params.w_q, params.w_k, params.w_v)]
    what = "w_q, w_k and w_v of one input width and one head width"
    check(len(set(shapes)) == 1, "params", what, f"(input, head) widths {shapes}")
    biases = [b for b in (params.b_q, params.b_k, params.b_v) if b is not None]
    check(len(biases) in (0, 3), "params", "all of b_q, b_k, b_v or none", f"{len(biases)} of them")
    b_qkv = jnp.concatenate(biases) if biases else None
    w_qkv = jnp.concatenate((params.w_q, params.w_k, params.w_v), axis=1)
    return FusedMultiHeadParams(w_qkv, params.w_o, b_qkv, params.b_o)


def unfuse(params: FusedMultiHeadParams) -> MultiHeadParams:
    """Cut the fused projection apart: the inverse of :func:`fuse`.

    ``w_o`` says how many of the heads are query heads.

    Example:
        >>> fused = FusedMultiHeadParams(jnp.ones((4, 6, 2)), jnp.ones((2, 2, 4)))
        >>> unfuse(fused).w_k.shape
        (4, 2, 2)
    """
    return cut_fused(params, check_fused(params))


def cut_fused(params: FusedMultiHeadParams, num_kv_heads: int) -> MultiHeadParams:
    """Do what :func:`unfuse` does, on arrays that were checked."""
    num_heads = params.w_o.shape[0]
    cuts = [num_heads, num_heads + num_kv_heads]
    b_q = b_k = b_v = None
    if params.b_qkv is not None:
        b_q, b_k, b_v = jnp.split(params.b_qkv, cuts, axis=0)
    w_q, w_k, w_v = jnp.split(params.w_qkv, cuts, axis=1)
    return MultiHeadParams(w_q, w_k, w_v, params.w_o, b_q, b_k, b_v, params.b_o)


def check_fused(params: FusedMultiHeadParams) -> int:
    """Raise unless the arrays of fused ``params`` fit together; return the key/value heads."""
    check_type(params, "params", FusedMultiHeadParams, "as fuse gives them")
    sizes: dict[str, int] = {}
    weights = {"w_qkv": ("_D", "N + 2K", "H"), "w_o": ("N", "H", "D")}
    _check_arrays(params, weights, "w_qkv", sizes)
    num_heads, total = sizes["N"], sizes["N + 2K"]
    rest = total - num_heads
    what = f"N + 2K heads on axis 1, with N = {num_heads} as in w_o"
    check(rest > 0 and rest % 2 == 0, "w_qkv", what, f"{total}, shape {params.w_qkv.shape}")
    _check_heads(num_heads, rest // 2, "w_qkv")
    biases = {"b_qkv": ("N + 2K", "H"), "b_o": ("D",)}
    _check_arrays(params, biases, "w_qkv", sizes)
    return rest // 2


def _check_heads(num_heads: int, num_kv_heads: int, name: str) -> None:
    is_empty = num_heads == num_kv_heads == 0  # all heads removed: the output bias is left
    divides = is_empty or (num_kv_heads > 0 and num_heads % num_kv_heads == 0)
    check(divides, name, f"a number of heads that divides N = {num_heads}", num_kv_heads)


def _check_arrays(params: Any, axes: Any, first: str, sizes: dict[str, int]) -> None:
    """Raise unless the arrays are of one dtype and their axes fit; fill in the sizes."""
    for name, written in axes.items():
        array = getattr(params, name)
        if array is not None or name[0] == "w":
            check_axes(array, name, written, sizes, Float, getattr(params, first), first)


_AXES = {
    "w_q": ("_D", "N", "H"), "w_v": ("_D", "K", "C"), "w_k": ("_D", "K", "H"),
    "w_o": ("N", "C", "D"), "b_q": ("N", "H"), "b_k": ("K", "H"), "b_v": ("K", "C"), "b_o": ("D",),
}  # fmt: skip


def check_params(params: MultiHeadParams) -> None:
    """Raise unless these are separate parameters, and their arrays fit together."""
    if not isinstance(params, MultiHeadParams):
        is_fused = isinstance(params, FusedMultiHeadParams)
        hint = "of fused ones unfuse(params)" if is_fused else "as init_multi_head gives them"
        check_type(params, "params", MultiHeadParams, hint)
    sizes: dict[str, int] = {}
    _check_arrays(params, _AXES, "w_q", sizes)
    _check_heads(sizes["N"], sizes["K"], "w_k")


def xavier_uniform(
    rng_key: RngKey, fan_in: int, fan_out: int, shape: tuple[int, ...], dtype: DTypeLike
) -> Float[Array, "..."]:
    r"""Draw uniformly from $\pm\sqrt{6 / (\text{fan in} + \text{fan out})}$.

    The fans are those of the whole matrix, all heads together, as in the code of the paper that
    introduced the layer.

    References:
        Glorot and Bengio, Understanding the difficulty of training deep feedforward neural
        networks, 2010, equation 16.
    """
    rng_key = as_key(rng_key)
    check(fan_in > 0 and fan_out > 0, "fan_in, fan_out", "positive", f"{fan_in}, {fan_out}")
    check_float_dtype(dtype)
    limit = math.sqrt(6.0 / (fan_in + fan_out))
    return jax.random.uniform(rng_key, shape, dtype, -limit, limit)


def normal(
    rng_key: RngKey, fan_in: int, fan_out: int, shape: tuple[int, ...], dtype: DTypeLike
) -> Float[Array, "..."]:
    """Draw from a normal distribution of standard deviation 0.02, as BERT and GPT-2 do.

    The fans are not used.
    """
    del fan_in, fan_out
    rng_key = as_key(rng_key)
    check_float_dtype(dtype)
    return 0.02 * jax.random.normal(rng_key, shape, dtype)


def init_multi_head(
    rng_key: RngKey,
    d_model: int,
    num_heads: int,
    *,
    num_kv_heads: int | None = None,
    head_dim: int | None = None,
    value_dim: int | None = None,
    use_bias: bool = False,
    initializer: Callable[..., Array] = xavier_uniform,
    dtype: DTypeLike = jnp.float32,
) -> MultiHeadParams:
    """Return freshly drawn parameters; biases, where the layer is to have them, start at zero.

    The sizes are ``D``, ``N``, ``K``, ``H`` and ``C``. Where not given, ``K`` is ``N``, ``H`` is
    ``D / N``, which must then be whole, and ``C`` is ``H``. The ``initializer`` is
    ``xavier_uniform``, ``normal``, or a function of their signature.

    Example:
        >>> init_multi_head(jax.random.key(0), 64, 8, num_kv_heads=2).w_k.shape
        (64, 2, 8)
    """
    num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    sizes = {"d_model": d_model, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
    for name, size in {**sizes, "head_dim": head_dim, "value_dim": value_dim}.items():
        if size is not None:
            check_size(size, name)
    rng_key = as_key(rng_key)
    check_flag(use_bias, "use_bias")
    check_function(initializer, "initializer", "of the signature of xavier_uniform")
    check_float_dtype(dtype)
    if head_dim is None:
        what = f"a divisor of d_model = {d_model}, since head_dim is not given"
        check(d_model % num_heads == 0, "num_heads", what, num_heads)
        head_dim = d_model // num_heads
    what = f"a divisor of num_heads = {num_heads}"
    check(num_heads % num_kv_heads == 0, "num_kv_heads", what, num_kv_heads)
    value_dim = head_dim if value_dim is None else value_dim
    keys = jax.random.split(rng_key, 4)
    into = [(num_heads, head_dim), (num_kv_heads, head_dim), (num_kv_heads, value_dim)]
    w_q, w_k, w_v = (
        initializer(key, d_model, heads * width, (d_model, heads, width), dtype)
        for key, (heads, width) in zip(keys[:3], into, strict=True)
    )
    out = (num_heads, value_dim, d_model)
    w_o = initializer(keys[3], num_heads * value_dim, d_model, out, dtype)
    wanted = ((d_model, heads, width) for heads, width in into)
    for weight, shape in zip((w_q, w_k, w_v, w_o), (*wanted, out), strict=True):
        check_shape(weight, "initializer", shape, "a function that returns shape")
    if not use_bias:
        return MultiHeadParams(w_q, w_k, w_v, w_o)
    b_q, b_k, b_v = (jnp.zeros(shape, dtype) for shape in into)
    return MultiHeadParams(w_q, w_k, w_v, w_o, b_q, b_k, b_v, jnp.zeros((d_model,), dtype))


def identity_params(
    d_model: int, num_heads: int, dtype: DTypeLike = jnp.float32
) -> MultiHeadParams:
    """Return parameters whose four projections are the identity, for ``N`` that divides ``D``.

    The layer then splits queries, keys and values, attends, and combines: multi-head attention
    without projections.

    Example:
        >>> identity_params(4, 2).w_q.shape
        (4, 2, 2)
    """
    check_size(d_model, "d_model")
    check_float_dtype(dtype)
    what = f"a positive divisor of d_model = {d_model}"
    check_size(num_heads, "num_heads", 1, what)
    check(d_model % num_heads == 0, "num_heads", what, num_heads)
    identity = jnp.eye(d_model, dtype=dtype)
    into = jnp.reshape(identity, (d_model, num_heads, d_model // num_heads))
    out = jnp.reshape(identity, (num_heads, d_model // num_heads, d_model))
    return MultiHeadParams(into, into, into, out)
