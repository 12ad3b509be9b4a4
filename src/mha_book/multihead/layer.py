r"""The multi-head attention layer: project, attend in every head, combine, project.

$Y^{id} = O^{hic} W_O^{hcd}$ with $O^h = \operatorname{attend}(X W_Q^h, X W_K^h, X W_V^h)$.

Shapes: ``B`` batch, ``T`` queries, ``S`` keys, ``D`` width of the model, ``N`` query heads, ``K``
key/value heads, ``H`` width of queries and keys, ``C`` width of values. The shapes of the
parameters say how many heads there are and how wide they are; nothing else does.
"""

from typing import Any, NamedTuple, NoReturn

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float

from mha_book._checks import (
    RngKey,
    as_key,
    check,
    check_axis,
    check_float_dtype,
    check_floating,
    check_rank,
    check_type,
    checked_alike,
)
from mha_book.attention.dispatch import attend
from mha_book.attention.reference import attention_weights
from mha_book.heads import combine_heads
from mha_book.masks import Mask
from mha_book.multihead.dropout import Dropout, draw_factors
from mha_book.multihead.parameters import (
    FusedMultiHeadParams,
    MultiHeadParams,
    check_fused,
    check_params,
    cut_fused,
)
from mha_book.rope import rotate

__all__ = [
    "Intermediates",
    "multi_head_attention",
    "multi_head_attention_with_intermediates",
    "project_heads",
    "project_output",
    "project_qkv",
]


class Intermediates(NamedTuple):
    """What happened inside a layer.

    Args:
        query: ``(…, N, T, H)``, rotated where the layer rotates.
        key: ``(…, K, S, H)``, likewise.
        value: ``(…, K, S, C)``.
        weights: ``(…, N, T, S)``, never averaged over heads, before any dropout; computed beside
            the output.
        head_outputs: ``(…, N, T, C)``, before their dropout, the gates and the output projection.
    """

    query: Array
    key: Array
    value: Array
    weights: Array
    head_outputs: Array


def multi_head_attention(
    params: MultiHeadParams | FusedMultiHeadParams,
    query: Float[Array, "*batch T D"],
    key: Float[Array, "*batch S D_k"] | None = None,
    value: Float[Array, "*batch S D_v"] | None = None,
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    bias: Float[Array, "..."] | None = None,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    gates: Float[Array, " N"] | None = None,
    angles: Float[Array, "*angle_batch T pairs"] | None = None,
    dropout: Dropout | None = None,
    rng_key: RngKey | None = None,
    implementation: str | None = None,
    dtype: DTypeLike | None = None,
) -> Float[Array, "*batch T D_out"]:
    r"""Apply the layer: self-attention with ``query`` alone, cross-attention with ``key`` too.

    $Q^h = X W_Q^h$, $K^h = Z W_K^h$, $V^h = Z' W_V^h$, $Y = \sum_h g_h\, O^h W_O^h + b_O$, where
    $X$, $Z$, $Z'$ are ``query``, ``key``, ``value``, and $g_h$ the gates.

    Args:
        params: the weights, separate or fused.
        query: ``(…, T, D)``, the sequence that asks.
        key: ``(…, S, D_k)``, the sequence that is attended to; None for ``query``.
        value: ``(…, S, D_v)``, what is averaged; None for ``key``.
        mask: a :class:`~mha_book.masks.Mask`, or a boolean array of the full rank
            ``(…, N, T, S)`` (each axis equal or 1), True = attend.
        bias: added to the scaled scores, full rank ``(…, N, T, S)`` (each axis equal or 1).
        is_causal: whether position ``i`` may attend to positions ``j <= i`` only.
        scale: factor of the scores; None means ``1 / sqrt(H)``.
        gates: ``(N,)``, one factor for the output of each head; None for ones. A gate of 0 removes
            its head, and the gradient of a gate says how much the loss depends on that head.
        angles: as in :func:`project_qkv`.
        dropout: rates at the three places; None for no dropout.
        rng_key: PRNG key of the dropout, needed where a rate is not 0; see
            :func:`~mha_book.multihead.dropout.draw_factors`.
        implementation: passed to :func:`~mha_book.attention.dispatch.attend`.
        dtype: in which to compute: weights, inputs and gates are cast to it, as for activations in
            bfloat16 over weights kept in float32. None for the dtype that all of them have.

    Returns:
        ``(…, T, D)``.

    Differs from:
        ``torch.nn.MultiheadAttention``: masks have the opposite polarity there, the weights
        returned are averaged over heads unless asked otherwise, and the sequence stands before
        the batch unless ``batch_first`` is set.

    References:
        Vaswani et al., Attention Is All You Need, 2017, section 3.2.2.

    Example:
        >>> import jax
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(jax.random.key(0), d_model=64, num_heads=8)
        >>> multi_head_attention(params, jnp.ones((2, 10, 64))).shape
        (2, 10, 64)
    """
    return _layer(
        params, query, key, value, mask=mask, bias=bias, is_causal=is_causal, scale=scale,
        gates=gates, angles=angles, dropout=dropout, rng_key=rng_key,
        implementation=implementation, dtype=dtype,
    )[0]  # fmt: skip


