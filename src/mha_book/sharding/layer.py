r"""The layer over a device mesh: data, tensor and context parallelism in one program.

Inside, each device runs the layer itself, on weights of fewer heads, sequences or positions. Which
weights a device has is in their types: :mod:`~mha_book.sharding.tensor_parallel` says where they
lie. Divided positions attend to each other by :mod:`~mha_book.sharding.ring` or by
:mod:`~mha_book.sharding.all_to_all`; divided sequences have nothing to send.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float

from mha_book._checks import check, check_floating, check_rank
from mha_book.masks import Mask, as_mask
from mha_book.multihead.layer import (
    broadcast_gates,
    multi_head_attention,
    project_output,
    project_qkv,
)
from mha_book.multihead.parameters import MultiHeadParams, check_params
from mha_book.sharding.all_to_all import attend_exchanged
from mha_book.sharding.mesh import (
    MeshAxes,
    check_divisible,
    kv_copies,
    mask_specs,
    mesh_and_sizes,
    on_mesh,
    own_kv_heads,
)
from mha_book.sharding.placement import Placement
from mha_book.sharding.ring import RingCall, attend_over_ring, checked_call
from mha_book.sharding.tensor_parallel import head_specs

__all__ = ["sharded_multi_head_attention"]

METHODS = ("ring", "all_to_all")


def sharded_multi_head_attention(
    params: MultiHeadParams,
    x: Float[Array, "*batch T D"],
    *,
    axes: MeshAxes,
    mesh: Any = None,
    method: str = "ring",
    placement: str | Placement = "contiguous",
    mask: Mask | Bool[Array, "..."] | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    gates: Float[Array, " N"] | None = None,
    angles: Float[Array, "T pairs"] | None = None,
    implementation: str | None = None,
    unroll: int | None = None,
) -> Float[Array, "*batch T D"]:
    r"""Apply the layer to sequences, heads and positions that are divided over a mesh.

    What :func:`~mha_book.multihead.layer.multi_head_attention` gives on one device, by the same
    three functions: each device projects, attends and projects back with the heads that it has, and
    what it has of $\sum_h O^h W_O^h$ is added up over the devices of ``axes.heads``.

    Arguments of the layer mean what they mean there, of positions in their natural order, but for
    ``x`` and ``angles``: their positions are in the order of ``placement``. ``params`` are as
    :func:`~mha_book.sharding.tensor_parallel.shard_params` places them, or not placed. Divided
    positions attend to each other by the ``method`` "ring"
    (:func:`~mha_book.sharding.ring.ring_attention`, where ``axes``, ``mesh``, ``placement`` and
    ``unroll`` are explained) or "all_to_all"
    (:func:`~mha_book.sharding.all_to_all.all_to_all_attention`).

    Returns:
        ``(…, T, D)``, divided as ``x`` is.

    Example:
        >>> import jax.numpy as jnp
        >>> from mha_book import init_multi_head
        >>> mesh = jax.make_mesh((1, 1), ("heads", "ring"))
        >>> params = init_multi_head(jax.random.key(0), d_model=8, num_heads=4, num_kv_heads=2)
        >>> axes = MeshAxes(heads="heads", sequence="ring")
        >>> sharded_multi_head_attention(params, jnp.ones((5, 8)), mesh=mesh, axes=axes).shape
        (5, 8)
    """
    check_params(params)
    check_rank(x, "x", "(…, T, D)", 2)
    check_floating(x, "x", params.w_q, "the weights")
    check(method in METHODS, "method", f"one of {', '.join(METHODS)}", repr(method))
    mesh, sizes = mesh_and_sizes(mesh, axes)
    num_heads, num_kv_heads = params.w_q.shape[1], params.w_k.shape[1]
    specs: Any = PartitionSpec()
    if axes.heads is not None:
        specs = head_specs(params, sizes.heads, axes.heads)
    copies = kv_copies(num_heads, num_kv_heads, sizes.heads, axes.heads)
    length = x.shape[-2]
    check_divisible("x", "axis -2 (positions T)", length, sizes.sequence, axes.sequence)
    x_spec = _input_spec(x, axes, sizes)
    given = as_mask(mask, is_causal, (*x.shape[:-2], num_heads, length, length))
    number = 1.0 / math.sqrt(params.w_q.shape[-1] or 1) if scale is None else scale
    is_ring = axes.sequence is not None and method == "ring"
    data: Any = given
    if is_ring:
        call = RingCall(str(axes.sequence), placement, number, implementation, unroll)
        call, data = checked_call(call, given, length, sizes.sequence)
        data_spec = mask_specs(data, axes.batch, axes.heads, axes.sequence)
    elif axes.sequence is not None:
        is_natural = placement == "contiguous"
        check(is_natural, "placement", "contiguous, for all_to_all", repr(placement))
        together = [name for name in (axes.heads, axes.sequence) if name is not None]
        parts = sizes.heads * sizes.sequence
        kv_copies(num_heads, num_kv_heads, parts, " × ".join(together))
        data_spec = mask_specs(given, axes.batch, tuple(together))
    else:
        data_spec = mask_specs(given, axes.batch, axes.heads)

    def on_device(
        params: MultiHeadParams, x: Array, data: Any, gates: Array | None, angles: Array | None
    ) -> Array:
        names = ("w_k", "w_v", "b_k", "b_v")
        shared = (getattr(params, name) for name in names)
        own = own_kv_heads(copies, axes.heads, *shared, axis=-2)
        params = params._replace(**dict(zip(names, own, strict=True)))
        b_o, params = params.b_o, params._replace(b_o=None)
        options: dict[str, Any] = {"scale": number, "implementation": implementation}
        output: Array
        if axes.sequence is None:
            output = multi_head_attention(
                params, x, mask=data, gates=gates, angles=angles, **options
            )
        else:
            q, k, v = project_qkv(params, x, angles=angles)
            if is_ring:
                heads = attend_over_ring(call, q, k, v, data)
            else:
                exchange = (str(axes.sequence), sizes.sequence)
                heads = attend_exchanged(q, k, v, *exchange, mask=data, **options)
            heads = heads if gates is None else heads * broadcast_gates(gates, heads.ndim)
            output = project_output(params, heads)
        if axes.heads is not None:
            output = jax.lax.psum(output, axes.heads)
        return output if b_o is None else output + jnp.expand_dims(b_o, [*range(x.ndim - 1)])

    of_gates = None if gates is None else PartitionSpec(axes.heads)
    of_angles = None if angles is None else PartitionSpec(axes.sequence, None)
    in_specs = specs, x_spec, data_spec, of_gates, of_angles
    result: Array = on_mesh(on_device, mesh, in_specs, x_spec)(params, x, data, gates, angles)
    return result


def _input_spec(x: Array, axes: MeshAxes, sizes: Any) -> PartitionSpec:
    if axes.batch is not None:
        what = "None, or x with an axis of sequences, (B, T, D)"
        check(x.ndim > 2, "axes.batch", what, f"{axes.batch!r} and x of shape {x.shape}")
        check_divisible("x", "axis 0 (sequences)", x.shape[0], sizes.batch, axes.batch)
    leading = [axes.batch, *[None] * (x.ndim - 3)] if x.ndim > 2 else []
    return PartitionSpec(*leading, axes.sequence, None)
