r"""The backward pass of the multi-head layer, written out by hand: its pieces, and their chain.

A gradient is called ``d_`` and the name of what it belongs to; each function takes the gradient of
a result and gives those of what went in. Attention itself is in
:mod:`mha_book.attention.gradient`. Dropout needs no function: it multiplies by factors, and so does
its gradient. Letters: ``B`` batch, ``T`` queries, ``S`` keys, ``D`` width of the model, ``N`` query
heads, ``K`` key/value heads, ``H`` and ``C`` widths of heads.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from mha_book._checks import RngKey, check, check_numbers, checked
from mha_book.attention import gradient as attention_gradient
from mha_book.attention.operands import prepare
from mha_book.heads import combine_heads, split_heads
from mha_book.multihead.dropout import Dropout, draw_factors
from mha_book.multihead.layer import (
    broadcast_gates,
    check_dropout,
    check_gates,
    project_output,
    project_qkv,
)
from mha_book.multihead.parameters import FusedMultiHeadParams, MultiHeadParams, fuse, unfuse
from mha_book.rope import rotate

__all__ = ["multi_head_attention_vjp"]


@checked
def project_heads_vjp(
    x: Float[Array, "*batch T D"],
    weight: Float[Array, "D N H"],
    d_heads: Float[Array, "*batch N T H"],
) -> tuple[Array, Array, Array]:
    r"""Return the gradients of input, weight and bias, from $Q^{hia} = X^{ib} W^{bha} + b^{ha}$.

    $dX^{ib} = dQ^{hia} W^{bha}$, $dW^{bha} = X^{ib} dQ^{hia}$, $db^{ha} = \sum_i dQ^{hia}$; for one
    head $dX = dQ^h W^{h\top}$, summed over the heads, and $dW^h = X^\top dQ^h$. Batch entries are
    summed like positions.
    """
    d_model, num_heads, width = weight.shape
    flat = combine_heads(d_heads)  # (…, T, N·H)
    d_x = jnp.matmul(flat, jnp.reshape(weight, (d_model, num_heads * width)).T)
    d_weight = jnp.einsum("tf,td->fd", _rows(flat), _rows(x)).T  # the small result is turned
    d_bias = jnp.sum(_rows(flat), axis=0)
    return d_x, jnp.reshape(d_weight, weight.shape), jnp.reshape(d_bias, weight.shape[1:])


@checked
def combine_outputs_vjp(
    heads: Float[Array, "*batch N T C"],
    w_o: Float[Array, "N C D"],
    d_output: Float[Array, "*batch T D"],
) -> tuple[Array, Array, Array]:
    r"""Return the gradients of heads, weight and bias, from $Y^{id} = O^{hic} W_O^{hcd} + b^{d}$.

    $dO^{hic} = dY^{id} W_O^{hcd}$, $dW_O^{hcd} = O^{hic} dY^{id}$, $db^{d} = \sum_i dY^{id}$.
    """
    num_heads, width, d_model = w_o.shape
    flat = jnp.reshape(w_o, (num_heads * width, d_model))  # (N·C, D)
    d_mixed = jnp.matmul(d_output, flat.T)
    # No heads at all: a layer whose heads were all removed.
    d_heads = split_heads(d_mixed, num_heads) if num_heads else jnp.zeros_like(heads)
    d_weight = jnp.einsum("tf,td->fd", _rows(combine_heads(heads)), _rows(d_output))
    return d_heads, jnp.reshape(d_weight, w_o.shape), jnp.sum(_rows(d_output), axis=0)


def _rows(x: Array) -> Array:
    """Fold all axes but the last: ``(B·T, X)``."""
    return jnp.reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))


class LayerGradients(NamedTuple):
    """The gradients of a layer, each of the shape of its operand; None for what was not given."""

    params: Any  # MultiHeadParams | FusedMultiHeadParams, as the layer's parameters
    query: Array  # in self-attention the sum over its three paths
    key: Array | None  # where no value was given, the sum over its two paths
    value: Array | None
    bias: Array | None  # of the scores
    gates: Array | None


def multi_head_attention_vjp(
    params: MultiHeadParams | FusedMultiHeadParams,
    query: Float[Array, "*batch T D"],
    key: Float[Array, "*batch S D_k"] | None = None,
    value: Float[Array, "*batch S D_v"] | None = None,
    *,
    mask: Any = None,
    bias: Float[Array, "..."] | None = None,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    gates: Float[Array, " N"] | None = None,
    angles: Float[Array, "*angle_batch T pairs"] | None = None,
    dropout: Dropout | None = None,
    rng_key: RngKey | None = None,
    implementation: str = "manual",
) -> tuple[Array, Callable[[Array], LayerGradients]]:
    r"""Return the layer's output and the function that takes its gradient back to everything.

    What :func:`jax.vjp` gives for :func:`~mha_book.multihead.layer.multi_head_attention`, without
    automatic differentiation. Backwards: the output projection, gates, dropout (which multiplies
    the gradient by the factors of the forward pass), attention, rotation, the three projections.
    An input that takes several paths gets the sum of their gradients.

    The arguments are those of the layer; ``scale`` and ``angles`` get no gradient. Between the
    passes ``implementation`` "manual" keeps the exponentials of the scores, "recompute" their
    log-sum-exp.

    Returns:
        ``(…, T, D)``, and a function from ``d_output`` ``(…, T, D)`` to :class:`LayerGradients`.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(0, d_model=8, num_heads=2)
        >>> output, pull = multi_head_attention_vjp(params, jnp.ones((5, 8)))
        >>> pull(output).params.w_q.shape
        (8, 2, 4)
    """
    known = ("manual", "recompute")
    what = f"one of {', '.join(known)}"
    check(implementation in known, "implementation", what, repr(implementation))
    q, k, v = project_qkv(params, query, key, value, angles=angles)
    separate = unfuse(params) if isinstance(params, FusedMultiHeadParams) else params
    key_input = query if key is None else key
    value_input = key_input if value is None else value
    check_gates(gates, q)
    check_dropout(dropout, rng_key)
    scores_shape = (*q.shape[:-1], k.shape[-2])
    d_model = separate.w_o.shape[-1]
    factors = draw_factors(dropout, rng_key, scores_shape, v.shape[-1], d_model, query.dtype)
    operands = prepare(
        q, k, v, mask=mask, bias=bias, is_causal=is_causal, scale=scale,
        dropout_multiplier=factors.weights,
    )  # fmt: skip
    recompute = implementation == "recompute"
    head_outputs, _, saved = attention_gradient.forward(operands, recompute=recompute)
    kept = _times(head_outputs, factors.heads)
    gated = kept if gates is None else kept * broadcast_gates(gates, kept.ndim)
    output = project_output(separate, gated)

    def pull(d_output: Array) -> LayerGradients:
        check_numbers(d_output, "d_output", output.shape, "the shape of the output,")
        d_output = _times(d_output, factors.output)
        d_gated, d_w_o, d_b_o = combine_outputs_vjp(gated, separate.w_o, d_output)
        d_kept, d_gates = d_gated, None
        if gates is not None:
            d_kept = d_gated * broadcast_gates(gates, kept.ndim)
            d_gates = jnp.sum(jnp.moveaxis(kept * d_gated, -3, 0), axis=[*range(1, kept.ndim)])
        d_q, d_k, d_v, d_bias, _, _ = attention_gradient.backward(
            saved, _times(d_kept, factors.heads)
        )
        if angles is not None:  # the transpose of a rotation turns back
            d_q, d_k = rotate(d_q, -angles), rotate(d_k, -angles)
        d_query, d_w_q, d_b_q = project_heads_vjp(query, separate.w_q, d_q)
        d_key, d_w_k, d_b_k = project_heads_vjp(key_input, separate.w_k, d_k)
        d_value, d_w_v, d_b_v = project_heads_vjp(value_input, separate.w_v, d_v)
        found = MultiHeadParams(d_w_q, d_w_k, d_w_v, d_w_o, d_b_q, d_b_k, d_b_v, d_b_o)
        # A bias that is not there has no gradient.
        absent = [name for name, x in separate._asdict().items() if x is None]
        d_params = found._replace(**dict.fromkeys(absent))  # type: ignore[arg-type]
        if value is None:  # two paths meet, and a third one where the query is the key too
            d_key = d_key + d_value
        if key is None:
            d_query = d_query + d_key
        return LayerGradients(
            fuse(d_params) if isinstance(params, FusedMultiHeadParams) else d_params,
            d_query,
            None if key is None else d_key,
            None if value is None else d_value,
            d_bias,
            d_gates,
        )

    return _times(output, factors.output), pull


def _times(x: Array, factors: Array | None) -> Array:
    return x if factors is None else x * factors