def multi_head_attention_with_intermediates(
    params: MultiHeadParams | FusedMultiHeadParams,
    query: Float[Array, "*batch T D"],
    key: Float[Array, "*batch S D_k"] | None = None,
    value: Float[Array, "*batch S D_v"] | None = None,
    **options: Any,
) -> tuple[Float[Array, "*batch T D_out"], Intermediates]:
    """Apply the layer and return what happened inside too; the output is the same.

    The arguments are those of :func:`multi_head_attention`.

    Returns:
        ``(…, T, D)``, and :class:`Intermediates`, whose weights take ``N·T·S`` numbers of memory.

    Example:
        >>> import jax
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(jax.random.key(0), d_model=64, num_heads=8)
        >>> output, inside = multi_head_attention_with_intermediates(params, jnp.ones((10, 64)))
        >>> inside.weights.shape
        (8, 10, 10)
    """
    output, q, k, v, head_outputs = _layer(params, query, key, value, **options)
    kinds = ("mask", "bias", "is_causal", "scale")
    structure = {name: options[name] for name in kinds if name in options}
    return output, Intermediates(q, k, v, attention_weights(q, k, **structure), head_outputs)


def _layer(
    params: Any,
    query: Array,
    key: Array | None,
    value: Array | None,
    *,
    gates: Array | None = None,
    angles: Array | None = None,
    dropout: Dropout | None = None,
    rng_key: RngKey | None = None,
    implementation: str | None = None,
    dtype: DTypeLike | None = None,
    **structure: Any,
) -> tuple[Array, Array, Array, Array, Array]:
    """Return the output, and queries, keys, values and outputs of the heads."""
    if dtype is not None:
        check_float_dtype(dtype)
        given = (params, query, key, value, gates)
        arrays = {"query": query, "key": key, "value": value, "gates": gates}
        for name, x in {**getattr(params, "_asdict", dict)(), **arrays}.items():
            if x is not None:  # a cast would take token ids and masks for numbers
                check_floating(x, name)
        params, query, key, value, gates = jax.tree.map(lambda x: jnp.asarray(x, dtype), given)
    q, k, v = project_qkv(params, query, key, value, angles=angles)
    check_gates(gates, q)
    if dropout is not None or rng_key is not None:
        check_dropout(dropout, rng_key)
    scores_shape = (*q.shape[:-1], k.shape[-2])
    factors = draw_factors(
        dropout, rng_key, scores_shape, v.shape[-1], params.w_o.shape[-1], query.dtype
    )
    head_outputs = attend(
        q, k, v, **structure, layout="NTH", implementation=implementation,
        dropout_multiplier=factors.weights,
    )  # (…, N, T, C)  # fmt: skip
    kept = head_outputs if factors.heads is None else head_outputs * factors.heads
    gated = kept if gates is None else kept * broadcast_gates(gates, kept.ndim)
    output = _output(params, gated)  # (…, T, D)
    output = output if factors.output is None else output * factors.output
    return output, q, k, v, head_outputs


