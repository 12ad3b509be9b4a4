"""The parameters of a multi-head layer: separate, fused, and their conversion both ways.

Shapes: ``D`` width of the model, ``N`` query heads, ``K`` key/value heads, ``H`` width of queries
and keys, ``C`` width of values.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from mha_book._checks import check, check_floating, check_rank

__all__ = [
    "FusedMultiHeadParams",
    "MultiHeadParams",
    "check_params",
    "fuse",
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

    Returns:
        The fused parameters.

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

    Args:
        params: fused parameters; ``w_o`` says how many of the heads are query heads.

    Returns:
        The separate parameters.

    Raises:
        ValueError: an array's rank or axes do not fit, or ``w_qkv`` has not ``N + 2K`` heads.

    Example:
        >>> fused = FusedMultiHeadParams(jnp.ones((4, 6, 2)), jnp.ones((2, 2, 4)))
        >>> unfuse(fused).w_k.shape
        (4, 2, 2)
    """
    for name, axes in (("w_qkv", "(D, N + 2K, H)"), ("w_o", "(N, H, D)")):
        check_rank(getattr(params, name), name, axes, 3)
    num_heads, total = params.w_o.shape[0], params.w_qkv.shape[1]
    rest = total - num_heads
    what = f"N + 2K heads on axis 1, with N = {num_heads} as in w_o"
    check(rest > 0 and rest % 2 == 0, "w_qkv", what, f"{total}, shape {params.w_qkv.shape}")
    cuts = [num_heads, num_heads + rest // 2]
    w_q, w_k, w_v = jnp.split(params.w_qkv, cuts, axis=1)
    b_q = b_k = b_v = None
    if params.b_qkv is not None:
        expected = (total, params.w_qkv.shape[2])
        check(params.b_qkv.shape == expected, "b_qkv", f"shape {expected}", params.b_qkv.shape)
        b_q, b_k, b_v = jnp.split(params.b_qkv, cuts, axis=0)
    return MultiHeadParams(w_q, w_k, w_v, params.w_o, b_q, b_k, b_v, params.b_o)


def check_params(params: MultiHeadParams) -> None:
    """Raise unless the arrays of ``params`` fit together.

    Args:
        params: separate parameters.

    Raises:
        ValueError: names the array, its axes, what was expected and what came.

    Example:
        >>> w, w_o = jnp.ones((4, 2, 2)), jnp.ones((2, 2, 4))
        >>> check_params(MultiHeadParams(w, w, w, w_o))
    """
    for name, axes in (("w_q", "(D, N, H)"), ("w_k", "(D, K, H)"), ("w_v", "(D, K, C)")):
        weight = getattr(params, name)
        check_floating(weight, name, params.w_q, "w_q")
        check(weight.ndim == 3, name, f"axes {axes}, that is rank 3", f"shape {weight.shape}")
    _, num_heads, head_dim = params.w_q.shape
    _, num_kv_heads, value_dim = params.w_v.shape
    check_floating(params.w_o, "w_o", params.w_q, "w_q")
    fits = params.w_o.ndim == 3 and params.w_o.shape[:2] == (num_heads, value_dim)
    what = f"axes (N, C, D) = ({num_heads}, {value_dim}, any)"
    check(fits, "w_o", what, f"shape {params.w_o.shape}")
    what = f"axes (D, K, H) = (any, {num_kv_heads}, {head_dim})"
    check(params.w_k.shape[1:] == (num_kv_heads, head_dim), "w_k", what, params.w_k.shape)
    is_empty = num_heads == num_kv_heads == 0  # all heads removed: the output bias is left
    divides = is_empty or (num_kv_heads > 0 and num_heads % num_kv_heads == 0)
    check(divides, "w_k", f"a number of heads that divides N = {num_heads}", num_kv_heads)
    for name, shape in (
        ("b_q", (num_heads, head_dim)),
        ("b_k", (num_kv_heads, head_dim)),
        ("b_v", (num_kv_heads, value_dim)),
        ("b_o", params.w_o.shape[2:]),
    ):
        bias = getattr(params, name)
        if bias is not None:
            check_floating(bias, name, params.w_q, "w_q")
            check(bias.shape == shape, name, f"shape {tuple(shape)}", f"shape {bias.shape}")
