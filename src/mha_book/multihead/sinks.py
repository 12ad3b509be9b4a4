r"""Heads that may say nothing: a logit of its own in the softmax, or a gate on what they return.

A softmax gives all its weight away even where a head has nothing to say; trained heads then put it
on a *sink*, the first token as a rule. With either of these two they need none.

Shapes: ``D`` width of the model, ``N`` query heads, ``K`` key/value heads, ``T`` positions, ``H``
width of queries and keys, ``C`` width of values.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mha_book._checks import check, check_axis, check_floating, check_rank, check_shape
from mha_book.attention.dispatch import attend, attend_with_lse
from mha_book.masks import Mask
from mha_book.multihead.layer import project_heads, project_output, project_qkv
from mha_book.multihead.parameters import MultiHeadParams

__all__ = ["gated_attention", "sink_logit_attention"]


def sink_logit_attention(
    params: MultiHeadParams,
    sink: Float[Array, " N"],
    x: Float[Array, "*batch T D"],
    *,
    angles: Float[Array, "T pairs"] | None = None,
    mask: Mask | Bool[Array, "..."] | None = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Add $e^{s^h}$ to the denominator of the softmax: a key whose value is zero.

    The weights of a row sum to $\sigma(\lambda - s)$ with $\lambda$ the log-sum-exp of its scores,
    so the output of ordinary attention is multiplied by that. ``sink``, ``(N,)``, has one learned
    logit for each head; the other arguments are those of
    :func:`~mha_book.multihead.layer.multi_head_attention`.

    References:
        OpenAI, gpt-oss-120b and gpt-oss-20b Model Card, arXiv 2508.10925.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(0, 8, 4)
        >>> sink_logit_attention(params, jnp.zeros(4), jnp.ones((5, 8))).shape
        (5, 8)
    """
    query, key, value = project_qkv(params, x, angles=angles)
    check_floating(sink, "sink", x, "x")
    check_shape(sink, "sink", (query.shape[-3],), "axes (N,) =")
    heads, lse = attend_with_lse(query, key, value, layout="NTH", mask=mask, is_causal=is_causal)
    lse = jnp.maximum(lse, jnp.finfo(lse.dtype).min)  # of an empty row, if the sink is -inf too
    logit = jnp.broadcast_to(sink.astype(lse.dtype)[:, None], lse.shape)
    share = jax.nn.sigmoid(lse - logit)  # (…, N, T)
    return project_output(params, heads * share[..., None].astype(heads.dtype))


def gated_attention(
    params: MultiHeadParams,
    w_gate: Float[Array, "..."],
    x: Float[Array, "*batch T D"],
    *,
    angles: Float[Array, "T pairs"] | None = None,
    mask: Mask | Bool[Array, "..."] | None = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Multiply what the heads return by a gate that the query's input sets: $O \odot \sigma(X W)$.

    ``w_gate`` is ``(D, N, C)`` for a gate of each feature, or ``(D, N)`` for one of each head; the
    other arguments are those of :func:`~mha_book.multihead.layer.multi_head_attention`.

    References:
        Qiu et al., Gated Attention for Large Language Models, arXiv 2505.06708.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(0, 8, 4)
        >>> jax.eval_shape(gated_attention, params, jnp.ones((8, 4)), jnp.ones((5, 8))).shape
        (5, 8)
    """
    query, key, value = project_qkv(params, x, angles=angles)
    heads = attend(query, key, value, layout="NTH", mask=mask, is_causal=is_causal)
    check_floating(w_gate, "w_gate", x, "x")
    if w_gate.ndim == 3:
        check_axis(w_gate, "w_gate", 0, "(D, N, C)", x.shape[-1], "x")
        gate = project_heads(x, w_gate)
        check(gate.shape == heads.shape, "w_gate", "(D, N, C) or (D, N)", f"shape {w_gate.shape}")
    else:
        gate = of_each_head(x, w_gate, "w_gate", query)
    return project_output(params, heads * jax.nn.sigmoid(gate))


def of_each_head(x: Array, weight: Array, name: str, query: Array) -> Array:
    """Return ``(…, N, T, 1)``, what ``weight`` of ``(D, N)`` makes of the input for each head."""
    check_rank(x, "x", "(…, T, D)", 2)
    check_floating(weight, name, x, "x")
    expected = (x.shape[-1], query.shape[-3])
    check_shape(weight, name, expected, "one column a head, axes (D, N) =")
    return jnp.swapaxes(jnp.matmul(x, weight), -1, -2)[..., None]
