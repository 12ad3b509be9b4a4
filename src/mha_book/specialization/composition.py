r"""Which heads can build on which, from the weights alone: Q-, K- and V-composition.

A head $h$ writes $x\, W_V^h W_O^h$ to the residual stream. A later head $h'$ reads it through its
queries, keys or values; how far their subspaces meet is $\lVert W_V^h W_O^h \cdot W_Q^{h'}
W_K^{h'\top} \rVert$ over $\lVert W_V^h W_O^h \rVert\, \lVert W_Q^{h'} W_K^{h'\top} \rVert$, and
likewise with $W_K^{h'} W_Q^{h'\top}$ and $W_V^{h'} W_O^{h'}$, in Frobenius norms: from 0 to 1.
Between matrices turned at random against each other the root mean square is $1/\sqrt{D}$.

Shapes: ``D`` width of the model, ``N`` and ``M`` query heads of the earlier and the later layer.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mha_book._checks import check, check_shape, check_type, checked, widen
from mha_book.multihead.grouped import repeat_kv_heads
from mha_book.multihead.parameters import MultiHeadParams, check_params

__all__ = ["composition"]


class Composition(NamedTuple):
    """What ``M`` later heads can read of ``N`` earlier ones, ``(N, M)``: by Q, K and V."""

    query: Array
    key: Array
    value: Array


@checked
def composition(
    earlier: MultiHeadParams, later: MultiHeadParams, gain: Float[Array, " D"] | None = None
) -> Composition:
    r"""Return the composition scores of all heads of two layers.

    Norms of products are taken through the small Gram matrices of the factors: no matrix of
    ``D × D`` is formed. Biases are left out, and so is rotation: with rotary positions the scores
    of queries and keys hold for equal positions.

    Args:
        earlier: a layer that writes to the residual stream.
        later: a layer that reads from it, self-attention.
        gain: ``(D,)``, the weight of the norm before the later layer; None for ones.

    Returns:
        Three arrays ``(N, M)``, from 0 to 1; baseline $1/\sqrt{D}$, a root mean square.

    References:
        Elhage et al., A mathematical framework for transformer circuits, 2021.

    Example:
        >>> import jax
        >>> layer = MultiHeadParams(*[jnp.ones((4, 2, 1))] * 3, jnp.ones((2, 1, 4)))
        >>> jax.jit(composition)(layer, layer).value.tolist()
        [[1.0, 1.0], [1.0, 1.0]]
    """
    for layer, name in ((earlier, "earlier"), (later, "later")):
        check_type(layer, name, MultiHeadParams, "as init_multi_head or unfuse give them")
    earlier, later = repeat_kv_heads(earlier), repeat_kv_heads(later)
    d_model = earlier.w_o.shape[-1]
    widths = [w.shape[0] for w in (later.w_q, later.w_k, later.w_v)]
    what = f"inputs as wide as what earlier writes, {d_model}"
    check(widths == [d_model] * 3, "later", what, f"widths {widths}")
    if gain is not None:
        check_shape(gain, "gain", (d_model,), "axes (D,) =")
        w_q, w_k, w_v = (gain[:, None, None] * w for w in later[:3])
        later = later._replace(w_q=w_q, w_k=w_k, w_v=w_v)
    # The score is a ratio; fourth powers of entries are summed, so these are at most 1.
    earlier, later = (MultiHeadParams(*(_scaled(w)[0] for w in p[:4])) for p in (earlier, later))
    # (N, C, C) each: the Gram matrices of a factor's columns, or of the rows of W_O.
    written = _column_gram(earlier.w_v), _row_gram(earlier.w_o)
    q, k, v, o = (*(_column_gram(w) for w in later[:3]), _row_gram(later.w_o))

    def score(read: Array, inner: Array, outer: Array) -> Array:
        """From ``read`` (D, M, H) and the Grams of its columns and of the factor after it."""
        between = jnp.einsum("ncd,dmh->nmch", earlier.w_o, read)
        left = jnp.einsum("nce,nmeh->nmch", written[0], between)
        right = jnp.einsum("nmcg,mgh->nmch", between, outer)
        squared = jnp.einsum("nmch,nmch->nm", left, right)
        one, other = jnp.sum(written[0] * written[1], (1, 2)), jnp.sum(inner * outer, (1, 2))
        return jnp.sqrt(jnp.maximum(squared, 0.0) / (one[:, None] * other[None, :]))

    return Composition(score(later.w_q, q, k), score(later.w_k, k, q), score(later.w_v, v, o))


def ov_norms(params: MultiHeadParams) -> Float[Array, " N"]:
    r"""Return the Frobenius norm of each head's OV matrix, $\lVert W_V^h W_O^h \rVert$.

    The norm of the block of $W_O$ alone says little: with $W_V^h$ multiplied by any number and
    $W_O^h$ divided by it the layer is the same.
    """
    check_params(params)
    values, size = _scaled(repeat_kv_heads(params).w_v)
    out, other = _scaled(params.w_o)
    return jnp.sqrt(jnp.sum(_column_gram(values) * _row_gram(out), (1, 2))) * size * other


def _scaled(weight: Array) -> tuple[Array, Array]:
    """Return a weight over its largest entry, in float32 or wider, and that entry."""
    weight = widen(weight)
    size = jnp.abs(jax.lax.stop_gradient(weight))  # it cancels, and its gradient would be rounding
    largest = jnp.max(size, initial=jnp.finfo(weight.dtype).tiny)
    return weight / largest, largest


def _column_gram(weight: Array) -> Array:
    """Return the inner products of the columns of each head, (D, N, H) -> (N, H, H)."""
    return jnp.einsum("dnh,dng->nhg", weight, weight)


def _row_gram(weight: Array) -> Array:
    """Return the inner products of the rows of each head, (N, C, D) -> (N, C, C)."""
    return jnp.einsum("ncd,ned->nce", weight, weight)
