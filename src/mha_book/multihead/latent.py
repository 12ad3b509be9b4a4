r"""Multi-head latent attention: keys and values of all heads are made from one short vector.

$c^j = x^j W_C$ is the latent of position $j$; $K^{hj} = c^j W_{UK}^h$ and $V^{hj} = c^j W_{UV}^h$
give every head a key and a value. A rotation does not commute with $W_{UK}$, so a part of the key
is made apart, from the input, rotated, and shared by all heads. Only the latent and that part need
to be kept of a position.

Two forms compute the same output. The *expanded* form makes keys and values and is multi-head
attention. The *absorbed* form moves $W_{UK}$ to the queries and $W_{UV}$ to the output,
$q^{hi} \cdot (c^j W_{UK}^h) = (q^{hi} W_{UK}^{h\top}) \cdot c^j$, and is multi-query attention: its
only key, and its only value, is the latent itself.

Shapes: ``D`` width of the model, ``N`` heads, ``T`` queries, ``S`` keys, ``R`` width of the latent,
``H`` width of the part of queries and keys that is not rotated, ``P`` width of the rotated part,
``C`` width of values, ``Q`` what the queries are made from: the input or a latent of their own.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, DTypeLike, Float

from mha_book._checks import RngKey, as_key, check, check_axes, check_size, check_type
from mha_book.attention.dispatch import attend
from mha_book.layers import rms_norm
from mha_book.masks import Mask
from mha_book.multihead.layer import project_heads
from mha_book.multihead.parameters import MultiHeadParams, check_params, xavier_uniform
from mha_book.rope import rotate

__all__ = [
    "LatentParams",
    "absorbed_attention",
    "as_latent",
    "compress",
    "expanded_attention",
    "init_latent",
]


class LatentParams(NamedTuple):
    """The weights of a layer with latent attention.

    Args:
        w_q: ``(Q, N, H + P)``; the rotated part of a query comes last.
        w_c: ``(D, R)``, makes the latent.
        w_kr: ``(D, P)``, makes the rotated part of the key.
        w_uk: ``(R, N, H)``, makes the other part of the keys.
        w_uv: ``(R, N, C)``, makes the values.
        w_o: ``(N, C, D)``.
        w_qc: ``(D, Q)``, makes the latent of the queries, or None: they are made from the input.
        norm_c: ``(R,)``, weight of the norm of the latent, or None for no norm.
        norm_qc: ``(Q,)``, weight of the norm of the queries' latent, or None for no norm.
    """

    w_q: Array
    w_c: Array
    w_kr: Array
    w_uk: Array
    w_uv: Array
    w_o: Array
    w_qc: Array | None = None
    norm_c: Array | None = None
    norm_qc: Array | None = None


class Latent(NamedTuple):
    """What is kept of the positions: all that a cache has to hold."""

    content: Array  # (…, S, R), the latent, after its norm
    rotated_key: Array  # (…, S, P), the part of the key that all heads share, rotated


def init_latent(
    rng_key: RngKey,
    d_model: int,
    num_heads: int,
    *,
    latent_dim: int,
    head_dim: int,
    rotary_dim: int,
    value_dim: int,
    query_latent_dim: int | None = None,
    dtype: DTypeLike = jnp.float32,
) -> LatentParams:
    """Return freshly drawn parameters; the norms, one for each latent, start at one.

    The sizes are ``D``, ``N``, ``R``, ``H``, ``P`` (even), ``C`` and ``Q`` of this module, in the
    order of the arguments; a ``query_latent_dim`` of None makes the queries from the input.

    Example:
        >>> sizes = {"latent_dim": 6, "head_dim": 4, "rotary_dim": 2, "value_dim": 3}
        >>> init_latent(jax.random.key(0), 8, 5, **sizes).w_uk.shape
        (6, 5, 4)
    """
    sizes = {"d_model": d_model, "num_heads": num_heads, "latent_dim": latent_dim}
    sizes |= {"head_dim": head_dim, "rotary_dim": rotary_dim, "value_dim": value_dim}
    if query_latent_dim is not None:
        sizes["query_latent_dim"] = query_latent_dim
    for name, size in sizes.items():
        check_size(size, name, 1, "a positive integer")
    check(rotary_dim % 2 == 0, "rotary_dim", "an even number", rotary_dim)
    into = d_model if query_latent_dim is None else query_latent_dim
    shapes: dict[str, tuple[int, ...]] = {
        "w_q": (into, num_heads, head_dim + rotary_dim),
        "w_c": (d_model, latent_dim),
        "w_kr": (d_model, rotary_dim),
        "w_uk": (latent_dim, num_heads, head_dim),
        "w_uv": (latent_dim, num_heads, value_dim),
        "w_o": (num_heads, value_dim, d_model),
    }
    drawn = {"norm_c": jnp.ones((latent_dim,), dtype)}
    if query_latent_dim is not None:
        shapes["w_qc"] = (d_model, query_latent_dim)
        drawn["norm_qc"] = jnp.ones((query_latent_dim,), dtype)
    keys = jax.random.split(as_key(rng_key), len(shapes))
    for key, (name, shape) in zip(keys, shapes.items(), strict=True):
        fan_in = shape[0] * (shape[1] if name == "w_o" else 1)
        fan_out = math.prod(shape) // fan_in
        drawn[name] = xavier_uniform(key, fan_in, fan_out, shape, dtype)
    return LatentParams(**drawn)


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
    check_params(params)
    check(all(b is None for b in params[4:]), "params", "no biases", "biases")
    d_model, num_heads, head_dim = params.w_q.shape
    _, groups, value_dim = params.w_v.shape
    member = jnp.repeat(jnp.eye(groups, dtype=params.w_q.dtype), num_heads // groups, axis=0)
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


def compress(
    params: LatentParams, x: Float[Array, "*batch S D"], angles: Float[Array, "S pairs"]
) -> Latent:
    r"""Return what is kept of each position: $c = x W_C$ and the rotated part of its key.

    ``angles``, ``(S, P/2)``, are those of :func:`~mha_book.rope.rotary_angles`; ``R + P`` numbers
    are kept of each position.

    Example:
        >>> sizes = {"latent_dim": 6, "head_dim": 4, "rotary_dim": 2, "value_dim": 3}
        >>> params = init_latent(jax.random.key(0), 8, 5, **sizes)
        >>> compress(params, jnp.ones((7, 8)), jnp.zeros((7, 1))).content.shape
        (7, 6)
    """
    _check_input(params, x)
    content = _norm(jnp.matmul(x, params.w_c), params.norm_c)
    return Latent(content, rotate(jnp.matmul(x, params.w_kr), angles))


def expanded_attention(
    params: LatentParams,
    x: Float[Array, "*batch T D"],
    latent: Latent,
    angles: Float[Array, "T pairs"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    """Attend with the keys and values of every head made from the latent: ``N(H + P + C)`` wide.

    ``x``, ``(…, T, D)``, and ``angles``, ``(T, P/2)``, are of the positions that ask, ``latent`` is
    what is kept of the ``S`` positions that are attended to; the mask is that of
    :func:`~mha_book.attention.dispatch.attend`.

    Example:
        >>> sizes = {"latent_dim": 6, "head_dim": 4, "rotary_dim": 2, "value_dim": 3}
        >>> params = init_latent(jax.random.key(0), 8, 5, **sizes)
        >>> x, angles = jnp.ones((7, 8)), jnp.zeros((7, 1))
        >>> expanded_attention(params, x, compress(params, x, angles), angles).shape
        (7, 8)
    """
    content_query, rotated_query = _queries(params, x, angles)
    _check_latent(params, latent, x)
    content_key = project_heads(latent.content, params.w_uk)  # (…, N, S, H)
    value = project_heads(latent.content, params.w_uv)  # (…, N, S, C)
    rotated_key = latent.rotated_key[..., None, :, :]  # one for all heads
    shape = (*content_key.shape[:-1], rotated_key.shape[-1])
    query = jnp.concatenate((content_query, rotated_query), axis=-1)  # (…, N, T, H + P)
    key = jnp.concatenate((content_key, jnp.broadcast_to(rotated_key, shape)), axis=-1)
    heads = attend(
        query, key, value, layout="NTH", mask=mask, is_causal=is_causal, scale=_scale(params)
    )
    return jnp.einsum("...hic,hcd->...id", heads, params.w_o)


def absorbed_attention(
    params: LatentParams,
    x: Float[Array, "*batch T D"],
    latent: Latent,
    angles: Float[Array, "T pairs"],
    *,
    mask: Mask | Bool[Array, "..."] | None = None,
    is_causal: bool = False,
) -> Float[Array, "*batch T D"]:
    """Attend to the latent itself: one key of width ``R + P``, one value of width ``R``.

    The arguments are those of :func:`expanded_attention`, and so is the output, up to the rounding
    of sums. Nothing is made of the positions attended to, which is what one new token with a long
    cache needs.

    References:
        DeepSeek-AI, DeepSeek-V2, 2024, section 2.1.

    Example:
        >>> sizes = {"latent_dim": 6, "head_dim": 4, "rotary_dim": 2, "value_dim": 3}
        >>> params = init_latent(jax.random.key(0), 8, 5, **sizes)
        >>> x, angles = jnp.ones((7, 8)), jnp.zeros((7, 1))
        >>> absorbed_attention(params, x, compress(params, x, angles), angles).shape
        (7, 8)
    """
    content_query, rotated_query = _queries(params, x, angles)
    _check_latent(params, latent, x)
    absorbed = jnp.einsum("...hia,rha->...hir", content_query, params.w_uk)  # (…, N, T, R)
    query = jnp.concatenate((absorbed, rotated_query), axis=-1)  # (…, N, T, R + P)
    key = jnp.concatenate(latent, axis=-1)[..., None, :, :]  # (…, 1, S, R + P)
    value = latent.content[..., None, :, :]  # (…, 1, S, R)
    mixed = attend(
        query, key, value, layout="NTH", mask=mask, is_causal=is_causal, scale=_scale(params)
    )
    heads = jnp.einsum("...hir,rhc->...hic", mixed, params.w_uv)
    return jnp.einsum("...hic,hcd->...id", heads, params.w_o)


def _queries(params: LatentParams, x: Array, angles: Array) -> tuple[Array, Array]:
    """Return both parts of the queries, ``(…, N, T, H)`` and the rotated ``(…, N, T, P)``."""
    _check_input(params, x)
    if params.w_qc is not None:
        x = _norm(jnp.matmul(x, params.w_qc), params.norm_qc)
    content, rotated = jnp.split(project_heads(x, params.w_q), [params.w_uk.shape[-1]], axis=-1)
    return content, rotate(rotated, angles)


def _norm(x: Array, weight: Array | None) -> Array:
    return x if weight is None else rms_norm(x, weight, 1e-6)


def _scale(params: LatentParams) -> float:
    return 1.0 / math.sqrt(params.w_q.shape[-1])


_AXES = {
    "w_c": ("D", "R"), "w_kr": ("D", "P"), "w_uk": ("R", "N", "H"), "w_uv": ("R", "N", "C"),
    "w_o": ("N", "C", "D"), "w_qc": ("D", "Q"), "norm_c": ("R",), "norm_qc": ("Q",),
}  # fmt: skip


def _check_params(params: LatentParams) -> dict[str, int]:
    """Raise unless ``params`` are arrays of one dtype whose axes fit together; return the sizes."""
    check_type(params, "params", LatentParams)
    sizes: dict[str, int] = {}
    for name, axes in _AXES.items():
        weight = getattr(params, name)
        if weight is not None or name not in ("w_qc", "norm_c", "norm_qc"):
            check_axes(weight, name, axes, sizes, Float, params.w_c, "w_c")
    if params.w_qc is None:
        check(params.norm_qc is None, "norm_qc", "None, without w_qc", "an array")
        sizes["Q"] = sizes["D"]
    sizes["H + P"] = sizes["H"] + sizes["P"]
    check_axes(params.w_q, "w_q", ("Q", "N", "H + P"), sizes, Float, params.w_c, "w_c")
    return sizes


def _check_input(params: LatentParams, x: Array) -> None:
    check_axes(x, "x", ("*", "T", "D"), _check_params(params), Float, params.w_c, "the weights")


def _check_latent(params: LatentParams, latent: Latent, x: Array) -> None:
    """Raise unless ``latent`` is what :func:`compress` gives with these parameters."""
    is_latent = isinstance(latent, Latent)
    check(is_latent, "latent", "what compress gave, a Latent", type(latent).__name__)
    sizes: dict[str, Any] = {**_check_params(params), "*batch": tuple(x.shape[:-2])}
    for name, axes in (("content", ("*batch", "S", "R")), ("rotated_key", ("*batch", "S", "P"))):
        check_axes(getattr(latent, name), f"latent.{name}", axes, sizes, Float, x, "x")
