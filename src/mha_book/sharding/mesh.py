"""Which axis of a mesh of devices divides what, and errors that say what to write instead.

Shapes, here and in the modules beside: ``B`` sequences, ``N`` query heads, ``K`` key/value heads,
``T`` positions, ``H`` width of queries and keys, ``C`` width of values, ``P`` devices of an axis.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from mha_book._checks import check, check_operands, check_type
from mha_book.masks import Mask

__all__ = [
    "DividedOperands",
    "MeshAxes",
    "MeshSizes",
    "axis_sizes",
    "check_divisible",
    "divide_operands",
    "head_parts",
    "mask_specs",
    "mesh_of",
    "on_mesh",
    "operand_specs",
    "own_kv_heads",
]


class MeshAxes(NamedTuple):
    """The names of the mesh axes that divide sequences, heads and positions; None for undivided.

    Args:
        batch: the axis that the first axis of the arrays is divided over.
        heads: the axis that the heads are divided over.
        sequence: the axis that the positions are divided over.
    """

    batch: str | None = None
    heads: str | None = None
    sequence: str | None = None


class MeshSizes(NamedTuple):
    """How many devices divide sequences, heads and positions; 1 for undivided.

    Args:
        batch: that divide the sequences.
        heads: that divide the heads.
        sequence: that divide the positions.
    """

    batch: int = 1
    heads: int = 1
    sequence: int = 1


def mesh_of(mesh: Any = None) -> Any:
    """Return a mesh, or the one that :func:`jax.set_mesh` set where none is given.

    Args:
        mesh: a mesh, of devices or abstract, or None.

    Returns:
        The mesh.

    Raises:
        ValueError: there is none.

    Example:
        >>> mesh_of(jax.make_mesh((1,), ("ring",))).axis_names
        ('ring',)
    """
    if mesh is None:
        mesh = jax.sharding.get_abstract_mesh()
        what = "a mesh, or one that is set: write with jax.set_mesh(jax.make_mesh(…))"
        check(not mesh.empty, "mesh", what, None)
    kinds = (jax.sharding.Mesh, jax.sharding.AbstractMesh)
    check_type(mesh, "mesh", kinds, "as jax.make_mesh gives it")
    return mesh


def axis_sizes(mesh: Any, axes: MeshAxes) -> MeshSizes:
    """Return how many devices each axis has, 1 for what is not divided.

    Args:
        mesh: the mesh.
        axes: the names.

    Returns:
        The numbers.

    Raises:
        ValueError: the mesh has no axis of such a name, or one name stands twice.

    Example:
        >>> axis_sizes(jax.make_mesh((1,), ("ring",)), MeshAxes(sequence="ring")).sequence
        1
    """
    check_type(axes, "axes", MeshAxes, "that is MeshAxes(batch=…, heads=…, sequence=…)")
    known = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True))
    sizes = []
    for field, name in axes._asdict().items():
        what = f"an axis of the mesh, one of {', '.join(map(repr, known)) or 'none'}, or None"
        if name is not None and name not in known:
            what += f"; make it with jax.make_mesh((…,), ({name!r},)) or name another"
            check(False, f"axes.{field}", what, repr(name))
        sizes.append(1 if name is None else known[name])
    named = [name for name in axes if name is not None]
    what = "a different axis of the mesh for each of batch, heads and sequence"
    check(len(set(named)) == len(named), "axes", what, axes)
    return MeshSizes(*sizes)


def check_divisible(name: str, axis: str, size: int, devices: int, mesh_axis: Any) -> None:
    """Raise unless the devices of a mesh axis divide the axis of an array evenly.

    Args:
        name: the argument.
        axis: which of its axes, in words.
        size: of that axis.
        devices: of the axis of the mesh.
        mesh_axis: the name of that.

    Raises:
        ValueError: names both axes, what was expected, what came, and what to do.

    Example:
        >>> check_divisible("query", "axis -3 (heads N)", 8, 4, "heads")
    """
    if size % devices:
        fitting = [n for n in range(1, devices) if size % n == 0]
        what = f"{axis} to be a multiple of {devices}, the devices of mesh axis {mesh_axis!r}"
        todo = f"; fill it up to {-(-size // devices) * devices}, or use {fitting[-1]} devices"
        check(False, name, what + todo, size)


def head_parts(num_heads: int, num_kv_heads: int, devices: int, mesh_axis: Any) -> int:
    """Return over how many devices each key/value head has to be repeated.

    Args:
        num_heads: ``N``.
        num_kv_heads: ``K``.
        devices: ``P``, of the axis that divides the heads.
        mesh_axis: its name.

    Returns:
        1 where ``P`` divides ``K``; ``P / K`` where ``K`` divides ``P``: then the query heads of a
        key/value head lie on that many devices, and each of these needs it.

    Raises:
        ValueError: ``P`` does not divide ``N``, or neither of ``K`` and ``P`` the other.

    Example:
        >>> head_parts(8, 2, 4, "heads")
        2
    """
    check_divisible("query", "axis -3 (heads N)", num_heads, devices, mesh_axis)
    if num_kv_heads % devices == 0:
        return 1
    what = f"axis -3 (heads K) to divide {devices}, or to be a multiple of it: the devices of "
    what += f"mesh axis {mesh_axis!r}; use {num_kv_heads} devices, or repeat_kv_heads"
    check(devices % num_kv_heads == 0, "key", what, num_kv_heads)
    return devices // num_kv_heads


def operand_specs(rank: int, axes: MeshAxes) -> PartitionSpec:
    """Return how an array ``(…, N, T, H)`` of ``rank`` lies on the mesh.

    Args:
        rank: of the array, 3 or more.
        axes: the names of the mesh axes.

    Returns:
        The spec: the first of the leading axes by ``axes.batch``.

    Example:
        >>> tuple(operand_specs(4, MeshAxes("batch", None, "ring")))
        ('batch', None, 'ring', None)
    """
    leading = [axes.batch, *[None] * (rank - 4)] if rank > 3 else []
    what = "arrays with an axis of sequences, (B, N, T, H)"
    check(rank > 3 or axes.batch is None, "axes.batch", f"None, or {what}", f"rank {rank}")
    return PartitionSpec(*leading, axes.heads, axes.sequence, None)


class DividedOperands(NamedTuple):
    """How queries, keys and values of attention over a divided sequence lie on a mesh.

    Args:
        mesh: the mesh.
        sizes: how many of its devices divide what.
        copies: over how many devices each key/value head is repeated, as in :func:`head_parts`.
        query_spec: of the query, and of the output.
        kv_spec: of key and value, whose heads are whole on every device where they are repeated.
    """

    mesh: Any
    sizes: MeshSizes
    copies: int
    query_spec: PartitionSpec
    kv_spec: PartitionSpec


def divide_operands(
    query: Array, key: Array, value: Array, *, axes: MeshAxes, mesh: Any, sequence: str
) -> DividedOperands:
    """Check the operands of attention over a divided sequence, and say how they lie.

    Args:
        query: ``(…, N, T, H)``.
        key: ``(…, K, S, H)``.
        value: ``(…, K, S, C)``.
        axes: the names of the mesh axes.
        mesh: the mesh; None for the one that is set.
        sequence: what ``axes.sequence`` has to be, in words.

    Returns:
        The layout.

    Raises:
        ValueError: an axis of the mesh is not known, ``axes.sequence`` is None, or the devices do
            not divide the positions, the sequences or the heads.

    Example:
        >>> mesh, x = jax.make_mesh((1,), ("ring",)), jnp.ones((2, 8, 4))
        >>> axes = MeshAxes(sequence="ring")
        >>> layout = divide_operands(x, x, x, axes=axes, mesh=mesh, sequence="an axis")
        >>> tuple(layout.query_spec), layout.copies
        ((None, 'ring', None), 1)
    """
    check_operands(query, key, value)
    mesh = mesh_of(mesh)
    sizes = axis_sizes(mesh, axes)
    check(axes.sequence is not None, "axes.sequence", sequence, None)
    check(query.ndim > 2, "query", "axes (…, N, T, H), rank 3 or more", f"shape {query.shape}")
    length, devices = query.shape[-2], sizes.sequence
    check_divisible("query", "axis -2 (positions T)", length, devices, axes.sequence)
    query_spec = operand_specs(query.ndim, axes)
    if axes.batch is not None:
        check_divisible("query", "axis 0 (sequences)", query.shape[0], sizes.batch, axes.batch)
    copies = head_parts(query.shape[-3], key.shape[-3], sizes.heads, axes.heads)
    whole = axes if copies == 1 else axes._replace(heads=None)
    return DividedOperands(mesh, sizes, copies, query_spec, operand_specs(query.ndim, whole))


def own_kv_heads(copies: int, heads: str | None, *arrays: Any, axis: int = -3) -> tuple[Any, ...]:
    """Of key/value heads that several devices share, keep the one that this device's queries read.

    Inside ``shard_map``.

    Args:
        copies: over how many devices each is repeated; with 1 the arrays stay as they are.
        heads: the axis of the mesh that divides the query heads.
        arrays: with an axis of all key/value heads, or None.
        axis: which it is.

    Returns:
        The arrays, with one head each where ``copies > 1``.
    """
    if copies == 1:
        return arrays
    own = jax.lax.axis_index(heads) // copies

    def take(x: Any) -> Any:
        return None if x is None else jax.lax.dynamic_slice_in_dim(x, own, 1, axis)

    return tuple(map(take, arrays))


def on_mesh(
    function: Callable[..., Any], mesh: Any, in_specs: tuple[Any, ...], out_specs: Any
) -> Callable[..., Any]:
    """Return a function of whole arrays, of which each device computes its part.

    :func:`jax.shard_map`, for meshes with automatic and with explicit axes alike: where the types
    say how arrays are divided, one that is not divided yet is, and one that is divided otherwise is
    an error.

    Args:
        function: what each device computes of its parts.
        mesh: the mesh.
        in_specs: how the arguments are divided, one spec for each array.
        out_specs: how the results are.

    Returns:
        The function.

    Example:
        >>> mesh = jax.make_mesh((1,), ("ring",))
        >>> on_mesh(lambda x: 2 * x, mesh, (PartitionSpec("ring"),), PartitionSpec("ring"))(
        ...     jnp.ones(3)
        ... ).tolist()
        [2.0, 2.0, 2.0]
    """
    run = jax.shard_map(
        function,
        mesh=mesh,
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,  # kernels take no part in what it checks
    )
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
    """Return how the arrays of a mask lie on the mesh, as a mask of specs.

    Args:
        mask: what :func:`~mha_book.masks.as_mask` gave.
        batch: the axis of the mesh that divides the sequences, or None.
        heads: what divides the heads.
        queries: what divides the positions of the queries.

    Returns:
        The specs, one in place of each array; None for no mask.

    Example:
        >>> tuple(mask_specs(Mask(array=jnp.ones((2, 1, 3, 3), bool)), "batch", "heads").array)
        ('batch', None, None, None)
    """
    if mask is None:
        return None

    def by_entry(field: Any) -> Any:
        is_array = field is not None and not isinstance(field, int)
        return PartitionSpec(*[batch] if jnp.ndim(field) else []) if is_array else field

    fields = ("lower", "upper", "key_lengths", "query_lengths")
    specs = {name: by_entry(getattr(mask, name)) for name in fields}
    if mask.query_segments is not None:
        of_batch = [batch] * (jnp.ndim(mask.query_segments) - 1)
        specs["query_segments"] = PartitionSpec(*of_batch, queries)
        specs["key_segments"] = PartitionSpec(*of_batch, None)
    return Mask(**specs, array=array_spec(mask.array, batch, heads, queries))


def array_spec(array: Any, batch: Any, heads: Any, queries: Any = None) -> Any:
    """Return how an array ``(…, N, T, S)``, each axis whole or 1, lies on the mesh, or None."""
    if array is None:
        return None
    names = [heads, queries, None]
    names = [batch, *[None] * (array.ndim - 4), *names] if array.ndim > 3 else names
    named = zip(array.shape, names, strict=True)
    return PartitionSpec(*(None if size == 1 else name for size, name in named))
