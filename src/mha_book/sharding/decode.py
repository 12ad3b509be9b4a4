r"""Decoding over devices: the KV cache divided by heads, by positions (split-K), or both.

By heads, each device keeps the keys and values of its own and computes what a device alone would;
one sum over the devices gives the output, as without a cache. By positions, a device has some of
the slots of every head, $O_d$ and $\lambda_d$ over these, and
$O = \sum_d e^{\lambda_d - \lambda} O_d$ with $\lambda = \log \sum_d e^{\lambda_d}$: one maximum and
two sums over the devices, of as many elements as the new token's output has, however long the
cache. This is flash-decoding, with devices in place of the blocks of one kernel.

Shapes: as in :mod:`~mha_book.multihead.cache`; ``S`` slots of all devices.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from mha_book._checks import check, check_rank, check_type
from mha_book.attention.dispatch import attend_with_lse
from mha_book.attention.online_softmax import SoftmaxState, finalize
from mha_book.masks import Mask
from mha_book.multihead.cache import (
    KVCache,
    cached_multi_head_attention,
    check_new,
    checked_counts,
    written,
)
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.multihead.parameters import MultiHeadParams, check_params
from mha_book.sharding.mesh import MeshAxes, check_divisible, mesh_and_sizes, on_mesh, put_on_mesh
from mha_book.sharding.tensor_parallel import head_specs

__all__ = ["shard_cache", "sharded_cached_attention"]


def cache_specs(cache: KVCache, axes: MeshAxes) -> KVCache:
    """Return how the arrays of a cache lie on a mesh, as a cache of specs."""
    return KVCache(
        PartitionSpec(axes.batch, axes.heads, None, axes.sequence),
        PartitionSpec(axes.batch, axes.heads, axes.sequence, None),
        PartitionSpec(axes.batch),
        cache.window,
    )


def shard_cache(cache: KVCache, axes: MeshAxes, mesh: Any = None) -> KVCache:
    """Place a cache on the devices of a mesh, or of the one that is set.

    ``axes`` says which axes of the mesh divide sequences, key/value heads and slots.

    Example:
        >>> from mha_book.multihead.cache import init_cache
        >>> mesh, axes = jax.make_mesh((1,), ("slots",)), MeshAxes(sequence="slots")
        >>> shard_cache(init_cache(2, 4, 16, 8), axes, mesh).capacity
        16
    """
    mesh = jax.sharding.get_mesh() if mesh is None else mesh
    _check_cache(cache, axes, mesh_and_sizes(mesh, axes)[1])
    placed: KVCache = put_on_mesh(cache, cache_specs(cache, axes), mesh)
    return placed


def join_over_devices(
    output: Float[Array, "*batch T C"], lse: Float[Array, "*batch T"], axis_name: str
) -> tuple[Array, Array]:
    """Join output ``(…, T, C)`` and log-sum-exp ``(…, T)`` of different keys, inside ``shard_map``.

    The devices of ``axis_name`` have the keys; the log-sum-exp is -inf where one saw none.
    """
    maximum = jax.lax.pmax(lse, axis_name)
    weight = jnp.exp(lse - jnp.where(jnp.isneginf(maximum), jnp.zeros((), lse.dtype), maximum))
    total, summed = jax.lax.psum(
        (weight[..., None], weight[..., None] * output.astype(lse.dtype)), axis_name
    )
    joined, whole = finalize(SoftmaxState(maximum[..., None], total, summed))
    return joined.astype(output.dtype), whole


def sharded_cached_attention(
    params: MultiHeadParams,
    x: Float[Array, "B T D"],
    cache: KVCache,
    counts: Int[Array, " B"] | None = None,
    *,
    axes: MeshAxes,
    mesh: Any = None,
    angles: Float[Array, "*angle_batch T pairs"] | None = None,
    scale: float | None = None,
    implementation: str | None = None,
) -> tuple[Float[Array, "B T D"], KVCache]:
    """Apply the layer to new tokens over a cache that is divided over a mesh.

    What :func:`~mha_book.multihead.cache.cached_multi_head_attention` gives on one device, with its
    arguments: ``params`` divided by heads as the cache is, ``cache``, ``axes`` and ``mesh`` as in
    :func:`shard_cache`. The slots of a cache with a window cannot be divided.

    Returns:
        The output ``(B, T, D)`` and the new cache, divided as before. A sequence longer than the
        capacity is answered with NaN.

    Example:
        >>> from mha_book import init_multi_head
        >>> from mha_book.multihead.cache import init_cache
        >>> mesh, axes = jax.make_mesh((1,), ("slots",)), MeshAxes(sequence="slots")
        >>> params = init_multi_head(jax.random.key(0), d_model=8, num_heads=2)
        >>> output, cache = sharded_cached_attention(
        ...     params, jnp.ones((1, 3, 8)), init_cache(1, 2, 16, 4), mesh=mesh, axes=axes
        ... )
        >>> output.shape, cache.lengths.tolist()
        ((1, 3, 8), [3])
    """
    check_params(params)
    check_rank(x, "x", "(B, T, D)", 3)
    mesh, sizes = mesh_and_sizes(mesh, axes)
    _check_cache(cache, axes, sizes)
    num_heads = params.w_q.shape[1]
    check_divisible("params", "the heads of w_q (N)", num_heads, sizes.heads, axes.heads)
    specs: Any = PartitionSpec()
    if axes.heads is not None:
        specs = head_specs(params, sizes.heads, axes.heads)
    counts = checked_counts(cache, x.shape[1], counts)
    rows = PartitionSpec(axes.batch, None, None)
    turns = PartitionSpec(*[axes.batch] if angles is not None and angles.ndim > 2 else [])

    def on_device(
        params: MultiHeadParams, x: Array, cache: KVCache, counts: Array, angles: Array | None
    ) -> tuple[Array, KVCache]:
        b_o, params = params.b_o, params._replace(b_o=None)
        options: dict[str, Any] = {"scale": scale, "implementation": implementation}
        output: Array
        if axes.sequence is None:
            output, cache = cached_multi_head_attention(
                params, x, cache, counts, angles=angles, **options
            )
        else:
            query, key, value = project_qkv(params, x, angles=angles)
            check_new(cache, key, value, counts)
            first = jax.lax.axis_index(axes.sequence) * cache.capacity
            mask = Mask(upper=cache.lengths - first, query_lengths=counts)
            cache = _append(cache, key, value, counts, first)
            over = cache.lengths > cache.capacity * sizes.sequence
            query = jnp.where(over[:, None, None, None], jnp.asarray(jnp.nan, query.dtype), query)
            keys = jnp.swapaxes(cache.keys, -1, -2)
            part, lse = attend_with_lse(
                query, keys, cache.values, mask=mask, layout="NTH", **options
            )
            joined, _ = join_over_devices(part, lse, str(axes.sequence))
            output = project_output(params, joined)
        if axes.heads is not None:
            output = jax.lax.psum(output, axes.heads)
        return output if b_o is None else output + b_o[None, None], cache

    slots = cache_specs(cache, axes)
    in_specs = specs, rows, slots, PartitionSpec(axes.batch), turns
    run = on_mesh(on_device, mesh, in_specs, (rows, slots))
    result: tuple[Array, KVCache] = run(params, x, cache, counts, angles)
    return result


def _append(cache: KVCache, key: Array, value: Array, counts: Array, first: Array) -> KVCache:
    """Write those of the new tokens whose slots this device has; ``first`` is its first slot."""
    new = jnp.arange(key.shape[2], dtype=jnp.int32)[None, :]  # (1, T)
    slot = cache.lengths[:, None] + new - first  # (B, T)
    is_here = (new < counts[:, None]) & (slot >= 0)
    slot = jnp.where(is_here, slot, cache.capacity)  # out of bounds: dropped
    return KVCache(*written(cache, key, value, slot), cache.lengths + counts)


def _check_cache(cache: KVCache, axes: MeshAxes, sizes: Any) -> None:
    check_type(cache, "cache", KVCache, "as init_cache gives it")
    batch, num_kv_heads, capacity, _ = cache.values.shape
    check_divisible("cache", "its sequences (B)", batch, sizes.batch, axes.batch)
    check_divisible("cache", "its key/value heads (K)", num_kv_heads, sizes.heads, axes.heads)
    check_divisible("cache", "its slots (S)", capacity, sizes.sequence, axes.sequence)
    fits = cache.window is None or axes.sequence is None
    what = "a cache without a window, where the slots are divided"
    check(fits, "cache", what, f"a window of {cache.window}")