def project_qkv(
    params: MultiHeadParams | FusedMultiHeadParams,
    query: Float[Array, "*batch T D"],
    key: Float[Array, "*batch S D_k"] | None = None,
    value: Float[Array, "*batch S D_v"] | None = None,
    *,
    angles: Float[Array, "*angle_batch T pairs"] | None = None,
) -> tuple[Array, Array, Array]:
    """Return queries, keys and values of every head: what happens before attention.

    Args:
        params: the weights, separate or fused; fused ones take one product in self-attention.
        query: ``(…, T, D)``.
        key: ``(…, S, D_k)``; None for ``query``.
        value: ``(…, S, D_v)``; None for ``key``.
        angles: ``(T, H/2)`` from :func:`~mha_book.rope.rotary_angles`, or ``(B, 1, T, H/2)``, by
            which queries and keys are rotated after their projection; for self-attention, where no
            ``key`` is given. None for no rotation.

    Returns:
        ``(…, N, T, H)``, ``(…, K, S, H)`` and ``(…, K, S, C)``.

    Example:
        >>> import jax
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> params = init_multi_head(jax.random.key(0), 64, 8, num_kv_heads=2)
        >>> [x.shape for x in project_qkv(params, jnp.ones((10, 64)))]
        [(8, 10, 8), (2, 10, 8), (2, 10, 8)]
    """
    if angles is not None and key is not None:
        check(False, "angles", "self-attention: no key", "a key beside the query")
    if isinstance(params, FusedMultiHeadParams):
        num_kv_heads = check_fused(params)
        if key is None and value is None:
            _check_inputs((params.w_qkv,), query)
            heads = _project(query, params.w_qkv, params.b_qkv)  # (…, N + 2K, T, H)
            num_heads = params.w_o.shape[0]
            q, k, v = jnp.split(heads, [num_heads, num_heads + num_kv_heads], axis=-3)
            return (q, k, v) if angles is None else (rotate(q, angles), rotate(k, angles), v)
        separate = cut_fused(params, num_kv_heads)
    elif isinstance(params, MultiHeadParams):
        check_params(params)
        separate = params
    else:
        _no_params(params)
    key = query if key is None else key
    value = key if value is None else value
    _check_inputs((separate.w_q, separate.w_k, separate.w_v), query, key, value)
    q = _project(query, separate.w_q, separate.b_q)  # (…, N, T, H)
    k = _project(key, separate.w_k, separate.b_k)  # (…, K, S, H)
    v = _project(value, separate.w_v, separate.b_v)  # (…, K, S, C)
    if angles is not None:
        q, k = rotate(q, angles), rotate(k, angles)
    return q, k, v


def project_output(
    params: MultiHeadParams | FusedMultiHeadParams, heads: Float[Array, "*batch N T C"]
) -> Float[Array, "*batch T D"]:
    r"""Return $Y^{id} = O^{hic} W_O^{hcd} + b^d$: what happens after attention.

    Args:
        params: the weights, separate or fused.
        heads: ``(…, N, T, C)``, the outputs of the heads.

    Example:
        >>> import jax
        >>> from mha_book.multihead.parameters import init_multi_head
        >>> project_output(init_multi_head(jax.random.key(0), 64, 8), jnp.ones((8, 10, 8))).shape
        (10, 64)
    """
    if not isinstance(params, (MultiHeadParams, FusedMultiHeadParams)):
        _no_params(params)
    check_rank(params.w_o, "w_o", "(N, C, D)", 3)
    check_rank(heads, "heads", "(…, N, T, C)", 3)
    check_floating(heads, "heads", params.w_o, "w_o")
    check_axis(heads, "heads", -3, "(…, N, T, C)", params.w_o.shape[0], "w_o")
    check_axis(heads, "heads", -1, "(…, N, T, C)", params.w_o.shape[1], "w_o")
    return _output(params, heads)


