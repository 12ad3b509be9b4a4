r"""Attention whose gradient is the one derived by hand, to train with and to compare.

Two ways to serve the backward pass of :mod:`mha_book.attention_vjp`:

- *stored* (implementation "manual"): the exponentials of the forward pass are kept, ``N·T·S``
  numbers;
- *recomputed* (implementation "recompute"): of the softmax the log-sum-exp is kept alone, ``N·T``
  numbers in float32 at least, and $A^{hij} = \exp(S^{hij} - \ell^{hi})$ computed again. That the
  weights follow from a score and two numbers of its row, $\ell$ and $D$, is what lets blockwise
  algorithms go through the keys piece by piece.

Neither has forward mode: a ``jax.custom_vjp`` tells JAX the reverse alone.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from mha_book._dtypes import wide
from mha_book.attention import _exponentials, _scores
from mha_book.attention_vjp import AttentionGradients, _times, attention_vjp
from mha_book.heads import heads_first
from mha_book.masks import Mask
from mha_book.visibility import silence, visibility

__all__ = ["Saved", "backward", "forward", "run_manual", "run_recompute"]


class Saved(NamedTuple):
    """What the forward pass keeps for the backward pass.

    Args:
        query: ``(…, N, T, H)``, silenced: see :func:`~mha_book.visibility.silence`.
        key: ``(…, K, S, H)``, likewise.
        value: ``(…, K, S, C)``, likewise.
        mask: the mask, as structure.
        bias: of the rank of the scores, or None.
        scale: ``()``.
        weight_factors: of the rank of the scores, or None.
        output: ``(…, N, T, C)``, in float32 at least.
        lse: ``(…, N, T)``, likewise.
        exponentials: ``(…, N, T, S)``, or None where they are to be recomputed.
        total: ``(…, N, T, 1)``, their sums, or None.
    """

    query: Array
    key: Array
    value: Array
    mask: Mask | None
    bias: Array | None
    scale: Array
    weight_factors: Array | None
    output: Array
    lse: Array
    exponentials: Array | None
    total: Array | None


def forward(
    query: Array,
    key: Array,
    value: Array,
    *,
    mask: Mask | None = None,
    bias: Array | None = None,
    scale: Any = None,
    weight_factors: Array | None = None,
    recompute: bool = False,
) -> tuple[Array, Array, Saved]:
    """Return output and log-sum-exp of attention, and what :func:`backward` needs.

    The steps of :func:`~mha_book.attention.scaled_dot_product_attention`.

    Args:
        query: ``(…, N, T, H)``.
        key: ``(…, K, S, H)``.
        value: ``(…, K, S, C)``.
        mask: a mask as structure.
        bias: added to the scaled scores, full rank.
        scale: factor of the scores; None means ``1 / sqrt(H)``.
        weight_factors: multiplies the weights, full rank.
        recompute: whether to keep the log-sum-exp in place of the exponentials.

    Returns:
        ``(…, N, T, C)`` in the dtype of the query, ``(…, N, T)``, and what was kept.

    Example:
        >>> x = jnp.ones((2, 3, 4))
        >>> _, _, saved = forward(x, x, x, recompute=True)
        >>> saved.lse.shape, saved.exponentials
        ((2, 3), None)
    """
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scale = jnp.asarray(scale, wide(query.dtype))
    visible = visibility(query, key, mask=mask, bias=bias)
    dtype, (query, key, value) = query.dtype, silence(query, key, value, visible)
    exponentials, total, lse = _exponentials(_scores(query, key, bias, scale), visible)
    factored = exponentials
    if weight_factors is not None:
        factored = exponentials * weight_factors.astype(exponentials.dtype)
    output = _times(factored, value.astype(exponentials.dtype)) / total  # (…, N, T, C)
    kept = (None, None) if recompute else (exponentials, total)
    saved = Saved(query, key, value, mask, bias, scale, weight_factors, output, lse, *kept)
    return output.astype(dtype), lse, saved


def backward(saved: Saved, d_output: Array, d_lse: Array | None = None) -> AttentionGradients:
    """Return the gradients of attention, from what :func:`forward` kept.

    Args:
        saved: what was kept.
        d_output: ``(…, N, T, C)``.
        d_lse: ``(…, N, T)``, or None for zeros.

    Returns:
        The gradients.

    Example:
        >>> x = jnp.ones((2, 3, 4))
        >>> output, _, saved = forward(x, x, x)
        >>> backward(saved, output).value.shape
        (2, 3, 4)
    """
    if saved.exponentials is None or saved.total is None:
        weights = _weights(saved._replace(query=_not_before(d_output, saved.query)))
    else:
        # The sum of a row divides the few numbers of d_output, not the many of the weights.
        weights = saved.exponentials
        d_output = d_output.astype(weights.dtype) / saved.total
        d_lse = None if d_lse is None else d_lse / saved.total[..., 0]
    return attention_vjp(
        saved.query, saved.key, saved.value, weights, saved.output, d_output,
        d_lse=d_lse, empty=jnp.isneginf(saved.lse), bias=saved.bias, scale=jnp.asarray(saved.scale),
        weight_factors=saved.weight_factors,
    )  # fmt: skip


def _not_before(awaited: Array, x: Array) -> Array:
    """Return ``x`` so that it, and what is computed from it, has to wait for ``awaited``.

    A compiler that sees the same scores in both passes keeps them from the first, and one that
    does not may compute them long before they are needed: either way they take the memory that
    the second computation was to spare. (XLA drops ``jax.lax.optimization_barrier`` on a CPU
    before it orders the operations.) So a zero is added that it cannot know to be one.
    """
    summed = jnp.sum(awaited)
    never = jnp.logical_and(jnp.isnan(summed), jnp.isinf(summed))
    return x + never.astype(x.dtype)


def _weights(saved: Saved) -> Array:
    r"""Return $A = \exp(S - \ell)$, zeros in an empty row."""
    visible = visibility(saved.query, saved.key, mask=saved.mask, bias=saved.bias)
    scores = _scores(saved.query, saved.key, saved.bias, saved.scale)
    if visible is not None:
        scores = jnp.where(visible, scores, -jnp.inf)
    lse = jnp.where(jnp.isneginf(saved.lse), 0.0, saved.lse)
    return jnp.exp(scores - lse[..., None])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
    recompute: bool,
    query: Array,
    key: Array,
    value: Array,
    mask: Mask | None,
    bias: Array | None,
    scale: Array,
    weight_factors: Array | None,
) -> tuple[Array, Array]:
    return _keep(recompute, query, key, value, mask, bias, scale, weight_factors)[0]


def _keep(
    recompute: bool,
    query: Array,
    key: Array,
    value: Array,
    mask: Mask | None,
    bias: Array | None,
    scale: Array,
    weight_factors: Array | None,
) -> tuple[tuple[Array, Array], Saved]:
    options: dict[str, Any] = {"mask": mask, "bias": bias, "scale": scale}
    options |= {"weight_factors": weight_factors, "recompute": recompute}
    output, lse, saved = forward(query, key, value, **options)
    return (output, lse), saved


def _pull(recompute: bool, saved: Saved, cotangents: tuple[Array, Array]) -> tuple[Any, ...]:
    del recompute  # what was kept says it
    query, key, value, bias, scale, weight_factors = backward(saved, *cotangents)
    return query, key, value, None, bias, scale, weight_factors  # a mask has no gradient


_attention.defvjp(_keep, _pull)


def _run(
    recompute: bool,
    query: Array,
    key: Array,
    value: Array,
    mask: Mask | None,
    bias: Array | None,
    scale: Any,
    layout: str,
    return_lse: bool,
    weight_factors: Array | None = None,
) -> Any:
    """Serve :func:`mha_book.dispatch.attend` with the gradient by hand."""
    query, key, value = (heads_first(x, layout) for x in (query, key, value))
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale
    scale = jnp.asarray(scale, wide(query.dtype))
    output, lse = _attention(recompute, query, key, value, mask, bias, scale, weight_factors)
    output = heads_first(output, layout)
    return (output, lse) if return_lse else output


run_manual = functools.partial(_run, False)
"""Serves ``attend``: the backward pass by hand, from the exponentials of the forward pass."""

run_recompute = functools.partial(_run, True)
"""Serves ``attend``: the backward pass by hand, the weights computed again."""
