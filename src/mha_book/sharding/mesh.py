"""Which axis of a device mesh divides what, and errors that say what to write instead.

Three kinds of parallelism divide a layer, and :class:`MeshAxes` names the mesh axis of each: *data
parallelism* divides the sequences of a batch (``batch``), *tensor parallelism* the heads
(``heads``), *context* or *sequence parallelism* the positions (``sequence``). They combine freely.

Shapes, here and in the other modules of the folder: ``B`` sequences, ``N`` query heads, ``K``
key/value heads, ``T`` positions, ``H`` width of queries and keys, ``C`` width of values, ``P``
devices of an axis.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from mha_book._checks import check, check_operands, check_type
from mha_book.masks import Mask

__all__ = ["MeshAxes", "MeshSizes"]


class MeshAxes(NamedTuple):
    """The names of the mesh axes that divide sequences, heads and positions; None for undivided.

    Args:
        batch: of data parallelism, which divides the first axis of the arrays.
        heads: of tensor parallelism, which divides the heads.
        sequence: of context parallelism, which divides the positions.
    """

    batch: str | None = None
    heads: str | None = None
    sequence: str | None = None


class MeshSizes(NamedTuple):
    """How many devices divide sequences, heads and positions; 1 for undivided."""

    batch: int = 1
    heads: int = 1
    sequence: int = 1


def mesh_and_sizes(mesh: Any, axes: MeshAxes) -> tuple[Any, MeshSizes]:
    """Return a mesh, the one of :func:`jax.set_mesh` for None, and how many devices divide what."""
    if mesh is None:
        mesh = jax.sharding.get_abstract_mesh()
        what = "a mesh, or one that is set: write with jax.set_mesh(jax.make_mesh(…))"
        check(not mesh.empty, "mesh", what, None)
    kinds = (jax.sharding.Mesh, jax.sharding.AbstractMesh)
    check_type(mesh, "mesh", kinds, "as jax.make_mesh gives it")
    check_type(axes, "axes", MeshAxes, "that is MeshAxes(batch=…, heads=…, sequence=…)")
    known = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    named = [name for name in axes if name is not None]
    for field, name in axes._asdict().items():
        what = f"an axis of the mesh, one of {', '.join(map(repr, known)) or 'none'}, or None"
        what += f"; make it with jax.make_mesh((…,), ({name!r},)) or name another"
        check(name is None or name in known, f"axes.{field}", what, repr(name))
    what = "a different axis of the mesh for each of batch, heads and sequence"
    check(len(set(named)) == len(named), "axes", what, axes)
    return mesh, MeshSizes(*(known.get(name, 1) for name in axes))


def put_on_mesh(tree: Any, specs: Any, mesh: Any) -> Any:
    """Place each array of a tree on the devices of a mesh, as the spec in its place says."""
    return jax.tree.map(lambda x, spec: jax.device_put(x, NamedSharding(mesh, spec)), tree, specs)


def check_divisible(name: str, axis: str, size: int, devices: int, mesh_axis: Any) -> None:
    """Raise unless the devices of a mesh axis divide ``axis`` of the argument ``name`` evenly."""
    if size % devices:
        fitting = [n for n in range(1, devices) if size % n == 0]
        what = f"{axis} to be a multiple of {devices}, the devices of mesh axis {mesh_axis!r}"
        todo = f"; fill it up to {-(-size // devices) * devices}, or use {fitting[-1]} devices"
        check(False, name, what + todo, size)


def kv_copies(num_heads: int, num_kv_heads: int, devices: int, mesh_axis: Any) -> int:
    """Return on how many devices each key/value head is needed: 1 where ``P`` divides ``K``.

    Where ``K`` divides ``P`` it is ``P / K``: the query heads of one key/value head lie on that
    many devices, and each of these needs it. Anything else is an error.
    """
    check_divisible("query", "axis -3 (heads N)", num_heads, devices, mesh_axis)
    if num_kv_heads % devices == 0:
        return 1
    what = f"axis -3 (heads K) to divide {devices}, or to be a multiple of it: the devices of "
    what += f"mesh axis {mesh_axis!r}; use {num_kv_heads} devices, or repeat_kv_heads"
    check(devices % num_kv_heads == 0, "key", what, num_kv_heads)
    return devices // num_kv_heads


def own_kv_heads(copies: int, heads: str | None, *arrays: Any, axis: int = -3) -> tuple[Any, ...]:
    """Of key/value heads on every device keep this device's one, inside ``shard_map``.

    ``copies`` is what :func:`kv_copies` gave; with 1 the arrays stay as they are.
    """
    if copies == 1:
        return arrays
    own = jax.lax.axis_index(heads) // copies
    return tuple(
        None if x is None else jax.lax.dynamic_slice_in_dim(x, own, 1, axis) for x in arrays
    )


def operand_specs(rank: int, axes: MeshAxes) -> PartitionSpec:
    """Return how an array ``(…, N, T, H)`` of ``rank`` lies on the mesh."""
    leading = [axes.batch, *[None] * (rank - 4)] if rank > 3 else []
    what = "arrays with an axis of sequences, (B, N, T, H)"
    check(rank > 3 or axes.batch is None, "axes.batch", f"None, or {what}", f"rank {rank}")
    return PartitionSpec(*leading, axes.heads, axes.sequence, None)


class DividedOperands(NamedTuple):
    """How queries, keys and values of attention over divided positions lie on a mesh.

    ``kv_spec`` leaves the heads whole on every device where each is needed on several, ``copies``.
    """

    mesh: Any
    sizes: MeshSizes
    copies: int
    query_spec: PartitionSpec
    kv_spec: PartitionSpec


def divide_operands(
    query: Array, key: Array, value: Array, *, axes: MeshAxes, mesh: Any, sequence: str
) -> DividedOperands:
    """Check the operands of attention over divided positions, and say how they lie.

    ``sequence`` says in words what ``axes.sequence`` has to be.
    """
    check_operands(query, key, value)
    mesh, sizes = mesh_and_sizes(mesh, axes)
    check(axes.sequence is not None, "axes.sequence", sequence, None)
    check(query.ndim > 2, "query", "axes (…, N, T, H), rank 3 or more", f"shape {query.shape}")
    length, devices = query.shape[-2], sizes.sequence
    check_divisible("query", "axis -2 (positions T)", length, devices, axes.sequence)
    query_spec = operand_specs(query.ndim, axes)
    if axes.batch is not None:
        check_divisible("query", "axis 0 (sequences)", query.shape[0], sizes.batch, axes.batch)
    copies = kv_copies(query.shape[-3], key.shape[-3], sizes.heads, axes.heads)
    whole = axes if copies == 1 else axes._replace(heads=None)
    return DividedOperands(mesh, sizes, copies, query_spec, operand_specs(query.ndim, whole))


def on_mesh(
    function: Callable[..., Any], mesh: Any, in_specs: tuple[Any, ...], out_specs: Any
) -> Callable[..., Any]:
    """Return a function of whole arrays, of which each device computes its part.

    :func:`jax.shard_map`, for meshes with automatic and with explicit axes alike: where the types
    say how arrays are divided, one that is not divided yet is, and one that is divided otherwise is
    an error.
    """
    specs = {"in_specs": in_specs, "out_specs": out_specs}
    run = jax.shard_map(function, mesh=mesh, **specs, check_vma=False)  # kernels take no part in it
    if AxisType.Explicit not in mesh.axis_types:
        return run

    def divide(spec: Any, x: Any) -> Any:
        def of_array(x: Array) -> Array:
            is_whole = not any(jax.typeof(x).sharding.spec)
            wanted = NamedSharding(mesh, spec) if isinstance(mesh, jax.sharding.Mesh) else spec
            return jax.reshard(x, wanted) if is_whole else x

        return x if spec is None else jax.tree.map(of_array, x)

    def is_spec(x: Any) -> bool:
        return x is None or isinstance(x, PartitionSpec)

    def divided(*arguments: Any) -> Any:
        return run(*jax.tree.map(divide, in_specs, arguments, is_leaf=is_spec))

    return divided


def mask_specs(mask: Mask | None, batch: Any, heads: Any, queries: Any = None) -> Any:
    """Return how the arrays of a mask lie on the mesh, whole keys on every device: as a mask."""

    def of_leaf(path: Any, x: Array) -> PartitionSpec:
        kind, rank = path[0].name, jnp.ndim(x)
        if kind == "array":
            names = [batch, *[None] * (rank - 4)][: max(rank - 3, 0)] + [heads, queries, None]
            named = zip(x.shape, names[-rank:], strict=True)
            return PartitionSpec(*(None if size == 1 else name for size, name in named))
        positions = {"query_segments": [queries], "key_segments": [None]}.get(kind, [])
        leading = [batch, *[None] * rank][: rank - len(positions)]
        return PartitionSpec(*leading, *positions)

    return jax.tree_util.tree_map_with_path(of_leaf, mask)
