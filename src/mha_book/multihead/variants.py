r"""Variants of the layer: each is the layer with one or two of its seven lines changed.

The layer is $Q = X W_Q$, $K = X W_K$, $V = X W_V$, $S = Q K^\top / \sqrt{d_k}$,
$A = \operatorname{softmax} S$, $O = A V$, $Y = O W_O$ in every head. Multi-query and grouped heads
are shapes of its own weights; latent attention is :mod:`mha_book.multihead.latent`. What stands
here is composed of :func:`~mha_book.multihead.layer.project_qkv`,
:func:`~mha_book.attention.dispatch.attend` and :func:`~mha_book.multihead.layer.project_output`.

Shapes: ``D`` width of the model, ``N`` query heads, ``K`` key/value heads, ``T`` positions, ``H``
width of queries and keys, ``C`` width of values.
"""

import math
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mha_book._checks import (
    check,
    check_axis,
    check_floating,
    check_number,
    check_rank,
    check_scale,
    check_shape,
    check_size,
    check_type,
)
from mha_book.attention.dispatch import attend, attend_with_lse
from mha_book.attention.operands import fold_groups
from mha_book.attention.reference import scores
from mha_book.layers import rms_norm
from mha_book.masks import Mask, as_mask, visibility, zero_unattended
from mha_book.multihead.latent import LatentParams, compress, expanded_attention
from mha_book.multihead.layer import (
    multi_head_attention,
    project_heads,
    project_output,
    project_qkv,
)
from mha_book.multihead.parameters import MultiHeadParams, check_params
from mha_book.rope import rotate

__all__ = [
    "TensorProductParams",
    "as_latent",
    "as_tensor_product",
    "clip_queries_and_keys",
    "differential_attention",
    "gated_attention",
    "grouped_latent_attention",
    "head_windows",
    "knocking_heads",
    "low_rank_attention",
    "mixture_of_heads",
    "multi_matrix_attention",
    "normalized_attention",
    "sigmoid_attention",
    "sink_logit_attention",
    "talking_heads_attention",
    "tensor_product_attention",
    "tied_attention",
]

_Mask = Mask | Bool[Array, "..."] | None


# What is kept of a position.


