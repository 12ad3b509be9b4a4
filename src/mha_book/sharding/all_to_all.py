r"""Attention over a divided sequence by two exchanges: heads for positions, and back.

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

from mha_book._checks import check, check_operands
from mha_book.attention.dispatch import attend
from mha_book.masks import Mask, as_mask
from mha_book.sharding.mesh import (
    MeshAxes,
    axis_sizes,
    check_divisible,
    head_parts,
    mask_specs,
    mesh_of,
    on_mesh,
    operand_specs,
)

__all__ = ["all_to_all_attention", "exchange_heads"]


def exchange_heads(x: Float[Array, "*batch N t H"], axis_name: str, devices: int) -> Array:
    """Give heads for positions, inside ``shard_map``.

    Where there are fewer heads than devices, each is given to all devices that need it.

    Args:
        x: ``(…, N, t, H)``, all heads of this device's positions.
        axis_name: the axis of the mesh.
        devices: of it.

    Returns:
        ``(…, N / devices, T, H)``, all positions of this device's heads.
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
    """Attend with the positions divided over devices that exchange heads for positions.

    Args:
        query: ``(…, N, T, H)``, in natural order; the devices of ``axes.sequence`` divide ``T``
            and, with those of ``axes.heads``, ``N``.
        key: ``(…, K, S, H)``, likewise.
        value: ``(…, K, S, C)``.
        axes: which axes of the mesh divide what.
        mesh: the mesh; None for the one that is set.
        mask: as in :func:`~mha_book.attention.dispatch.attend`.
        is_causal: likewise.
        scale: likewise.
        implementation: likewise.

    Returns:
        ``(…, N, T, C)``, laid out as the query is.

    Raises:
        ValueError: an axis of the mesh is not known, or its devices do not divide an axis of the
            arrays; or as in :func:`~mha_book.attention.dispatch.attend`.

    Example:
        >>> mesh, x = jax.make_mesh((1,), ("sequence",)), jnp.ones((2, 8, 4))
        >>> axes = MeshAxes(sequence="sequence")
        >>> all_to_all_attention(x, x, x, mesh=mesh, axes=axes, is_causal=True).shape
        (2, 8, 4)
    """
    check_operands(query, key, value)
    mesh = mesh_of(mesh)
    sizes = axis_sizes(mesh, axes)
    check(axes.sequence is not None, "axes.sequence", "an axis of the mesh", None)
    check(query.ndim > 2, "query", "axes (…, N, T, H), rank 3 or more", f"shape {query.shape}")
    if axes.batch is not None:
        check_divisible("query", "axis 0 (sequences)", query.shape[0], sizes.batch, axes.batch)
    for x, name in ((query, "query"), (key, "key")):
        check_divisible(name, "axis -2 (positions)", x.shape[-2], sizes.sequence, axes.sequence)
    parts = sizes.heads * sizes.sequence
    names = [name for name in (axes.heads, axes.sequence) if name is not None]
    head_parts(query.shape[-3], key.shape[-3], parts, " × ".join(names))
    copies = head_parts(query.shape[-3], key.shape[-3], sizes.heads, axes.heads)
    mask = as_mask(mask, is_causal, (*query.shape[:-1], key.shape[-2]))
    spec = operand_specs(query.ndim, axes)
    kv_spec = operand_specs(query.ndim, axes if copies == 1 else axes._replace(heads=None))
    exchanged = (axes.heads, axes.sequence) if axes.heads else axes.sequence

    def on_device(query: Array, key: Array, value: Array, mask: Mask | None) -> Array:
        if copies > 1:
            own = jax.lax.axis_index(axes.heads) // copies
            key, value = (jax.lax.dynamic_slice_in_dim(x, own, 1, -3) for x in (key, value))
        return attend_exchanged(
            query, key, value, str(axes.sequence), sizes.sequence,
            mask=mask, scale=scale, implementation=implementation,
        )  # fmt: skip

    run = on_mesh(
        on_device,
        mesh,
        (spec, kv_spec, kv_spec, mask_specs(mask, axes.batch, exchanged)),
        spec,
    )
    output: Array = run(query, key, value, mask)
    return output


def attend_exchanged(
    query: Array, key: Array, value: Array, axis_name: str, devices: int, **options: Any
) -> Array:
    """Attend inside ``shard_map``; the mask's array has this device's heads and all positions."""
    q, k, v = (exchange_heads(x, axis_name, devices) for x in (query, key, value))
    heads: Array = attend(q, k, v, **options)  # (…, N / P, T, C)
    back = heads.ndim - 2, heads.ndim - 3
    output: Array = jax.lax.all_to_all(heads, axis_name, *back, tiled=True)
    return output
