"""What a call of attention asks for, without the arrays: all that the choice of one looks at."""

import functools
from typing import NamedTuple

import jax
from jaxtyping import Array, Bool, Float

from mha_book._checks import check, check_bias, check_factors, check_operands, check_rank
from mha_book.heads import LAYOUTS, heads_first
from mha_book.masks import Mask
from mha_book.visibility import as_mask

__all__ = ["Request", "compute_capability", "describe"]


class Request(NamedTuple):
    """What is asked of an implementation, without the arrays.

    :func:`~mha_book.dispatch.choose` looks at nothing else.

    Args:
        query_shape: ``(…, N, T, H)``, heads first whatever the layout of the arrays is.
        key_shape: ``(…, K, S, H)``.
        value_shape: ``(…, K, S, C)``.
        dtype: the name of the dtype of the operands, for example ``"float32"``.
        mask_kind: the :attr:`~mha_book.masks.Mask.parts` of the mask.
        has_bias: whether an additive bias is given.
        platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
        wants: capabilities asked for, of ``"lse"``, ``"forward_mode"`` and ``"weight_factors"``.
        compute_capability: of an NVIDIA GPU, for example ``(9, 0)``; None for any other device.
    """

    query_shape: tuple[int, ...]
    key_shape: tuple[int, ...]
    value_shape: tuple[int, ...]
    dtype: str
    mask_kind: frozenset[str] = frozenset()
    has_bias: bool = False
    platform: str = "cpu"
    wants: frozenset[str] = frozenset()
    compute_capability: tuple[int, ...] | None = None


def describe(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    value: Float[Array, "*kv_batch S C"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    is_causal: bool = False,
    layout: str = "NTH",
    return_lse: bool = False,
    forward_mode: bool = False,
    weight_factors: Float[Array, "..."] | None = None,
) -> Request:
    """Return what :func:`~mha_book.dispatch.attend` with these arguments asks for.

    Args:
        query: as in :func:`~mha_book.dispatch.attend`.
        key: as in :func:`~mha_book.dispatch.attend`.
        value: as in :func:`~mha_book.dispatch.attend`.
        mask: as in :func:`~mha_book.dispatch.attend`.
        bias: as in :func:`~mha_book.dispatch.attend`.
        is_causal: as in :func:`~mha_book.dispatch.attend`.
        layout: as in :func:`~mha_book.dispatch.attend`.
        return_lse: as in :func:`~mha_book.dispatch.attend`.
        forward_mode: whether the result is to be differentiated in forward mode.
        weight_factors: as in :func:`~mha_book.dispatch.attend`.

    Returns:
        The request, for the platform that JAX runs on by default.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> q = jnp.ones((2, 3, 4))
        >>> sorted(describe(q, q, q, is_causal=True).mask_kind)
        ['causal']
    """
    check(layout in LAYOUTS, "layout", f"one of {', '.join(LAYOUTS)}", repr(layout))
    axes = "(…, N, T, H)" if layout == "NTH" else "(…, T, N, H)"
    for array, name in ((query, "query"), (key, "key"), (value, "value")):
        check_rank(array, name, axes, 3)
    q, k, v = (jax.eval_shape(lambda x: heads_first(x, layout), x) for x in (query, key, value))
    check_operands(q, k, v)
    scores_shape = (*q.shape[:-1], k.shape[-2])
    structure = as_mask(mask, is_causal, scores_shape)
    if bias is not None:
        check_bias(bias, scores_shape)
    if weight_factors is not None:
        check_factors(weight_factors, scores_shape)
    wants = {"lse": return_lse, "forward_mode": forward_mode}
    wants["weight_factors"] = weight_factors is not None
    return Request(
        q.shape,
        k.shape,
        v.shape,
        str(q.dtype),
        frozenset() if structure is None else structure.parts,
        bias is not None,
        jax.default_backend(),
        frozenset(name for name, wanted in wants.items() if wanted),
        compute_capability(),
    )


@functools.cache
def compute_capability() -> tuple[int, ...] | None:
    """Return the generation of the NVIDIA GPU that JAX runs on by default, or None without one.

    Returns:
        Major and minor number, for example ``(9, 0)`` for an H200.

    Example:
        >>> compute_capability() is None or len(compute_capability()) == 2
        True
    """
    device = jax.devices()[0]
    if device.platform != "gpu" or "cuda" not in device.client.platform_version:
        return None  # other makers' devices have other names for their generations
    return tuple(int(number) for number in device.compute_capability.split("."))
