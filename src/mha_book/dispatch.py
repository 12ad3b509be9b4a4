"""Which implementation of attention runs where, and why.

The layers and models call :func:`attend` and nothing else. What it runs is decided by
:func:`choose`, a pure function of shapes, dtypes, the kind of mask, the platform and what the
caller wants; it also says why the others were passed over. A new implementation is one more entry
of :data:`IMPLEMENTATIONS` and is held to the reference by the contract suite.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jaxtyping import Array, Bool, Float

from mha_book import attention, decode, jax_nn, manual
from mha_book._checks import check, check_bias, check_factors, check_operands, check_rank
from mha_book.heads import LAYOUTS, heads_first
from mha_book.masks import Mask
from mha_book.visibility import as_mask

__all__ = [
    "IMPLEMENTATIONS",
    "Choice",
    "Implementation",
    "Request",
    "attend",
    "choose",
    "describe",
]


class Request(NamedTuple):
    """What is asked of an implementation, without the arrays: all that :func:`choose` looks at.

    Args:
        query_shape: ``(…, N, T, H)``, heads first whatever the layout of the arrays is.
        key_shape: ``(…, K, S, H)``.
        value_shape: ``(…, K, S, C)``.
        dtype: the name of the dtype of the operands, for example ``"float32"``.
        mask_kind: the :attr:`~mha_book.masks.Mask.parts` of the mask.
        has_bias: whether an additive bias is given.
        platform: ``"cpu"``, ``"gpu"`` or ``"tpu"``.
        wants: capabilities asked for, of ``"lse"``, ``"forward_mode"`` and ``"weight_factors"``.
    """

    query_shape: tuple[int, ...]
    key_shape: tuple[int, ...]
    value_shape: tuple[int, ...]
    dtype: str
    mask_kind: frozenset[str] = frozenset()
    has_bias: bool = False
    platform: str = "cpu"
    wants: frozenset[str] = frozenset()


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
            :func:`choose`. A named implementation never falls back to another.
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

    On a CPU the reference goes first, and for few queries over many keys ``decode``: each is the
    faster one there (``benchmarks/``). Elsewhere ``jax.nn`` does, since it keeps half-precision
    products in half precision.

    Args:
        request: what is asked; :func:`describe` makes one from arrays.

    Returns:
        The choice, with the reasons of those that were preferred and refused.

    Example:
        >>> choose(Request((2, 3, 4), (2, 3, 4), (2, 3, 4), "float64", platform="gpu")).name
        'reference'
    """
    refusals: list[tuple[str, str]] = []
    for name in sorted(IMPLEMENTATIONS, key=lambda name: name != _first(request)):
        reason = _refusal(name, request)
        if reason is None:
            return Choice(name, tuple(refusals))
        refusals.append((name, reason))
    raise NotImplementedError(f"no implementation serves {request}: {refusals}")


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
    """Return the request that a call of :func:`attend` with these arguments makes.

    Args:
        query: as in :func:`attend`.
        key: as in :func:`attend`.
        value: as in :func:`attend`.
        mask: as in :func:`attend`.
        bias: as in :func:`attend`.
        is_causal: as in :func:`attend`.
        layout: as in :func:`attend`.
        return_lse: as in :func:`attend`.
        forward_mode: whether the result is to be differentiated in forward mode.
        weight_factors: as in :func:`attend`.

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
    )


def _first(request: Request) -> str:
    """Return which implementation is preferred."""
    if request.platform != "cpu":
        return "jax_nn"
    few = request.query_shape[-2] <= decode.FEW_QUERIES < request.key_shape[-2]
    return "decode" if few else "reference"


def _refusal(name: str, request: Request) -> str | None:
    """Return why the implementation cannot serve the request, or None."""
    if "forward_mode" in request.wants and not IMPLEMENTATIONS[name].forward_mode:
        return "it cannot be differentiated in forward mode"
    if "weight_factors" in request.wants and not IMPLEMENTATIONS[name].weight_factors:
        return "it cannot multiply the weights by factors, as dropout on them does"
    return IMPLEMENTATIONS[name].refuse(request)


IMPLEMENTATIONS: dict[str, Implementation] = {
    "jax_nn": Implementation(jax_nn.run, jax_nn.refuse, forward_mode=True),
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
    "decode": Implementation(decode.run, lambda request: None, forward_mode=True),
}
"""The implementations by name."""
