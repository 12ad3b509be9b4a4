r"""Ulysses: sequence parallelism by all-to-all, heads for positions and back.

Device $d$ of $P$ holds $T/P$ positions of all heads. It gives each other device the heads that are
that one's, gets all positions of its own $N/P$ heads, attends as if alone, and gives the outputs
back. Three exchanges before and one after send $(P-1)/P$ of what a device holds, whatever the mask
is, where a ring sends its keys and values $P - 1$ times; but there have to be as many heads as
devices.

References:
    Jacobs et al., DeepSpeed Ulysses, 2023 (arXiv:2309.14509).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from mha_book.attention.dispatch import attend
from mha_book.masks import Mask, as_mask
from mha_book.sharding.mesh import (
    MeshAxes,
    check_divisible,
    divide_operands,
    kv_copies,
    mask_specs,
    on_mesh,
    own_kv_heads,
)

__all__ = ["all_to_all_attention"]


def exchange_heads(x: Float[Array, "*batch N t H"], axis_name: str, devices: int) -> Array:
    """Give heads for positions, inside ``shard_map``.

    From all heads of this device's positions, ``(…, N, t, H)``, to all positions of its heads,
    ``(…, N / devices, T, H)``. Of fewer heads than devices, each goes to all that need it.
    """
    copies = devices // x.shape[-3] if x.shape[-3] % devices else 1
    x = jnp.repeat(x, copies, axis=-3) if copies > 1 else x
    heads, positions = x.ndim - 3, x.ndim - 2
    exchanged: Array = jax.lax.all_to_all(x, axis_name, heads, positions, tiled=True)
    return exchanged


def all_to_all_attention(
    query: Float[Array, "*batch T H"],
    key: Float[Array, "*kv_batch S H"],
    value: Float[Array, "*kv_batch S C"],
    *,
    axes: MeshAxes,
    mesh: Any = None,
    mask: Mask | Bool[Array, "..."] | None = None,
    is_causal: bool = False,
    scale: float | Float[Array, ""] | None = None,
    implementation: str | None = None,
) -> Array:
    """Attend with divided positions by all-to-all: Ulysses sequence parallelism.

    Query ``(…, N, T, H)``, key ``(…, K, S, H)`` and value are in natural order; the devices of
    ``axes.sequence`` divide ``T`` and ``S`` and, with those of ``axes.heads``, ``N``. The other
    arguments are those of :func:`~mha_book.sharding.ring.ring_attention` and
    :func:`~mha_book.attention.dispatch.attend`.

    Returns:
        ``(…, N, T, C)``, laid out as the query is.

    Example:
        >>> mesh, x = jax.make_mesh((1,), ("sequence",)), jnp.ones((2, 8, 4))
        >>> axes = MeshAxes(sequence="sequence")
        >>> all_to_all_attention(x, x, x, mesh=mesh, axes=axes, is_causal=True).shape
        (2, 8, 4)
    """
    layout = divide_operands(
        query, key, value, axes=axes, mesh=mesh, sequence="an axis of the mesh"
    )
    sizes, spec, kv_spec = layout.sizes, layout.query_spec, layout.kv_spec
    axis = "axis -2 (positions S)"
    check_divisible("key", axis, key.shape[-2], sizes.sequence, axes.sequence)
    names = [name for name in (axes.heads, axes.sequence) if name is not None]
    parts = sizes.heads * sizes.sequence
    kv_copies(query.shape[-3], key.shape[-3], parts, " × ".join(names))
    mask = as_mask(mask, is_causal, (*query.shape[:-1], key.shape[-2]))

    def on_device(query: Array, key: Array, value: Array, mask: Mask | None) -> Array:
        key, value = own_kv_heads(layout.copies, axes.heads, key, value)
        return attend_exchanged(
            query, key, value, str(axes.sequence), sizes.sequence,
            mask=mask, scale=scale, implementation=implementation,
        )  # fmt: skip

    in_specs = spec, kv_spec, kv_spec, mask_specs(mask, axes.batch, tuple(names))
    output: Array = on_mesh(on_device, layout.mesh, in_specs, spec)(query, key, value, mask)
    return output


def attend_exchanged(
    query: Array, key: Array, value: Array, axis_name: str, devices: int, **options: Any
) -> Array:
    """Attend inside ``shard_map``; the mask's array has this device's heads and all positions."""
    q, k, v = (exchange_heads(x, axis_name, devices) for x in (query, key, value))
    heads: Array = attend(q, k, v, layout="NTH", **options)  # (…, N / P, T, C)
    back = heads.ndim - 2, heads.ndim - 3
    output: Array = jax.lax.all_to_all(heads, axis_name, *back, tiled=True)
    return output
