r"""What each head adds to the residual stream, and through it to the logits.

Head $h$ adds $O^h W_O^h$, and the layer the sum over heads. Since the logits are linear in the
residual stream once the scale of the last norm is held fixed, each head has a direct share of every
logit; what later layers make of its output is not in it.

Shapes: ``B`` texts, ``N`` query heads, ``K`` key/value heads, ``T`` queries, ``S`` keys, ``C``
width of values, ``D`` width of the model.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from mha_book._checks import check_flag, check_number, checked, widen

__all__ = ["direct_logit_attribution", "logit_directions"]


@checked
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
        ``(B, N, T)``, in nats, of either sign.

    References:
        Elhage et al., A mathematical framework for transformer circuits, 2021.

    Example:
        >>> outputs, w_o = jnp.full((1, 1, 1, 1), 2.0), jnp.array([[[3.0, 4.0]]])
        >>> direct_logit_attribution(outputs, w_o, jnp.array([[[1.0, 0.0]]])).tolist()
        [[[6.0]]]
    """
    head_outputs, w_o, directions = (widen(x) for x in (head_outputs, w_o, directions))
    return jnp.einsum("bntc,ncd,btd->bnt", head_outputs, w_o, directions)


@checked
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

    Example:
        >>> ones = jnp.ones((1, 1, 2))
        >>> logit_directions(2 * ones, jnp.ones(2), ones, 0.0, centered=False).tolist()
        [[[0.5, 0.5]]]
    """
    check_number(epsilon, "epsilon", "a non-negative number")
    check_flag(centered, "centered")
    stream, gain, readout = (widen(x) for x in (stream, gain, readout))
    direction = gain[None, None] * readout
    if centered:
        stream, direction = (x - x.mean(-1, keepdims=True) for x in (stream, direction))
    power = jnp.mean(jnp.square(stream), -1, keepdims=True)
    return direction / jnp.sqrt(power + epsilon)