def tied_attention(
    params: MultiHeadParams,
    w_kr: Float[Array, "D P"],
    x: Float[Array, "*batch T D"],
    angles: Float[Array, "T pairs"],
    *,
    mask: _Mask = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Grouped-tied attention: the first features of a value are its key too.

    The rest of the key, ``P`` features that are rotated, is made by ``w_kr`` and shared by all
    heads. Kept of a position are ``K·C + P`` numbers in the place of ``K·(H + C)``.

    Args:
        params: the weights; ``w_k`` is not read, and the last ``P`` features of ``w_q`` are those
            of the rotated part. ``C`` is at least ``H - P``.
        w_kr: ``(D, P)``.
        x: ``(…, T, D)``.
        angles: ``(T, P/2)`` from :func:`~mha_book.rope.rotary_angles`.
        mask: as in :func:`~mha_book.multihead.layer.multi_head_attention`.
        is_causal: likewise.

    Returns:
        ``(…, T, D)``.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

    References:
        Zadouri, Strauss and Dao, Hardware-Efficient Attention for Fast Decoding, arXiv 2505.21487,
        section 3.3.1.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(0, 8, 4, num_kv_heads=2, head_dim=6)
        >>> x, angles = jnp.ones((5, 8)), jnp.zeros((5, 1))
        >>> jax.eval_shape(tied_attention, params, jnp.ones((8, 2)), x, angles).shape
        (5, 8)
    """
    check_type(params, "params", MultiHeadParams)
    query, _, value = project_qkv(params, x)
    rotated = _shape_of(w_kr, "w_kr", "(D, P)", x, params.w_q.shape[0])[1]
    plain = query.shape[-1] - rotated
    fits = rotated % 2 == 0 and 0 < plain <= value.shape[-1]
    check(fits, "w_kr", "P below H, even, and H - P at most C", w_kr.shape)
    turned = jnp.concatenate((query[..., :plain], rotate(query[..., plain:], angles)), axis=-1)
    shared = rotate(jnp.matmul(x, w_kr), angles)[..., None, :, :]  # one for all heads
    shared = jnp.broadcast_to(shared, (*value.shape[:-1], rotated))
    key = jnp.concatenate((value[..., :plain], shared), axis=-1)  # (…, K, T, H)
    return project_output(
        params, attend(turned, key, value, layout="NTH", mask=mask, is_causal=is_causal)
    )


def low_rank_attention(
    params: LatentParams,
    x: Float[Array, "*batch T D"],
    angles: Float[Array, "T pairs"],
    num_blocks: int,
    *,
    mask: _Mask = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Multi-head low-rank attention: each block of the latent is attended to by itself.

    With $n$ blocks of the latent, every head takes $n$ averages and adds them,
    $O^h = \frac{1}{\sqrt n} \sum_p \operatorname{softmax}(S^{ph}) Z^p W_{UV}^{ph}$. One block is
    latent attention. Blocks can lie on different devices; as many numbers are kept.

    Args:
        params: of a latent layer without norm of its latent; ``R`` is divided into blocks.
        x: ``(…, T, D)``.
        angles: ``(T, P/2)``.
        num_blocks: $n$, a divisor of ``R``.
        mask: as in :func:`~mha_book.multihead.layer.multi_head_attention`.
        is_causal: likewise.

    Returns:
        ``(…, T, D)``.

    Raises:
        ValueError: the blocks do not divide the latent, or it has a norm.

    Differs from:
        The paper, which gives each block of the latent a norm of its own and a factor.

    References:
        Liu et al., Multi-Head Low-Rank Attention, arXiv 2603.02188.

    Example:
        >>> from mha_book.multihead.latent import init_latent
        >>> sizes = {"latent_dim": 6, "head_dim": 4, "rotary_dim": 2, "value_dim": 3}
        >>> params = init_latent(0, 8, 5, **sizes)._replace(norm_c=None)
        >>> run = jax.tree_util.Partial(low_rank_attention, num_blocks=2)
        >>> jax.eval_shape(run, params, jnp.ones((7, 8)), jnp.zeros((7, 1))).shape
        (7, 8)
    """
    blocks = _blocks(params, num_blocks, "num_blocks")
    total = jnp.zeros_like(x)
    for block in blocks:
        latent = compress(block, x, angles)
        total += expanded_attention(block, x, latent, angles, mask=mask, is_causal=is_causal)
    return total / jnp.sqrt(jnp.asarray(num_blocks, x.dtype))


def grouped_latent_attention(
    params: LatentParams,
    x: Float[Array, "*batch T D"],
    angles: Float[Array, "T pairs"],
    num_groups: int,
    *,
    mask: _Mask = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Grouped latent attention: a group of heads reads one block of the latent.

    It is latent attention whose $W_{UK}$ and $W_{UV}$ are zero outside of the group's block.

    Args:
        params: of a latent layer without norm of its latent; ``R`` is divided into blocks, and
            head ``h`` reads block ``h // (N / num_groups)`` of ``w_uk`` and ``w_uv`` alone.
        x: ``(…, T, D)``.
        angles: ``(T, P/2)``.
        num_groups: a divisor of ``R`` and of ``N``.
        mask: as in :func:`~mha_book.multihead.layer.multi_head_attention`.
        is_causal: likewise.

    Returns:
        ``(…, T, D)``.

    Raises:
        ValueError: the groups divide the latent or the heads with a remainder.

    References:
        Zadouri, Strauss and Dao, arXiv 2505.21487, section 3.3.2.

    Example:
        >>> from mha_book.multihead.latent import init_latent
        >>> sizes = {"latent_dim": 6, "head_dim": 4, "rotary_dim": 2, "value_dim": 3}
        >>> params = init_latent(0, 8, 4, **sizes)._replace(norm_c=None)
        >>> run = jax.tree_util.Partial(grouped_latent_attention, num_groups=2)
        >>> jax.eval_shape(run, params, jnp.ones((7, 8)), jnp.zeros((7, 1))).shape
        (7, 8)
    """
    _check_blocks(params, num_groups, "num_groups")
    rank, num_heads, _ = params.w_uk.shape
    what = f"a number that divides the {num_heads} heads"
    check(num_heads % num_groups == 0, "num_groups", what, num_groups)
    block, group = (jnp.repeat(jnp.arange(num_groups), n // num_groups) for n in (rank, num_heads))
    is_own = (block[:, None] == group[None])[..., None]  # (R, N, 1)
    own = (jnp.where(is_own, w, jnp.zeros((), w.dtype)) for w in (params.w_uk, params.w_uv))
    params = params._replace(**dict(zip(("w_uk", "w_uv"), own, strict=True)))
    latent = compress(params, x, angles)
    return expanded_attention(params, x, latent, angles, mask=mask, is_causal=is_causal)


def _check_blocks(params: LatentParams, count: int, name: str) -> None:
    """Raise unless the latent of a layer can be cut into that many blocks."""
    check_type(params, "params", LatentParams, "as init_latent gives them")
    check_size(count, name)
    check_rank(params.w_uk, "w_uk", "(R, N, H)", 3)
    rank = params.w_uk.shape[0]
    check(rank % count == 0, name, f"a divisor of R = {rank}", count)
    check(params.norm_c is None, "norm_c", "None: the blocks would share it", "an array")


def _blocks(params: LatentParams, count: int, name: str) -> list[LatentParams]:
    """Return the weights of a latent layer for each block of its latent."""
    _check_blocks(params, count, name)
    parts = (jnp.split(w, count, axis) for w, axis in ((params.w_c, 1), (params.w_uk, 0)))
    values = jnp.split(params.w_uv, count, 0)
    return [
        params._replace(w_c=c, w_uk=uk, w_uv=uv) for c, uk, uv in zip(*parts, values, strict=True)
    ]


def as_latent(params: MultiHeadParams) -> LatentParams:
    r"""Write a grouped layer as a latent one that keeps as much: grouped heads are a case of it.

    The latent holds the values of all ``K`` heads side by side, the rotated part all keys; a head's
    query is zero but where the key of its group lies, and $W_{UV}$ picks the value of the group.

    Args:
        params: of a grouped layer, without biases.

    Returns:
        Weights with ``R = K·C``, ``P = K·H`` and nothing in ``w_uk``: ``R + P = K·(H + C)`` numbers
        are kept of a position, as before. The angles of the ``K`` keys stand side by side, too:
        ``jnp.tile(angles, (1, K))``.

    Raises:
        ValueError: the weights do not fit, or there are biases.

    References:
        Meng et al., TransMLA: Multi-Head Latent Attention Is All You Need, arXiv 2502.07864.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> as_latent(init_multi_head(0, 8, 6, num_kv_heads=3, head_dim=2)).w_uv.shape
        (6, 6, 2)
    """
    _check_without_biases(params)
    d_model, num_heads, head_dim = params.w_q.shape
    _, groups, value_dim = params.w_v.shape
    member = _membership(params)
    queries = jnp.einsum("bha,hk->bhka", params.w_q, member) * math.sqrt(groups)  # scale 1/sqrt(KH)
    picks = jnp.einsum("hk,cd->kchd", member, jnp.eye(value_dim, dtype=params.w_q.dtype))
    return LatentParams(
        w_q=jnp.reshape(queries, (d_model, num_heads, groups * head_dim)),
        w_c=jnp.reshape(params.w_v, (-1, groups * value_dim)),
        w_kr=jnp.reshape(params.w_k, (-1, groups * head_dim)),
        w_uk=jnp.zeros((groups * value_dim, num_heads, 0), params.w_q.dtype),
        w_uv=jnp.reshape(picks, (groups * value_dim, num_heads, value_dim)),
        w_o=params.w_o,
    )


class TensorProductParams(NamedTuple):
    """The weights of a layer whose heads are sums of products of two factors.

    A head factor with three axes is made of the input; one with two is a constant, the same for all
    positions ("non-contextual").

    Args:
        q_heads: ``(D, N, M)`` or ``(N, M)``, with ``M`` products to a query.
        q_features: ``(D, M, H)``.
        k_heads: ``(D, N, R)`` or ``(N, R)``.
        k_features: ``(D, R, H)``.
        v_heads: ``(D, N, U)`` or ``(N, U)``.
        v_features: ``(D, U, C)``.
        w_o: ``(N, C, D)``.
    """

    q_heads: Array
    q_features: Array
    k_heads: Array
    k_features: Array
    v_heads: Array
    v_features: Array
    w_o: Array


def tensor_product_attention(
    params: TensorProductParams,
    x: Float[Array, "*batch T D"],
    *,
    angles: Float[Array, "T pairs"] | None = None,
    mask: _Mask = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Attend with heads that are sums of products, $K^{hja} = \frac1R \sum_n E^{jhn} F^{jna}$.

    Queries and values likewise. Kept of a position are the factors, ``R(N + H) + U(N + C)``
    numbers.

    Args:
        params: the weights.
        x: ``(…, T, D)``.
        angles: ``(T, H/2)``, by which the feature factors of queries and keys are rotated; None for
            no rotation.
        mask: as in :func:`~mha_book.multihead.layer.multi_head_attention`.
        is_causal: likewise.

    Returns:
        ``(…, T, D)``.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

    References:
        Zhang et al., Tensor Product Attention Is All You Need, arXiv 2501.06425.

    Example:
        >>> shapes = [(8, 4, 3), (8, 3, 2), (8, 4, 2), (8, 2, 2), (4, 5), (8, 5, 6), (4, 6, 8)]
        >>> params = TensorProductParams(*map(jnp.ones, shapes))
        >>> jax.eval_shape(tensor_product_attention, params, jnp.ones((7, 8))).shape
        (7, 8)
    """
    check_type(params, "params", TensorProductParams)
    check_rank(x, "x", "(…, T, D)", 2)
    query = _product(params.q_heads, params.q_features, x, angles, "q")
    key = _product(params.k_heads, params.k_features, x, angles, "k")
    value = _product(params.v_heads, params.v_features, x, None, "v")
    heads = attend(query, key, value, layout="NTH", mask=mask, is_causal=is_causal)
    check_floating(params.w_o, "w_o", x, "x")
    check_shape(params.w_o, "w_o", (*value.shape[-3::2], x.shape[-1]), "axes (N, C, D) =")
    return jnp.einsum("...hic,hcd->...id", heads, params.w_o)


def _product(heads: Array, features: Array, x: Array, angles: Array | None, name: str) -> Array:
    """Return ``(…, N, T, H)``, the mean of the products of head factors and feature factors."""
    check_floating(features, f"{name}_features", x, "x")
    check(features.ndim == 3, f"{name}_features", "axes (D, R, H)", features.shape)
    check_axis(features, f"{name}_features", 0, "(D, R, H)", x.shape[-1], "x")
    made = project_heads(x, features)  # (…, R, T, H)
    made = made if angles is None else rotate(made, angles)
    check_floating(heads, f"{name}_heads", x, "x")
    check(heads.ndim in (2, 3), f"{name}_heads", "axes (D, N, R) or (N, R)", heads.shape)
    check_axis(heads, f"{name}_heads", -1, "(…, N, R)", features.shape[1], f"{name}_features")
    if heads.ndim == 2:
        return jnp.einsum("hn,...nja->...hja", heads, made) / heads.shape[-1]
    check_axis(heads, f"{name}_heads", 0, "(D, N, R)", x.shape[-1], "x")
    return (
        jnp.einsum("...jb,bhn,...nja->...hja", x, heads, made, optimize="optimal") / heads.shape[-1]
    )


def as_tensor_product(params: MultiHeadParams) -> TensorProductParams:
    r"""Write a multi-head or grouped layer as tensor-product attention with constant head factors.

    A query has ``N`` products, one for each head; a key and a value have ``K``, and the head factor
    is 1 where a query head reads a key head.

    Args:
        params: of a layer without biases.

    Returns:
        Weights of the same function.

    Raises:
        ValueError: the weights do not fit, or there are biases.

    References:
        Zhang et al., Tensor Product Attention Is All You Need, arXiv 2501.06425.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> as_tensor_product(init_multi_head(0, 8, 6, num_kv_heads=3, head_dim=2)).k_heads.shape
        (6, 3)
    """
    _check_without_biases(params)
    num_heads, groups = params.w_q.shape[1], params.w_k.shape[1]
    own = jnp.eye(num_heads, dtype=params.w_q.dtype) * num_heads
    shared = _membership(params) * groups
    return TensorProductParams(own, params.w_q, shared, params.w_k, shared, params.w_v, params.w_o)


def multi_matrix_attention(
    params: MultiHeadParams,
    w_reduce: Float[Array, "D R"],
    x: Float[Array, "*batch T D"],
    *,
    mask: _Mask = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Multi-matrix factorization: many wide query heads from a short vector, one key head.

    $Q^h = (X W_R) W_Q^h$ in the place of $X W_Q^h$.

    Args:
        params: the weights, ``w_q`` of ``(R, N, H)``; the paper has one key/value head.
        w_reduce: ``(D, R)``.
        x: ``(…, T, D)``.
        mask: as in :func:`~mha_book.multihead.layer.multi_head_attention`.
        is_causal: likewise.

    Returns:
        ``(…, T, D)``.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

    References:
        Hu et al., Multi-matrix Factorization Attention, arXiv 2412.19255.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(0, 8, 6, num_kv_heads=1, head_dim=4)
        >>> params = params._replace(w_q=jnp.ones((3, 6, 4)))
        >>> jax.eval_shape(multi_matrix_attention, params, jnp.ones((8, 3)), jnp.ones((7, 8))).shape
        (7, 8)
    """
    _shape_of(w_reduce, "w_reduce", "(D, R)", x, x.shape[-1])
    short = jnp.matmul(x, w_reduce)
    return multi_head_attention(params, short, x, mask=mask, is_causal=is_causal)


# What becomes of the weights of attention.


def differential_attention(
    params: MultiHeadParams,
    w_q2: Float[Array, "D N H"],
    balance: Float[Array, "D N"] | Float[Array, ""] | float,
    x: Float[Array, "*batch T D"],
    *,
    w_k2: Float[Array, "D K H"] | None = None,
    norm: Float[Array, " C"] | None = None,
    angles: Float[Array, "T pairs"] | None = None,
    mask: _Mask = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Subtract the attention of a second query, $O = (A_1 - \mu A_2) V$.

    In the second version both queries read the same keys, so that the layer is a grouped one of
    ``2N`` query heads and a subtraction, and $\mu = \sigma(x \cdot w)$ is a number for each head
    and position. In the first, the second query has keys of its own, $\mu$ is one learned number,
    and each head's output is normalized.

    Args:
        params: the weights, with the first queries.
        w_q2: ``(D, N, H)``, makes the second queries.
        balance: ``(D, N)``, makes $\mu$ by a sigmoid; or $\mu$ itself, a number or an array ``()``.
        x: ``(…, T, D)``.
        w_k2: ``(D, K, H)``, makes the keys of the second queries; None for the same keys.
        norm: ``(C,)``, weight of a norm of each head's output; None for no norm.
        angles: as in :func:`~mha_book.multihead.layer.project_qkv`.
        mask: as in :func:`~mha_book.multihead.layer.multi_head_attention`.
        is_causal: likewise.

    Returns:
        ``(…, T, D)``.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

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
    second = params._replace(w_q=w_q2, w_k=params.w_k if w_k2 is None else w_k2)
    query, key, value = project_qkv(params, x, angles=angles)
    query2, key2, _ = project_qkv(second, x, angles=angles)
    check(query2.shape == query.shape, "w_q2", f"shape {params.w_q.shape}", f"shape {w_q2.shape}")
    first = attend(query, key, value, layout="NTH", mask=mask, is_causal=is_causal)
    other = attend(query2, key2, value, layout="NTH", mask=mask, is_causal=is_causal)
    if np.ndim(balance) == 0:
        check_scale(balance, "balance")
        share = jnp.asarray(balance, x.dtype)
    else:
        share = jax.nn.sigmoid(_of_each_head(x, cast(Array, balance), "balance", query))
    heads = first - share * other
    if norm is not None:
        _check_norm(norm, "norm", "(C,)", heads)
        heads = rms_norm(heads, norm)
    return project_output(params, heads)


def gated_attention(
    params: MultiHeadParams,
    w_gate: Float[Array, "..."],
    x: Float[Array, "*batch T D"],
    *,
    angles: Float[Array, "T pairs"] | None = None,
    mask: _Mask = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Multiply what the heads return by a gate that the query's input sets: $O \odot \sigma(X W)$.

    Args:
        params: the weights.
        w_gate: ``(D, N, C)`` for a gate of each feature, or ``(D, N)`` for one of each head.
        x: ``(…, T, D)``.
        angles: as in :func:`~mha_book.multihead.layer.project_qkv`.
        mask: as in :func:`~mha_book.multihead.layer.multi_head_attention`.
        is_causal: likewise.

    Returns:
        ``(…, T, D)``.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

    References:
        Qiu et al., Gated Attention for Large Language Models, arXiv 2505.06708.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(0, 8, 4)
        >>> jax.eval_shape(gated_attention, params, jnp.ones((8, 4)), jnp.ones((5, 8))).shape
        (5, 8)
    """
    query, key, value = project_qkv(params, x, angles=angles)
    heads = attend(query, key, value, layout="NTH", mask=mask, is_causal=is_causal)
    check_floating(w_gate, "w_gate", x, "x")
    if w_gate.ndim == 3:
        check_axis(w_gate, "w_gate", 0, "(D, N, C)", x.shape[-1], "x")
        gate = project_heads(x, w_gate)
        check(gate.shape == heads.shape, "w_gate", "(D, N, C) or (D, N)", f"shape {w_gate.shape}")
    else:
        gate = _of_each_head(x, w_gate, "w_gate", query)
    return project_output(params, heads * jax.nn.sigmoid(gate))


def mixture_of_heads(
    params: MultiHeadParams,
    w_router: Float[Array, "D N"],
    x: Float[Array, "*batch T D"],
    num_active: int,
    *,
    angles: Float[Array, "T pairs"] | None = None,
    mask: _Mask = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Let each position take the heads that a router scores highest, weighted by its softmax.

    Args:
        params: the weights.
        w_router: ``(D, N)``.
        x: ``(…, T, D)``.
        num_active: how many heads a position takes.
        angles: as in :func:`~mha_book.multihead.layer.project_qkv`.
        mask: as in :func:`~mha_book.multihead.layer.multi_head_attention`.
        is_causal: likewise.

    Returns:
        ``(…, T, D)``. All heads are computed and those not taken multiplied by zero: this says what
        the variant computes, and saves nothing.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit; more heads are asked for than
            there are.

    Differs from:
        The paper, which also has heads that every position takes and two more weights between the
        two kinds, and whose vision models scale the weights of the heads taken to the mean of one.

    References:
        Jin et al., MoH: Multi-Head Attention as Mixture-of-Head Attention, arXiv 2410.11842.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(0, 8, 4)
        >>> run = jax.tree_util.Partial(mixture_of_heads, num_active=3)
        >>> jax.eval_shape(run, params, jnp.ones((8, 4)), jnp.ones((5, 8))).shape
        (5, 8)
    """
    query, key, value = project_qkv(params, x, angles=angles)
    num_heads = query.shape[-3]
    check_size(num_active, "num_active")
    check(num_active <= num_heads, "num_active", f"at most {num_heads} heads", num_active)
    logits = _of_each_head(x, w_router, "w_router", query)[..., 0]  # (…, N, T)
    logits = jnp.swapaxes(logits, -1, -2)
    _, taken = jax.lax.top_k(logits, num_active)
    is_taken = jnp.any(jax.nn.one_hot(taken, num_heads, dtype=bool), axis=-2)  # (…, T, N)
    weight = jnp.where(is_taken, jax.nn.softmax(logits, axis=-1), 0)
    heads = attend(query, key, value, layout="NTH", mask=mask, is_causal=is_causal)
    weight, is_taken = (jnp.swapaxes(y, -1, -2)[..., None] for y in (weight, is_taken))
    # Zero times a head that is not a number is not zero.
    return project_output(params, jnp.where(is_taken, heads, 0) * weight)


def talking_heads_attention(
    params: MultiHeadParams,
    w_scores: Float[Array, "N N"],
    w_weights: Float[Array, "N N"],
    x: Float[Array, "*batch T D"],
    *,
    angles: Float[Array, "T pairs"] | None = None,
    mask: _Mask = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Mix the scores of the heads before the softmax, and their weights behind it.

    The scores of a head are then products of a query and a key as wide as all heads together, and
    so are its values: that is how it is computed here, and why it costs ``N`` times as much where
    attention is computed without its scores being stored.

    Args:
        params: the weights, with as many key heads as query heads.
        w_scores: ``(N, N)``; row h' and column h say how much of head h' enters head h.
        w_weights: ``(N, N)``, likewise.
        x: ``(…, T, D)``.
        angles: as in :func:`~mha_book.multihead.layer.project_qkv`.
        mask: as in :func:`~mha_book.multihead.layer.multi_head_attention`.
        is_causal: likewise.

    Returns:
        ``(…, T, D)``.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

    References:
        Shazeer et al., Talking-Heads Attention, arXiv 2003.02436.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(0, 8, 4)
        >>> w = jnp.eye(4)
        >>> jax.eval_shape(talking_heads_attention, params, w, w, jnp.ones((5, 8))).shape
        (5, 8)
    """
    query, key, value = project_qkv(params, x, angles=angles)
    num_heads, num_kv_heads = query.shape[-3], key.shape[-3]
    check(num_heads == num_kv_heads, "params", "as many key heads as query heads", num_kv_heads)
    for weight, name in ((w_scores, "w_scores"), (w_weights, "w_weights")):
        check_floating(weight, name, x, "x")
        check_shape(weight, name, (num_heads, num_heads), "axes (N, N) =")
    wide_query = jnp.einsum("gh,...gia->...higa", w_scores, query)  # query heads side by side
    wide_query = jnp.reshape(wide_query, (*query.shape[:-1], -1))
    wide_key, wide_value = (
        jnp.reshape(jnp.swapaxes(y, -3, -2), (*y.shape[:-3], 1, y.shape[-2], -1))
        for y in (key, value)
    )
    scale = 1.0 / math.sqrt(query.shape[-1])
    mixed = attend(
        wide_query, wide_key, wide_value, layout="NTH", mask=mask, is_causal=is_causal, scale=scale
    )
    mixed = jnp.reshape(mixed, (*query.shape[:-1], num_heads, value.shape[-1]))
    return project_output(params, jnp.einsum("gh,...gihc->...hic", w_weights, mixed))


def knocking_heads(
    params: MultiHeadParams,
    *,
    t_q: Float[Array, "H H"] | None = None,
    t_k: Float[Array, "H H"] | None = None,
    t_v: Float[Array, "C C"] | None = None,
) -> MultiHeadParams:
    r"""Multiply the projections of every head by matrices that all heads share.

    Linear knocking-heads attention is the layer with these weights: $X (W_V^h T_V)$ is
    $(X W_V^h)\, T_V$. The matrices change training, and nothing of what the layer can compute.

    Args:
        params: the weights, without biases.
        t_q: ``(H, H)``; None for the identity, at which the paper begins.
        t_k: ``(H, H)``, likewise.
        t_v: ``(C, C)``, likewise.

    Returns:
        The weights of the layer.

    Raises:
        ValueError: an argument's shape or dtype does not fit, or there are biases.

    References:
        Zhou et al., Knocking-Heads Attention, arXiv 2510.23052.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> knocking_heads(init_multi_head(0, 8, 4), t_v=jnp.eye(2)).w_v.shape
        (8, 4, 2)
    """
    check_params(params)
    biases = (params.b_q, params.b_k, params.b_v)
    check(all(b is None for b in biases), "params", "no biases of the projections", "biases")
    found = {}
    for name, matrix in (("w_q", t_q), ("w_k", t_k), ("w_v", t_v)):
        weight = getattr(params, name)
        if matrix is not None:
            what = name.replace("w", "t")
            check_floating(matrix, what, weight, name)
            check_shape(matrix, what, (weight.shape[-1],) * 2, "the width of a head twice,")
            weight = jnp.matmul(weight, matrix)
        found[name] = weight
    return params._replace(**found)


# What becomes of the scores.


def normalized_attention(
    params: MultiHeadParams,
    norm_q: Float[Array, " H"],
    norm_k: Float[Array, " H"],
    x: Float[Array, "*batch T D"],
    *,
    epsilon: float = 1e-6,
    angles: Float[Array, "T pairs"] | None = None,
    mask: _Mask = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""QK-norm: divide each query and key by its root mean square, before they are rotated.

    No score exceeds $\sqrt{d_k}$ times the largest products of the two weights.

    Args:
        params: the weights.
        norm_q: ``(H,)``, weight of the norm of queries.
        norm_k: ``(H,)``, of keys.
        x: ``(…, T, D)``.
        epsilon: added to the mean square.
        angles: ``(T, H/2)``; None for no rotation.
        mask: as in :func:`~mha_book.multihead.layer.multi_head_attention`.
        is_causal: likewise.

    Returns:
        ``(…, T, D)``.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

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
        _check_norm(weight, name, "(H,)", query)
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

    Returns:
        The new weights.

    Raises:
        ValueError: the shapes do not fit, a key head is shared, or the threshold is not positive.

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
    most = jnp.asarray(threshold, largest_scores.dtype)
    factor = jnp.where(largest_scores > most, most / largest_scores, 1.0)
    root = jnp.sqrt(factor).astype(params.w_q.dtype)[None, :, None]
    return params._replace(w_q=params.w_q * root, w_k=params.w_k * root)


def sink_logit_attention(
    params: MultiHeadParams,
    sink: Float[Array, " N"],
    x: Float[Array, "*batch T D"],
    *,
    angles: Float[Array, "T pairs"] | None = None,
    mask: _Mask = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Add $e^{s^h}$ to the denominator of the softmax: a key whose value is zero.

    The weights of a row sum to $\sigma(\lambda - s)$ with $\lambda$ the log-sum-exp of its scores,
    so the output of ordinary attention is multiplied by that.

    Args:
        params: the weights.
        sink: ``(N,)``, one learned logit for each head.
        x: ``(…, T, D)``.
        angles: as in :func:`~mha_book.multihead.layer.project_qkv`.
        mask: as in :func:`~mha_book.multihead.layer.multi_head_attention`.
        is_causal: likewise.

    Returns:
        ``(…, T, D)``.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

    References:
        OpenAI, gpt-oss-120b and gpt-oss-20b Model Card, arXiv 2508.10925.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(0, 8, 4)
        >>> sink_logit_attention(params, jnp.zeros(4), jnp.ones((5, 8))).shape
        (5, 8)
    """
    query, key, value = project_qkv(params, x, angles=angles)
    check_floating(sink, "sink", x, "x")
    check_shape(sink, "sink", (query.shape[-3],), "axes (N,) =")
    heads, lse = attend_with_lse(query, key, value, layout="NTH", mask=mask, is_causal=is_causal)
    lse = jnp.maximum(lse, jnp.finfo(lse.dtype).min)  # of an empty row, if the sink is -inf too
    logit = jnp.broadcast_to(sink.astype(lse.dtype)[:, None], lse.shape)
    share = jax.nn.sigmoid(lse - logit)  # (…, N, T)
    return project_output(params, heads * share[..., None].astype(heads.dtype))


def sigmoid_attention(
    params: MultiHeadParams,
    x: Float[Array, "*batch T D"],
    *,
    offset: float | None = None,
    angles: Float[Array, "T pairs"] | None = None,
    mask: _Mask = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    r"""Weigh each key by itself, $A^{hij} = \sigma(S^{hij} + \beta)$: no row sums to one.

    Args:
        params: the weights.
        x: ``(…, T, D)``.
        offset: $\beta$; None for $-\log T$, the paper's choice for sequences of length ``T``.
        angles: as in :func:`~mha_book.multihead.layer.project_qkv`.
        mask: as in :func:`~mha_book.multihead.layer.multi_head_attention`.
        is_causal: likewise.

    Returns:
        ``(…, T, D)``. The weights of all pairs are stored.

    Raises:
        ValueError: an argument's rank, dtype or axes do not fit.

    References:
        Ramapuram et al., Theory, Analysis, and Best Practices for Sigmoid Self-Attention,
        arXiv 2409.04431.

    Example:
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> sigmoid_attention(init_multi_head(0, 8, 4), jnp.ones((5, 8))).shape
        (5, 8)
    """
    query, key, value = project_qkv(params, x, angles=angles)
    shape = (*query.shape[:-1], key.shape[-2])
    offset = -math.log(shape[-1] or 1) if offset is None else offset
    check_scale(offset, "offset")
    visible = visibility(as_mask(mask, is_causal, shape), None, shape)
    query, key, value = zero_unattended(query, key, value, visible)
    logits = scores(query, key, None, 1.0 / math.sqrt(query.shape[-1]))
    weights = jax.nn.sigmoid(logits + jnp.asarray(offset, logits.dtype))
    weights = weights if visible is None else jnp.where(visible, weights, 0)
    heads = jnp.matmul(fold_groups(weights, value), value.astype(weights.dtype))
    heads = jnp.reshape(heads, (*shape[:-1], value.shape[-1])).astype(value.dtype)
    return project_output(params, heads)


def head_windows(windows: tuple[int | None, ...], length: int) -> Bool[Array, "N T T"]:
    r"""Return a causal mask with a window of its own for each head.

    Args:
        windows: how many keys each head sees, the query's own position included; None for all.
        length: ``T``.

    Returns:
        ``(N, T, T)``, True = attend: a ``mask`` of
        :func:`~mha_book.multihead.layer.multi_head_attention`.

    Raises:
        ValueError: a window or the length is not a positive integer.

    References:
        Beltagy et al., Longformer, arXiv 2004.05150, gives windows to layers and to heads.

    Example:
        >>> head_windows((1, None), 2).astype(int).tolist()
        [[[1, 0], [0, 1]], [[1, 0], [1, 1]]]
    """
    check_size(length, "length")
    what = "a list of numbers of keys, one for each head"
    check(isinstance(windows, (tuple, list)), "windows", what, repr(windows))
    for window in windows:
        if window is not None:
            check_size(window, "windows", 1, "positive integers, or None for no window")
    back = jnp.arange(length)[:, None] - jnp.arange(length)[None]
    widest = jnp.asarray([length if w is None else min(w, length) for w in windows], back.dtype)
    return (back >= 0)[None] & (back[None] < widest[:, None, None])


def _check_without_biases(params: MultiHeadParams) -> None:
    check_params(params)
    biases = (params.b_q, params.b_k, params.b_v, params.b_o)
    check(all(b is None for b in biases), "params", "no biases", "biases")


def _membership(params: MultiHeadParams) -> Array:
    """Return ``(N, K)``: 1 where a query head reads a key head."""
    num_heads, groups = params.w_q.shape[1], params.w_k.shape[1]
    return jnp.repeat(jnp.eye(groups, dtype=params.w_q.dtype), num_heads // groups, axis=0)


def _shape_of(weight: Array, name: str, axes: str, x: Array, rows: int) -> tuple[int, ...]:
    """Return the shape of a matrix that is applied to ``x``, checked."""
    check_rank(x, "x", "(…, T, D)", 2)
    check_floating(weight, name, x, "x")
    check(weight.ndim == 2, name, f"axes {axes}, that is rank 2", f"shape {weight.shape}")
    check_axis(weight, name, 0, axes, rows, "x")
    return tuple(weight.shape)


def _check_norm(weight: Array, name: str, axes: str, x: Array) -> None:
    check_floating(weight, name, x, "x")
    check_shape(weight, name, x.shape[-1:], f"axes {axes} =")


def _of_each_head(x: Array, weight: Array, name: str, query: Array) -> Array:
    """Return ``(…, N, T, 1)``, what ``weight`` of ``(D, N)`` makes of the input for each head."""
    shape = _shape_of(weight, name, "(D, N)", x, x.shape[-1])
    check(shape[1] == query.shape[-3], name, f"one column a head, {query.shape[-3]}", shape)
    return jnp.swapaxes(jnp.matmul(x, weight), -1, -2)[..., None]
