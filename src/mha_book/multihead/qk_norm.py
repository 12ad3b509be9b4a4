r"""Scores kept small: QK-norm on every query and key, or QK-clip on the weights after a step.

Shapes: ``D`` width of the model, ``N`` query heads, ``K`` key/value heads, ``T`` positions, ``H``
width of queries and keys, ``C`` width of values.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mha_book._checks import check, check_floating, check_number, check_shape
from mha_book.attention.dispatch import attend
from mha_book.layers import rms_norm
from mha_book.masks import Mask
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.multihead.parameters import MultiHeadParams, check_params
from mha_book.rope import rotate

__all__ = ["clip_queries_and_keys", "normalized_attention"]


def normalized_attention(
    params: MultiHeadParams,
    norm_q: Float[Array, " H"],
    norm_k: Float[Array, " H"],
    x: Float[Array, "*batch T D"],
    *,
    epsilon: float = 1e-6,
    angles: Float[Array, "T pairs"] | None = None,
    mask: Mask | Bool[Array, "..."] | None = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""QK-norm: divide each query and key by its root mean square, before they are rotated.

    No score exceeds $\sqrt{d_k}$ times the largest products of the two weights.

    ``norm_q`` and ``norm_k``, ``(H,)``, are the weights of the norms; ``epsilon`` is added to the
    mean square. The other arguments are those of
    :func:`~mha_book.multihead.layer.multi_head_attention`.

    References:
        Henry et al., Query-Key Normalization for Transformers, arXiv 2010.04245, with another norm;
        the form with a root mean square is that of Qwen3.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(0, 8, 4)
        >>> w = jnp.ones(2)
        >>> jax.eval_shape(normalized_attention, params, w, w, jnp.ones((5, 8))).shape
        (5, 8)
    """
    query, key, value = project_qkv(params, x)
    for weight, name in ((norm_q, "norm_q"), (norm_k, "norm_k")):
        check_floating(weight, name, x, "x")
        check_shape(weight, name, query.shape[-1:], "axes (H,) =")
    query, key = rms_norm(query, norm_q, epsilon), rms_norm(key, norm_k, epsilon)
    if angles is not None:
        query, key = rotate(query, angles), rotate(key, angles)
    return project_output(
        params, attend(query, key, value, layout="NTH", mask=mask, is_causal=is_causal)
    )


def clip_queries_and_keys(
    params: MultiHeadParams, largest_scores: Float[Array, " N"], threshold: float
) -> MultiHeadParams:
    r"""QK-clip: after a step of training, shrink the heads whose largest score was too large.

    $W_Q^h$ and $W_K^h$ are multiplied by $\sqrt{\gamma^h}$, with
    $\gamma^h = \min(1, \tau / S^h_{\max})$, and all scores of the head thereby by $\gamma^h$.

    Args:
        params: the weights, with as many key heads as query heads and without biases.
        largest_scores: ``(N,)``, the largest score of each head in the batch, after scaling.
        threshold: $\tau$; the paper has 100.

    Raises:
        ValueError: the shapes do not fit, a key head is shared, the threshold is not positive, or a
            score is NaN. Inside ``jax.jit`` a score of NaN makes the weights of its head NaN.

    Differs from:
        The paper's form for latent attention, whose shared rotated key is left as it is and its
        query multiplied by $\gamma^h$.

    References:
        Kimi Team, Kimi K2: Open Agentic Intelligence, arXiv 2507.20534.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(0, 8, 4)
        >>> clipped = clip_queries_and_keys(params, jnp.array([50.0, 400, 0, -1]), 100.0)
        >>> (clipped.w_q[0] / params.w_q[0])[:, 0].round(3).tolist()
        [1.0, 0.5, 1.0, 1.0]
    """
    check_params(params)
    num_heads, num_kv_heads = params.w_q.shape[1], params.w_k.shape[1]
    check(num_heads == num_kv_heads, "params", "as many key heads as query heads", num_kv_heads)
    check(params.b_q is None and params.b_k is None, "params", "no biases", "biases")
    check_floating(largest_scores, "largest_scores", params.w_q, "w_q")
    check_shape(largest_scores, "largest_scores", (num_heads,), "axes (N,) =")
    check_number(threshold, "threshold", "a positive number", positive=True)
    if not isinstance(largest_scores, jax.core.Tracer):
        scores = np.asarray(largest_scores, np.float32)
        check(not np.isnan(scores).any(), "largest_scores", "numbers", scores.tolist())
    most = jnp.asarray(threshold, largest_scores.dtype)
    factor = jnp.where(largest_scores <= most, 1.0, most / largest_scores)  # NaN stays NaN
    root = jnp.sqrt(factor).astype(params.w_q.dtype)[None, :, None]
    return params._replace(w_q=params.w_q * root, w_k=params.w_k * root)