def _output(params: MultiHeadParams | FusedMultiHeadParams, heads: Array) -> Array:
    """Do what :func:`project_output` does, on arrays that were checked."""
    num_heads, width, d_model = params.w_o.shape
    weight = jnp.reshape(params.w_o, (num_heads * width, d_model))
    return _add(jnp.matmul(combine_heads(heads), weight), params.b_o)


@checked_alike
def project_heads(
    x: Float[Array, "*batch T D"],
    weight: Float[Array, "D N H"],
    bias: Float[Array, "N H"] | None = None,
) -> Float[Array, "*batch N T H"]:
    r"""Return $x W^h + b^h$ for every head by one matrix product and a split.

    Args:
        x: ``(…, T, D)``.
        weight: ``(D, N, H)``; as a matrix ``(D, N·H)`` its columns are blocks, one a head.
        bias: ``(N, H)`` or None.

    Example:
        >>> project_heads(jnp.ones((5, 4)), jnp.ones((4, 2, 3))).shape
        (2, 5, 3)
    """
    return _project(x, weight, bias)


def broadcast_gates(gates: Float[Array, " N"], rank: int) -> Float[Array, "..."]:
    """Give one number for each head the axes of an array ``(…, N, T, C)`` of that rank."""
    return jnp.reshape(gates, (1,) * (rank - 3) + (-1, 1, 1))


def _project(x: Array, weight: Array, bias: Array | None) -> Array:
    """Do what :func:`project_heads` does, on arrays that were checked."""
    d_model, num_heads, width = weight.shape
    flat_bias = None if bias is None else jnp.reshape(bias, (num_heads * width,))
    flat = jnp.matmul(x, jnp.reshape(weight, (d_model, num_heads * width)))
    split = jnp.reshape(_add(flat, flat_bias), (*x.shape[:-1], num_heads, width))
    return jnp.swapaxes(split, -3, -2)  # as split_heads does, for no head at all too


def _add(x: Array, bias: Array | None) -> Array:
    return x if bias is None else x + jnp.reshape(bias, (1,) * (x.ndim - 1) + bias.shape)


def _check_inputs(weights: tuple[Array, ...], *inputs: Array) -> None:
    batch = tuple(inputs[0].shape[:-2]) if hasattr(inputs[0], "shape") else None
    for x, name, weight in zip(inputs, ("query", "key", "value"), weights, strict=False):
        if (  # the usual case, in one look
            isinstance(x, jax.Array)
            and x.dtype == weight.dtype
            and x.shape[:-2] == batch
            and x.shape[-1:] == weight.shape[:1]
            and x.ndim > 1
        ):
            continue
        check_rank(x, name, "(…, T, D)", 2)
        check_floating(x, name, weight, "the weights")
        check_axis(x, name, -1, "(…, T, D)", weight.shape[0], "the weights")
        got = tuple(x.shape[:-2])
        if got != batch:
            what = f"the leading axes of query, {batch}"
            check(False, name, what, f"{got}, shape {x.shape}")
    if len(inputs) == 3:
        check_axis(inputs[2], "value", -2, "(…, S, D)", inputs[1].shape[-2], "key")


def check_gates(gates: Array | None, query: Array) -> None:
    """Raise unless ``gates`` are None or have one number for each head of ``query``."""
    if gates is not None:
        check_floating(gates, "gates", query, "the weights")
        expected = (query.shape[-3],)
        what = f"one number for each head, shape {expected}"
        check(gates.shape == expected, "gates", what, f"shape {gates.shape}")


def check_dropout(dropout: Dropout | None, rng_key: RngKey | None) -> None:
    """Raise unless ``dropout`` holds rates and ``rng_key`` is a PRNG key; both may be None."""
    if dropout is not None and not isinstance(dropout, Dropout):
        check(False, "dropout", "Dropout(weights=…, heads=…, output=…) or None", repr(dropout))
    if rng_key is not None:
        as_key(rng_key)


def _no_params(params: Any) -> NoReturn:
    """Raise: neither separate nor fused parameters."""
    kinds = (MultiHeadParams, FusedMultiHeadParams)
    check_type(params, "params", kinds, "as init_multi_head or fuse give them")
    raise AssertionError("called with parameters")
