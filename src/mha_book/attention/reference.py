r"""Scaled dot-product attention, written to be read: the reference that all others are held to.

$O = \operatorname{softmax}(Q K^\top / \sqrt{d_k} + B)\, V$ for every head. Shapes: as in
:mod:`~mha_book.attention.operands`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mha_book._checks import accumulator_dtype
from mha_book.attention.operands import Operands, empty_result, fold_groups, prepare
from mha_book.masks import Mask, zero_unattended

__all__ = ["attention_weights", "scaled_dot_product_attention"]


def attention_weights(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    logit_softcap: float | None = None,
) -> Float[Array, "*batch T S"]:
    r"""Return how much each query attends to each key, for every head separately.

    $A^{hij} = \exp(S^{hij}) / \sum_{j'} \exp(S^{hij'})$ with
    $S^{hij} = Q^{hia} K^{hja} / \sqrt{d_k} + B^{hij}$ over the visible keys.

    ``query`` is ``(…, N, T, H)``, or ``(T, H)`` for one head, and ``key`` ``(…, K, S, H)`` with
    ``N`` a multiple of ``K``. The options are those of
    :func:`~mha_book.attention.dispatch.attend`; where the bias $B$ is -inf, a key is hidden.

    Returns:
        ``(…, N, T, S)``, each row summing to 1, or to 0 where a row is empty; float32 for
        half-precision inputs, otherwise the dtype of the inputs.

    Example:
        >>> two_equal_keys = jnp.ones((2, 4))
        >>> attention_weights(jnp.ones((1, 4)), two_equal_keys).tolist()
        [[0.5, 0.5]]
    """
    operands = prepare(
        query, key, key, mask=mask, bias=bias, is_causal=is_causal, scale=scale,
        logit_softcap=logit_softcap,
    )  # fmt: skip
    if operands.is_empty:
        return jnp.zeros(operands.scores_shape, accumulator_dtype(query.dtype))
    visible = operands.visible()
    query, key, _ = zero_unattended(operands.query, operands.key, operands.key, visible)
    numerators, total, _ = exponentials(
        scores(query, key, operands.bias, operands.scale, operands.softcap), visible
    )
    return numerators / total


def scaled_dot_product_attention(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    value: Float[Array, "*kv_batch S C"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    dropout_multiplier: Float[Array, "..."] | None = None,
    logit_softcap: float | None = None,
) -> Float[Array, "*batch T C"]:
    r"""Return, for every head and query, the average of the values under the attention weights.

    $O^{hic} = A^{hij} V^{hjc}$ with the weights of :func:`attention_weights`.

    Half-precision inputs are widened to float32 for the whole computation and the output is
    narrowed at the end; float32 and float64 stay what they are. A row is *empty* when every key is
    masked or all its scores are -inf: its output and all gradients through it are zero. The query
    of an empty row, and the key and value of a position that no query may attend to, may hold NaN
    or infinities without harm.

    The arguments are those of :func:`~mha_book.attention.dispatch.attend`, heads first.

    Returns:
        ``(…, N, T, C)`` in the dtype of the inputs. Its log-sum-exp is the second result of
        :func:`~mha_book.attention.dispatch.attend_with_lse`.

    Differs from:
        ``jax.nn.dot_product_attention``, which takes ``(B, T, N, H)``, gives the mean of the
        values for an empty row, and reads a mask of two axes as ``(T, S)`` whatever was meant;
        ``torch``'s function of the same name, whose causal mask of a single late query shows it
        the first key alone.

    References:
        Vaswani et al., Attention Is All You Need, 2017, equation 1.

    Example:
        >>> identity = jnp.eye(2)
        >>> out = scaled_dot_product_attention(identity, identity, identity, is_causal=True)
        >>> out[0].tolist()  # the first query sees the first key alone
        [1.0, 0.0]
    """
    operands = prepare(
        query, key, value, mask=mask, bias=bias, is_causal=is_causal, scale=scale,
        dropout_multiplier=dropout_multiplier, logit_softcap=logit_softcap,
    )  # fmt: skip
    return (empty_result if operands.is_empty else reference_attention)(operands)[0]


def reference_attention(operands: Operands) -> tuple[Array, Array]:
    """Return the output ``(…, N, T, C)`` and the log-sum-exp ``(…, N, T)`` of checked operands."""
    visible = operands.visible()
    query, key, value = zero_unattended(operands.query, operands.key, operands.value, visible)
    numerators, total, lse = exponentials(
        scores(query, key, operands.bias, operands.scale, operands.softcap), visible
    )
    if operands.dropout_multiplier is not None:
        numerators = numerators * operands.dropout_multiplier.astype(numerators.dtype)
    rows = fold_groups(numerators, value)  # (…, K, G·T, S)
    # The weights stay in float32, and so the values are widened to it: a product of half precision
    # alone would round the weights.
    output = jnp.matmul(rows, value.astype(numerators.dtype))  # (…, K, G·T, C)
    output = jnp.reshape(output, (*numerators.shape[:-1], value.shape[-1]))  # (…, N, T, C)
    # The row's sum divides C numbers here, where it would divide S weights before the product.
    return (output / total).astype(query.dtype), lse


def scores(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    bias: Float[Array, "..."] | None,
    scale: float | Float[Array, ""],
    softcap: Callable[[Array], Array] | None = None,
) -> Float[Array, "*batch T S"]:
    """Return the scores ``(…, N, T, S)``, scaled, bounded and biased, in float32 at least."""
    dtype = accumulator_dtype(query.dtype)
    shape = (*query.shape[:-1], key.shape[-2])
    # The queries are scaled, not the scores: a compiler may join a product with the subtraction of
    # the row maximum, without rounding between them, and then a huge score exceeds its maximum.
    # So half precision is widened here: a product of half-precision operands, accumulated in
    # float32, would leave the keys as they are, but the scale would have to multiply the scores.
    query = query.astype(dtype) * jnp.asarray(scale, dtype)
    rows = fold_groups(query, key)  # (…, K, G·T, H)
    products = jnp.matmul(rows, jnp.swapaxes(key, -1, -2).astype(dtype))  # (…, K, G·T, S)
    products = jnp.reshape(products, shape)
    products = products if softcap is None else softcap(products)
    return products if bias is None else products + bias.astype(dtype)


def exponentials(
    scores: Float[Array, "*batch T S"], visible: Bool[Array, "..."] | None
) -> tuple[Array, Array, Array]:
    """Return what the softmax divides, what it divides by, and the log-sum-exp of each row.

    ``(…, N, T, S)``, ``(…, N, T, 1)`` and ``(…, N, T)``; an empty row has zeros, 1 and -inf.
    """
    if visible is not None:
        scores = jnp.where(visible, scores, -jnp.inf)
    # Subtracting the row maximum changes nothing but the range: exp never exceeds 1. The maximum
    # is a constant for the gradient, since it cancels; an empty row has -inf there, which would
    # turn into NaN.
    maximum = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
    maximum = jnp.where(jnp.isneginf(maximum), 0.0, maximum)
    numerators = jnp.exp(scores - maximum)
    total = jnp.sum(numerators, axis=-1, keepdims=True)
    empty = total == 0.0
    total = jnp.where(empty, 1.0, total)
    lse = jnp.where(empty, -jnp.inf, maximum + jnp.log(total))
    return numerators, total, lse[..., 0]
