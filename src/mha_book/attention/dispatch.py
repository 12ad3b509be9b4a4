"""What a call of attention asks for, without the arrays: all that the choice of one looks at."""

# MERGED-DOC """Which implementation of attention runs where, and why.
#
# The layers and models call :func:`attend` and nothing else. What it runs is decided by
# :func:`select`, a pure function of shapes, dtypes, the kind of mask, the platform and what the
# caller wants; it also says why the others were passed over. A new implementation is one more entry
# of :data:`IMPLEMENTATIONS` and is held to the reference by the contract suite.
# """

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Float

from mha_book._checks import check, check_bias, check_factors, check_operands, check_rank
from mha_book.attention import blocks, blockwise, decode, gradient, jax_nn, reference
from mha_book.heads import LAYOUTS, heads_first
from mha_book.masks import Mask, as_mask

__all__ = [
    "attend",
    "Selection",
    "select",
    "compute_capability",
    "attention_spec",
    "Implementation",
    "IMPLEMENTATIONS",
    "AttentionSpec",
]


class AttentionSpec(NamedTuple):
    """What is asked of an implementation, without the arrays.

    :func:`~mha_book.attention.dispatch.select` looks at nothing else.

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


def attention_spec(
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
) -> AttentionSpec:
    """Return what :func:`~mha_book.attention.dispatch.attend` with these arguments asks for.

    Args:
        query: as in :func:`~mha_book.attention.dispatch.attend`.
        key: as in :func:`~mha_book.attention.dispatch.attend`.
        value: as in :func:`~mha_book.attention.dispatch.attend`.
        mask: as in :func:`~mha_book.attention.dispatch.attend`.
        bias: as in :func:`~mha_book.attention.dispatch.attend`.
        is_causal: as in :func:`~mha_book.attention.dispatch.attend`.
        layout: as in :func:`~mha_book.attention.dispatch.attend`.
        return_lse: as in :func:`~mha_book.attention.dispatch.attend`.
        forward_mode: whether the result is to be differentiated in forward mode.
        weight_factors: as in :func:`~mha_book.attention.dispatch.attend`.

    Returns:
        The request, for the platform that JAX runs on by default.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

    Example:
        >>> import jax.numpy as jnp
        >>> q = jnp.ones((2, 3, 4))
        >>> sorted(attention_spec(q, q, q, is_causal=True).mask_kind)
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
    return AttentionSpec(
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


class Selection(NamedTuple):
    """The implementation that serves a request, and why those preferred to it were refused.

    Args:
        name: a key of :data:`IMPLEMENTATIONS`.
        rejected: pairs of a name and the reason it cannot serve.
    """

    name: str
    rejected: tuple[tuple[str, str], ...]


class Implementation(NamedTuple):
    """One way to compute attention.

    Args:
        run: ``(query, key, value, mask, bias, scale, layout, return_lse)`` to the output; with
            ``weight_factors`` as one more argument where these are given.
        refuse: a :class:`AttentionSpec` to the reason it cannot be served, or None.
        forward_mode: whether it can be differentiated in forward mode.
        weight_factors: whether it can multiply the weights, as dropout does.
    """

    run: Callable[..., Any]
    refuse: Callable[[AttentionSpec], str | None]
    forward_mode: bool
    weight_factors: bool = False


def attend(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    value: Float[Array, "*kv_batch S C"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    layout: str = "NTH",
    implementation: str | None = None,
    return_lse: bool = False,
    weight_factors: Float[Array, "..."] | None = None,
) -> Any:
    r"""Return $\operatorname{softmax}(Q K^\top \cdot \text{scale} + B)\, V$ for every head.

    The same operation as :func:`~mha_book.attention.reference.scaled_dot_product_attention`, computed by
    whichever implementation suits the operands and the device.

    Args:
        query: ``(…, N, T, H)`` in layout "NTH", ``(…, T, N, H)`` in layout "TNH".
        key: ``(…, K, S, H)`` or ``(…, S, K, H)``, with ``N`` a multiple of ``K``.
        value: ``(…, K, S, C)`` or ``(…, S, K, C)``.
        mask: a :class:`~mha_book.masks.Mask`, or a boolean array of the full rank
            ``(…, N, T, S)`` (each axis equal or 1) in either layout, True = attend.
        bias: added to the scaled scores, full rank ``(…, N, T, S)`` (each axis equal or 1).
        is_causal: whether query ``i`` may attend to keys ``j <= i`` only.
        scale: factor of the scores; None means ``1 / sqrt(H)``.
        layout: "NTH" (heads before positions) or "TNH" (positions before heads).
        implementation: a name of :data:`IMPLEMENTATIONS`, or None for the choice of
            :func:`select`. A named implementation never falls back to another. For forward mode
            (``jax.jvp``, ``jax.hessian``) name "reference"; some others have none.
        return_lse: whether to return the log-sum-exp of the scores too, ``(…, N, T)`` in float32
            (float64 for float64 inputs). Not every implementation has it: ask
            ``select(attention_spec(..., return_lse=True))`` which one serves.
        weight_factors: multiplies the weights after the softmax, as dropout does; full rank
            ``(…, N, T, S)`` (each axis equal or 1). None for ones. Not every implementation can.

    Returns:
        The output in the layout of the query, ``(…, N, T, C)`` or ``(…, T, N, C)``, in the dtype of
        the inputs; with ``return_lse`` a pair of it and the log-sum-exp.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit, or a name is unknown.
        NotImplementedError: the implementation that was named cannot serve; the message says why.

    Differs from:
        ``jax.nn.dot_product_attention``: heads first by default, a causal offset
        (:func:`~mha_book.masks.causal`), empty rows give zero, any value width.

    Example:
        >>> import jax.numpy as jnp
        >>> q = k = v = jnp.ones((2, 3, 4))  # two heads, three positions, width 4
        >>> attend(q, k, v, is_causal=True).shape
        (2, 3, 4)
    """
    kinds: dict[str, Any] = {"mask": mask, "bias": bias, "is_causal": is_causal}
    extra = {} if weight_factors is None else {"weight_factors": weight_factors}
    wanted: dict[str, Any] = {"layout": layout, "return_lse": return_lse, **extra}
    request = attention_spec(query, key, value, **kinds, **wanted)
    if implementation is None:
        name = select(request).name
    else:
        known = ", ".join(IMPLEMENTATIONS)
        check(
            implementation in IMPLEMENTATIONS, "implementation", f"one of {known}", implementation
        )
        name = implementation
        reason = _refusal(name, request)
        if reason is not None:
            raise NotImplementedError(f"implementation {name!r} cannot serve: {reason}")
    structure = as_mask(mask, is_causal, (*request.query_shape[:-1], request.key_shape[-2]))
    run = IMPLEMENTATIONS[name].run
    return run(query, key, value, structure, bias, scale, layout, return_lse, **extra)


def select(request: AttentionSpec) -> Selection:
    """Return the first implementation that serves, in the order of preference on the platform.

    On a CPU the reference goes first; for more keys than a block has, ``blockwise``, and for few
    queries over many keys ``decode``: each is the fastest there (``benchmarks/``). Elsewhere
    ``jax.nn`` does, since it keeps half-precision products in half precision: on an NVIDIA GPU with
    cuDNN, which holds no scores, where it can and for more than a few queries; on a TPU, for more
    keys than a block has, ``blockwise`` goes before it, for the same reason. Neither device was
    measured.

    Args:
        request: what is asked; :func:`attention_spec` makes one from arrays.

    Returns:
        The choice, with the reasons of those that were preferred and refused.

    Example:
        >>> select(AttentionSpec((2, 3, 4), (2, 3, 4), (2, 3, 4), "float64", platform="gpu")).name
        'reference'
    """
    rejected: list[tuple[str, str]] = []
    for name in _preferred(request):
        reason = _refusal(name, request)
        if reason is None:
            return Selection(name, tuple(rejected))
        rejected.append((name, reason))
    raise NotImplementedError(f"no implementation serves {request}: {rejected}")


def _preferred(request: AttentionSpec) -> list[str]:
    """Return the names of implementations, best first; the reference, the last, serves all."""
    queries, keys = request.query_shape[-2], request.key_shape[-2]
    few = queries <= decode.FEW_QUERIES < keys
    names = []
    if request.platform != "gpu" and keys > blocks.KEYS and not few:
        names.append("blockwise")
    if request.dtype in ("bfloat16", "float16") and request.platform == "gpu" and not few:
        names.append("cudnn")
    if request.platform != "cpu":
        names.append("jax_nn")
    elif few:
        names.append("decode")
    return [*names, "reference"]


def _refusal(name: str, request: AttentionSpec) -> str | None:
    """Return why the implementation cannot serve the request, or None."""
    if "forward_mode" in request.wants and not IMPLEMENTATIONS[name].forward_mode:
        return "it cannot be differentiated in forward mode"
    if "weight_factors" in request.wants and not IMPLEMENTATIONS[name].weight_factors:
        return "it cannot multiply the weights by factors, as dropout on them does"
    return IMPLEMENTATIONS[name].why_unsupported(request)


IMPLEMENTATIONS: dict[str, Implementation] = {
    "jax_nn": Implementation(jax_nn.run, jax_nn.why_unsupported, forward_mode=True),
    "cudnn": Implementation(jax_nn.run_cudnn, jax_nn.why_cudnn_unsupported, forward_mode=False),
    "reference": Implementation(
        reference.run, lambda request: None, forward_mode=True, weight_factors=True
    ),
    # The backward pass by hand. The reference serves all that these do, so they run by name alone.
    "manual": Implementation(
        gradient.run_manual, lambda request: None, forward_mode=False, weight_factors=True
    ),
    "recompute": Implementation(
        gradient.run_recompute, lambda request: None, forward_mode=False, weight_factors=True
    ),
    "blockwise": Implementation(blockwise.run, blockwise.why_unsupported, forward_mode=False),
    "decode": Implementation(decode.run, lambda request: None, forward_mode=True),
}
"""The implementations by name."""
