r"""Differential attention: what a second query attends to is subtracted.

Shapes: ``D`` width of the model, ``N`` query heads, ``K`` key/value heads, ``T`` positions, ``H``
width of queries and keys, ``C`` width of values.
"""

from typing import cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mha_book._checks import check_scale, check_shape, check_type
from mha_book.attention.dispatch import attend
from mha_book.masks import Mask
from mha_book.multihead.layer import project_heads, project_output, project_qkv
from mha_book.multihead.parameters import MultiHeadParams
from mha_book.multihead.sinks import of_each_head
from mha_book.rope import rotate

__all__ = ["differential_attention"]


def differential_attention(
    params: MultiHeadParams,
    w_q2: Float[Array, "D N H"],
    balance: Float[Array, "D N"] | Float[Array, ""] | float,
    x: Float[Array, "*batch T D"],
    *,
    angles: Float[Array, "T pairs"] | None = None,
    mask: Mask | Bool[Array, "..."] | None = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Subtract the attention of a second query, $O = (A_1 - \mu A_2) V$.

    Both queries read the same keys, so that the layer is a grouped one of ``2N`` query heads and a
    subtraction, and $\mu = \sigma(x \cdot w)$ is a number for each head and position.

    ``w_q2``, ``(D, N, H)``, makes the second queries, ``balance``, ``(D, N)``, makes $\mu$ by a
    sigmoid, or is $\mu$ itself, a number or an array ``()``. The other arguments are those of
    :func:`~mha_book.multihead.layer.multi_head_attention`.

    Differs from:
        The first version of the paper, where the second query has keys of its own and each head's
        output is normalized.

    References:
        Ye et al., Differential Transformer, arXiv 2410.05258; Differential Transformer V2,
        Microsoft, 2026 (https://github.com/microsoft/unilm).

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(0, 8, 4, num_kv_heads=2)
        >>> w = jnp.ones((8, 4))
        >>> jax.eval_shape(differential_attention, params, params.w_q, w, jnp.ones((5, 8))).shape
        (5, 8)
    """
    check_type(params, "params", MultiHeadParams)
    query, key, value = project_qkv(params, x, angles=angles)
    check_shape(w_q2, "w_q2", params.w_q.shape, "the shape of w_q,")
    second = project_heads(x, w_q2)
    second = second if angles is None else rotate(second, angles)
    first, other = (
        attend(q, key, value, layout="NTH", mask=mask, is_causal=is_causal) for q in (query, second)
    )
    if np.ndim(balance) == 0:
        check_scale(balance, "balance")
        share = jnp.asarray(balance, x.dtype)
    else:
        share = jax.nn.sigmoid(of_each_head(x, cast(Array, balance), "balance", query))
    return project_output(params, first - share * other)
