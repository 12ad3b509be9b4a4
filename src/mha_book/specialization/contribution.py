r"""What each head adds to the residual stream, and through it to the logits.

Head $h$ adds $O^h W_O^h$, and the layer the sum over heads. Since the logits are linear in the
residual stream once the scale of the last norm is held fixed, each head has a direct share of every
logit; what later layers make of its output is not in it.

Shapes: ``B`` texts, ``N`` query heads, ``K`` key/value heads, ``T`` queries, ``S`` keys, ``C``
width of values, ``D`` width of the model.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mha_book._checks import check, check_axis, check_flag, check_rank, check_shape, check_size
from mha_book.specialization.patterns import check_pairs, uniform_weights

__all__ = [
    "direct_logit_attribution",
    "logit_directions",
    "residual_norm_ratios",
    "uniform_outputs",
]


def residual_norm_ratios(
    head_outputs: Float[Array, "B N T C"],
    w_o: Float[Array, "N C D"],
    residual: Float[Array, "B T D"],
) -> Float[Array, "B N T"]:
    r"""Return how much a head adds over what it adds to, as a ratio of norms.

    $\lVert O^{hi} W_O^h \rVert / \lVert X^i \rVert$ for every head and position.

    Args:
        head_outputs: ``(B, N, T, C)``, as in the layer's intermediates.
        w_o: ``(N, C, D)``.
        residual: ``(B, T, D)``, the residual stream before the layer.

    Returns:
        ``(B, N, T)``, a ratio of norms, 0 or more. For the baseline give
        :func:`uniform_outputs`: the same head, attending evenly.

    Raises:
        ValueError: the axes do not fit.

    Example:
        >>> outputs, w_o = jnp.full((1, 1, 1, 1), 2.0), jnp.array([[[3.0, 4.0]]])
        >>> residual_norm_ratios(outputs, w_o, jnp.array([[[0.0, 5.0]]])).tolist()
        [[[2.0]]]
    """
    _check_outputs(head_outputs, w_o)
    _check_stream(residual, "residual", head_outputs, w_o)
    gram = jnp.einsum("ncd,ned->nce", w_o, w_o)
    squared = jnp.einsum("bntc,nce,bnte->bnt", head_outputs, gram, head_outputs)
    stream = jnp.sqrt(jnp.sum(jnp.square(residual), -1))[:, None]  # (B, 1, T)
    return jnp.sqrt(jnp.maximum(squared, 0.0)) / stream


def direct_logit_attribution(
    head_outputs: Float[Array, "B N T C"],
    w_o: Float[Array, "N C D"],
    directions: Float[Array, "B T D"],
) -> Float[Array, "B N T"]:
    r"""Return what each head adds to one logit of every position, directly.

    $O^{hi} W_O^h u^i$ with $u^i$ the direction that the logit reads. Summed over all heads, all
    other parts of the residual stream and the biases, this is the logit.

    Args:
        head_outputs: ``(B, N, T, C)``.
        w_o: ``(N, C, D)``.
        directions: ``(B, T, D)``, from :func:`logit_directions`.

    Returns:
        ``(B, N, T)``, in nats, of either sign; baseline as in :func:`residual_norm_ratios`.

    Raises:
        ValueError: the axes do not fit.

    References:
        Elhage et al., A mathematical framework for transformer circuits, 2021.

    Example:
        >>> outputs, w_o = jnp.full((1, 1, 1, 1), 2.0), jnp.array([[[3.0, 4.0]]])
        >>> direct_logit_attribution(outputs, w_o, jnp.array([[[1.0, 0.0]]])).tolist()
        [[[6.0]]]
    """
    _check_outputs(head_outputs, w_o)
    _check_stream(directions, "directions", head_outputs, w_o)
    return jnp.einsum("bntc,ncd,btd->bnt", head_outputs, w_o, directions)


def logit_directions(
    stream: Float[Array, "B T D"],
    gain: Float[Array, " D"],
    readout: Float[Array, "B T D"],
    epsilon: float,
    *,
    centered: bool,
) -> Float[Array, "B T D"]:
    r"""Return the directions in the residual stream that one logit of every position reads.

    With $g$ the gain of the last norm and $u$ the output embedding of a token, the logit
    $\operatorname{norm}(x) \cdot u$ is $x \cdot (g\,u/\sigma)$, $\sigma$ being the scale that the
    norm divides by; of a layer norm, which takes the mean away first, the mean over the features of
    that direction is taken away too.

    Args:
        stream: ``(B, T, D)``, the residual stream before the last norm.
        gain: ``(D,)``.
        readout: ``(B, T, D)``, for every position the output embedding of the token that is asked
            about, or the difference of two. Less the mean over the vocabulary, the logits are those
            that a uniform shift of all does not change.
        epsilon: of the norm.
        centered: True for a layer norm, False for RMSNorm.

    Returns:
        ``(B, T, D)``.

    Raises:
        ValueError: the axes do not fit.

    Example:
        >>> ones = jnp.ones((1, 1, 2))
        >>> logit_directions(2 * ones, jnp.ones(2), ones, 0.0, centered=False).tolist()
        [[[0.5, 0.5]]]
    """
    check_rank(stream, "stream", "(B, T, D)", 3)
    check_shape(readout, "readout", stream.shape, "the shape of stream,")
    check_shape(gain, "gain", stream.shape[-1:], "axes (D,) =")
    is_number = isinstance(epsilon, (int, float)) and not isinstance(epsilon, bool)
    check(is_number and epsilon >= 0, "epsilon", "a non-negative number", repr(epsilon))
    check_flag(centered, "centered")
    direction = gain[None, None] * readout
    if centered:
        stream, direction = (x - x.mean(-1, keepdims=True) for x in (stream, direction))
    power = jnp.mean(jnp.square(stream), -1, keepdims=True)
    return direction / jnp.sqrt(power + epsilon)


def uniform_outputs(
    value: Float[Array, "B K S C"], visible: Bool[Array, "B T S"], num_heads: int
) -> Float[Array, "B N T C"]:
    """Return the outputs of heads that attend evenly: means over the visible values.

    Args:
        value: ``(B, K, S, C)``, as in the layer's intermediates.
        visible: ``(B, T, S)``.
        num_heads: ``N``, a multiple of ``K``.

    Returns:
        ``(B, N, T, C)``.

    Raises:
        ValueError: the axes do not fit.

    Example:
        >>> value = jnp.array([[[[1.0], [3.0]]]])
        >>> uniform_outputs(value, jnp.ones((1, 1, 2), bool), 1).tolist()
        [[[[2.0]]]]
    """
    check_pairs(visible)
    check_rank(value, "value", "(B, K, S, C)", 4)
    check_axis(value, "value", 2, "(B, K, S, C)", visible.shape[2], "visible")
    groups = value.shape[1]
    check_size(num_heads, "num_heads")
    check(num_heads % groups == 0, "num_heads", f"a multiple of {groups}", num_heads)
    even = uniform_weights(visible)[:, 0].astype(value.dtype)
    return jnp.repeat(jnp.einsum("bts,bksc->bktc", even, value), num_heads // groups, axis=1)


def _check_outputs(head_outputs: Array, w_o: Array) -> None:
    check_rank(w_o, "w_o", "(N, C, D)", 3)
    check_rank(head_outputs, "head_outputs", "(B, N, T, C)", 4)
    what = f"axes (B, N, T, C) with N, C = {w_o.shape[:2]}"
    shape = head_outputs.shape
    fits = len(shape) == 4 and (shape[1], shape[3]) == w_o.shape[:2]
    check(fits, "head_outputs", what, f"shape {shape}")


def _check_stream(stream: Array, name: str, head_outputs: Array, w_o: Array) -> None:
    batch, _, length, _ = head_outputs.shape
    check_shape(stream, name, (batch, length, w_o.shape[2]), "axes (B, T, D) =")
