r"""The multi-head attention layer: project, attend in every head, combine, project.

$Y^{id} = O^{hic} W_O^{hcd}$ with $O^h = \operatorname{attend}(X W_Q^h, X W_K^h, X W_V^h)$.

Shapes: ``B`` batch, ``T`` queries, ``S`` keys, ``D`` width of the model, ``N`` query heads, ``K``
key/value heads, ``H`` width of queries and keys, ``C`` width of values. The shapes of the
parameters say how many heads there are and how wide they are; nothing else does.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Key

from mha_book._checks import check, check_axis, check_floating, check_rank
from mha_book.attention.dispatch import attend
from mha_book.attention.reference import attention_weights
from mha_book.heads import combine_heads, split_heads
from mha_book.masks import Mask
from mha_book.multihead.dropout import Dropout, draw_factors
from mha_book.multihead.parameters import (
    FusedMultiHeadParams,
    MultiHeadParams,
    check_params,
    unfuse,
)
from mha_book.rope import rotate

__all__ = ["Intermediates", "multi_head_attention", "project_heads"]


class Intermediates(NamedTuple):
    """What happened inside a layer, as asked for by ``return_intermediates``.

    Args:
        query: ``(…, N, T, H)``, rotated where the layer rotates.
        key: ``(…, K, S, H)``, likewise.
        value: ``(…, K, S, C)``.
        weights: ``(…, N, T, S)``, never averaged over heads, before any dropout; computed beside
            the output.
        head_outputs: ``(…, N, T, C)``, before their dropout, the gates and the output projection.
    """

    query: Array
    key: Array
    value: Array
    weights: Array
    head_outputs: Array


def multi_head_attention(
    params: MultiHeadParams | FusedMultiHeadParams,
    query: Float[Array, "*batch T D"],
    key: Float[Array, "*batch S D_k"] | None = None,
    value: Float[Array, "*batch S D_v"] | None = None,
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    gates: Float[Array, " N"] | None = None,
    angles: Float[Array, "*angle_batch T pairs"] | None = None,
    dropout: Dropout | None = None,
    rng_key: Key[Array, ""] | None = None,
    implementation: str | None = None,
    return_intermediates: bool = False,
) -> Any:
    r"""Apply the layer: self-attention with ``query`` alone, cross-attention with ``key`` too.

    $Q^h = X W_Q^h$, $K^h = Z W_K^h$, $V^h = Z' W_V^h$, $Y = \sum_h g_h\, O^h W_O^h + b_O$, where
    $X$, $Z$, $Z'$ are ``query``, ``key``, ``value``, and $g_h$ the gates.

    Args:
        params: the weights, separate or fused.
        query: ``(…, T, D)``, the sequence that asks.
        key: ``(…, S, D_k)``, the sequence that is attended to; None for ``query``.
        value: ``(…, S, D_v)``, what is averaged; None for ``key``.
        mask: a :class:`~mha_book.masks.Mask`, or a boolean array of the full rank
            ``(…, N, T, S)`` (each axis equal or 1), True = attend.
        bias: added to the scaled scores, full rank ``(…, N, T, S)`` (each axis equal or 1).
        is_causal: whether position ``i`` may attend to positions ``j <= i`` only.
        scale: factor of the scores; None means ``1 / sqrt(H)``.
        gates: ``(N,)``, one factor for the output of each head; None for ones. A gate of 0 removes
            its head, and the gradient of a gate says how much the loss depends on that head.
        angles: ``(T, H/2)`` from :func:`~mha_book.rope.rotary_angles`, or ``(B, 1, T, H/2)``, by
            which queries and keys are rotated after their projection; self-attention only. None
            for no rotation.
        dropout: rates at the three places; None for no dropout.
        rng_key: PRNG key of the dropout, needed where a rate is not 0; see
            :func:`~mha_book.multihead.dropout.draw_factors`.
        implementation: passed to :func:`~mha_book.attention.dispatch.attend`.
        return_intermediates: whether to return what happened inside too. The weights then cost
            memory for ``N·T·S`` numbers; the output does not change.

    Returns:
        ``(…, T, D)``; with ``return_intermediates`` a pair of it and :class:`Intermediates`.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.
        NotImplementedError: the implementation that was named cannot serve.

    Differs from:
        ``torch.nn.MultiheadAttention``: masks have the opposite polarity there, the weights
        returned are averaged over heads unless asked otherwise, and the sequence stands before
        the batch unless ``batch_first`` is set.

    References:
        Vaswani et al., Attention Is All You Need, 2017, section 3.2.2.

    Example:
        >>> import jax
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(jax.random.key(0), d_model=64, num_heads=8)
        >>> multi_head_attention(params, jnp.ones((2, 10, 64))).shape
        (2, 10, 64)
    """
    separate = unfuse(params) if isinstance(params, FusedMultiHeadParams) else params
    check_params(separate)
    key = query if key is None else key
    value = key if value is None else value
    _check_inputs(separate, query, key, value, gates)
    if isinstance(params, FusedMultiHeadParams) and key is query and value is key:
        q, k, v = _project_fused(params, query)
    else:
        q = project_heads(query, separate.w_q, separate.b_q)  # (…, N, T, H)
        k = project_heads(key, separate.w_k, separate.b_k)  # (…, K, S, H)
        v = project_heads(value, separate.w_v, separate.b_v)  # (…, K, S, C)
    if angles is not None:
        check(key is query, "angles", "self-attention: no key", "a key beside the query")
        q, k = rotate(q, angles), rotate(k, angles)
    structure: dict[str, Any] = {"mask": mask, "bias": bias, "is_causal": is_causal, "scale": scale}
    num_heads, width, d_model = separate.w_o.shape
    scores_shape = (*q.shape[:-1], k.shape[-2])
    shapes = (scores_shape, width, d_model, query.dtype)
    factors = draw_factors(dropout, rng_key, *shapes)
    choice: dict[str, Any] = {"implementation": implementation, "weight_factors": factors.weights}
    if num_heads:
        head_outputs = attend(q, k, v, **choice, **structure)  # (…, N, T, C)
    else:  # all removed, see mha_book.pruning
        head_outputs = jnp.zeros((*q.shape[:-1], width), q.dtype)
    gated = head_outputs if factors.heads is None else head_outputs * factors.heads
    if gates is not None:
        gated = gated * jnp.reshape(gates, (1,) * (q.ndim - 3) + (-1, 1, 1))
    output = jnp.matmul(
        combine_heads(gated), jnp.reshape(separate.w_o, (num_heads * width, d_model))
    )
    output = _add(output, separate.b_o)  # (…, T, D)
    output = output if factors.output is None else output * factors.output
    if not return_intermediates:
        return output
    if num_heads:
        weights = attention_weights(q, k, **structure)
    else:
        weights = jnp.zeros(scores_shape, q.dtype)
    return output, Intermediates(q, k, v, weights, head_outputs)


def project_heads(
    x: Float[Array, "*batch T D"],
    weight: Float[Array, "D N H"],
    bias: Float[Array, "N H"] | None = None,
) -> Float[Array, "*batch N T H"]:
    r"""Return $x W^h + b^h$ for every head by one matrix product and a split.

    Args:
        x: ``(…, T, D)``.
        weight: ``(D, N, H)``; as a matrix ``(D, N·H)`` its columns are blocks, one a head.
        bias: ``(N, H)`` or None.

    Returns:
        ``(…, N, T, H)``.

    Raises:
        ValueError: the axes do not fit.

    Example:
        >>> project_heads(jnp.ones((5, 4)), jnp.ones((4, 2, 3))).shape
        (2, 5, 3)
    """
    check_rank(x, "x", "(…, T, D)", 2)
    check(weight.ndim == 3, "weight", "axes (D, N, H), that is rank 3", f"shape {weight.shape}")
    check_axis(weight, "weight", 0, "(D, N, H)", x.shape[-1], "x")
    d_model, num_heads, width = weight.shape
    if num_heads == 0:
        return jnp.zeros((*x.shape[:-2], 0, x.shape[-2], width), x.dtype)
    flat_bias = None if bias is None else jnp.reshape(bias, (num_heads * width,))
    flat = jnp.matmul(x, jnp.reshape(weight, (d_model, num_heads * width)))
    return split_heads(_add(flat, flat_bias), num_heads)


def _project_fused(params: FusedMultiHeadParams, x: Array) -> tuple[Array, Array, Array]:
    """Project queries, keys and values by one matrix product."""
    num_heads = params.w_o.shape[0]
    num_kv_heads = (params.w_qkv.shape[1] - num_heads) // 2
    heads = project_heads(x, params.w_qkv, params.b_qkv)  # (…, N + 2K, T, H)
    cuts = [num_heads, num_heads + num_kv_heads]
    q, k, v = jnp.split(heads, cuts, axis=-3)
    return q, k, v


def _add(x: Array, bias: Array | None) -> Array:
    return x if bias is None else x + jnp.reshape(bias, (1,) * (x.ndim - 1) + bias.shape)


def _check_inputs(
    params: MultiHeadParams, query: Array, key: Array, value: Array, gates: Array | None
) -> None:
    for x, name, weight in (
        (query, "query", params.w_q),
        (key, "key", params.w_k),
        (value, "value", params.w_v),
    ):
        check_rank(x, name, "(…, T, D)", 2)
        check_floating(x, name, weight, "the weights")
        check_axis(x, name, -1, "(…, T, D)", weight.shape[0], "the weights")
        batch = tuple(query.shape[:-2])
        got = tuple(x.shape[:-2])
        check(got == batch, name, f"the leading axes of query, {batch}", f"{got}, shape {x.shape}")
    check_axis(value, "value", -2, "(…, S, D)", key.shape[-2], "key")
    if gates is not None:
        check_floating(gates, "gates", params.w_q, "the weights")
        expected = (params.w_q.shape[1],)
        what = f"one number for each head, shape {expected}"
        check(gates.shape == expected, "gates", what, f"shape {gates.shape}")
