r"""QK-norm: scores kept small by a norm on every query and key.

Shapes: ``D`` width of the model, ``N`` query heads, ``K`` key/value heads, ``T`` positions, ``H``
width of queries and keys, ``C`` width of values.
"""

from jaxtyping import Array, Bool, Float

from mha_book._checks import check_floating, check_shape
from mha_book.attention.dispatch import attend
from mha_book.layers import rms_norm
from mha_book.masks import Mask
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.multihead.parameters import MultiHeadParams
from mha_book.rope import rotate

__all__ = ["normalized_attention"]


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
        >>> import jax, jax.numpy as jnp
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
