"""Which implementation of attention runs where, and why.

The layers and models call :func:`attend` and nothing else. What it runs is decided by
:func:`choose`, a pure function of shapes, dtypes, the kind of mask, the platform and what the
caller wants; it also says why the others were passed over. A new implementation is one more entry
of :data:`IMPLEMENTATIONS` and is held to the reference by the contract suite.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float

from mha_book import attention, blocks, blockwise, cudnn, decode, jax_nn, manual
from mha_book._checks import check
from mha_book.masks import Mask
from mha_book.request import Request, describe
from mha_book.visibility import as_mask

__all__ = [
    "IMPLEMENTATIONS",
    "Choice",
    "Implementation",
    "attend",
    "choose",
]


class Choice(NamedTuple):
    """The implementation that serves a request, and why those preferred to it were refused.

    Args:
        name: a key of :data:`IMPLEMENTATIONS`.
        refusals: pairs of a name and the reason it cannot serve.
    """

    name: str
    refusals: tuple[tuple[str, str], ...]


class Implementation(NamedTuple):
    """One way to compute attention.

    Args:
        run: ``(query, key, value, mask, bias, scale, layout, return_lse)`` to the output; with
            ``weight_factors`` as one more argument where these are given.
        refuse: a :class:`Request` to the reason it cannot be served, or None.
        forward_mode: whether it can be differentiated in forward mode.
        weight_factors: whether it can multiply the weights, as dropout does.
    """

    run: Callable[..., Any]
    refuse: Callable[[Request], str | None]
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

    The same operation as :func:`~mha_book.attention.scaled_dot_product_attention`, computed by
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
            :func:`choose`. A named implementation never falls back to another. For forward mode
            (``jax.jvp``, ``jax.hessian``) name "reference"; some others have none.
        return_lse: whether to return the log-sum-exp of the scores too, ``(…, N, T)`` in float32
            (float64 for float64 inputs). Not every implementation has it: ask
            ``choose(describe(..., return_lse=True))`` which one serves.
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
    request = describe(query, key, value, **kinds, **wanted)
    if implementation is None:
        name = choose(request).name
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


def choose(request: Request) -> Choice:
    """Return the first implementation that serves, in the order of preference on the platform.

    On a CPU the reference goes first; for more keys than a block has, ``blockwise``, and for few
    queries over many keys ``decode``: each is the fastest there (``benchmarks/``). Elsewhere
    ``jax.nn`` does, since it keeps half-precision products in half precision: on an NVIDIA GPU with
    cuDNN, which holds no scores, where it can and for more than a few queries; on a TPU, for more
    keys than a block has, ``blockwise`` goes before it, for the same reason. Neither device was
    measured.

    Args:
        request: what is asked; :func:`describe` makes one from arrays.

    Returns:
        The choice, with the reasons of those that were preferred and refused.

    Example:
        >>> choose(Request((2, 3, 4), (2, 3, 4), (2, 3, 4), "float64", platform="gpu")).name
        'reference'
    """
    refusals: list[tuple[str, str]] = []
    for name in _preferred(request):
        reason = _refusal(name, request)
        if reason is None:
            return Choice(name, tuple(refusals))
        refusals.append((name, reason))
    raise NotImplementedError(f"no implementation serves {request}: {refusals}")


def _preferred(request: Request) -> list[str]:
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


def _refusal(name: str, request: Request) -> str | None:
    """Return why the implementation cannot serve the request, or None."""
    if "forward_mode" in request.wants and not IMPLEMENTATIONS[name].forward_mode:
        return "it cannot be differentiated in forward mode"
    if "weight_factors" in request.wants and not IMPLEMENTATIONS[name].weight_factors:
        return "it cannot multiply the weights by factors, as dropout on them does"
    return IMPLEMENTATIONS[name].refuse(request)


IMPLEMENTATIONS: dict[str, Implementation] = {
    "jax_nn": Implementation(jax_nn.run, jax_nn.refuse, forward_mode=True),
    "cudnn": Implementation(cudnn.run, cudnn.refuse, forward_mode=False),
    "reference": Implementation(
        attention.run, lambda request: None, forward_mode=True, weight_factors=True
    ),
    # The backward pass by hand. The reference serves all that these do, so they run by name alone.
    "manual": Implementation(
        manual.run_manual, lambda request: None, forward_mode=False, weight_factors=True
    ),
    "recompute": Implementation(
        manual.run_recompute, lambda request: None, forward_mode=False, weight_factors=True
    ),
    "blockwise": Implementation(blockwise.run, blockwise.refuse, forward_mode=False),
    "decode": Implementation(decode.run, lambda request: None, forward_mode=True),
}
"""The implementations by name."""
