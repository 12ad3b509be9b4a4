r"""Which heads can build on which, from the weights alone, and how large a head's weights are.

A head $h$ writes $x\, W_V^h W_O^h$ to the residual stream. A later head $h'$ reads it through its
queries, keys or values; how far their subspaces meet is $\lVert W_V^h W_O^h \cdot W_Q^{h'}
W_K^{h'\top} \rVert$ over $\lVert W_V^h W_O^h \rVert\, \lVert W_Q^{h'} W_K^{h'\top} \rVert$, and
likewise with $W_K^{h'} W_Q^{h'\top}$ and $W_V^{h'} W_O^{h'}$, in Frobenius norms: from 0 to 1.
Between matrices turned at random against each other the root mean square is $1/\sqrt{D}$.

Shapes: ``D`` width of the model, ``N`` and ``M`` query heads of the earlier and the later layer.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from mha_book._checks import check, check_shape, check_type
from mha_book.multihead.grouped import repeat_kv_heads
from mha_book.multihead.parameters import MultiHeadParams, check_params

__all__ = ["BlockNorms", "Composition", "block_norms", "composition"]


class Composition(NamedTuple):
    """How far the heads of a later layer can read what those of an earlier one write.

    Args:
        query: ``(N, M)``, through the later head's queries.
        key: ``(N, M)``, through its keys.
        value: ``(N, M)``, through its values.
    """

    query: Array
    key: Array
    value: Array


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

    Raises:
        ValueError: the widths do not fit.

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
        scale = gain[:, None, None]
        w_q, w_k, w_v = (scale * w for w in later[:3])
        later = later._replace(w_q=w_q, w_k=w_k, w_v=w_v)
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


class BlockNorms(NamedTuple):
    r"""Frobenius norms of what stands for a head in the output projection.

    Args:
        w_o: ``(N,)``, of the row block $W_O^h$.
        w_v_w_o: ``(N,)``, of the product $W_V^h W_O^h$.
    """

    w_o: Array
    w_v_w_o: Array


def block_norms(params: MultiHeadParams) -> BlockNorms:
    r"""Return how large each head's block of $W_O$ is, alone and with the values it is given.

    The norm of the block alone says little of a head: with $W_V^h$ multiplied by any number and
    $W_O^h$ divided by it the layer is the same and this norm is not. The product's norm does not
    change.

    Args:
        params: a layer; grouped heads each count the values of their group.

    Returns:
        Two arrays ``(N,)``, 0 or more. Equal blocks, the baseline, have a share ``1/N`` each
        of the sum of squares.

    Example:
        >>> w, w_o = jnp.ones((4, 2, 1)), jnp.array([[[3.0, 4.0]], [[0.0, 0.0]]])
        >>> norms = block_norms(MultiHeadParams(w, w, w, w_o))
        >>> norms.w_o.tolist(), norms.w_v_w_o.tolist()
        ([5.0, 0.0], [10.0, 0.0])
    """
    check_params(params)
    out = _row_gram(params.w_o)
    values = _column_gram(repeat_kv_heads(params).w_v)
    product = jnp.sqrt(jnp.sum(values * out, (1, 2)))
    return BlockNorms(jnp.sqrt(jnp.trace(out, axis1=1, axis2=2)), product)


def _column_gram(weight: Array) -> Array:
    """Return the inner products of the columns of each head, (D, N, H) -> (N, H, H)."""
    return jnp.einsum("dnh,dng->nhg", weight, weight)


def _row_gram(weight: Array) -> Array:
    """Return the inner products of the rows of each head, (N, C, D) -> (N, C, C)."""
    return jnp.einsum("ncd,ned->nce", weight, weight)
