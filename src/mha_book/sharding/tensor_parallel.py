r"""Tensor parallelism: the heads of a layer divided over devices, and with them its weights.

Device $d$ of $P$ has $N/P$ heads: their columns of $W_Q$, $W_K$ and $W_V$ and their rows of $W_O$.
It computes $\sum_h O^h W_O^h$ over its own heads, and one all-reduce gives the output of the layer.
Nothing else is sent: what a head does concerns no other head.

Where there are fewer key/value heads than devices, several devices need the same one, and every
device holds the weights of all of them.

References:
    Shoeybi et al., Megatron-LM, 2019 (arXiv:1909.08053), section 3.
"""

from typing import Any

import jax
from jax.sharding import PartitionSpec

from mha_book.multihead.parameters import MultiHeadParams, check_params
from mha_book.sharding.mesh import MeshAxes, kv_copies, mesh_and_sizes, put_on_mesh

__all__ = ["shard_params"]


def head_specs(params: MultiHeadParams, devices: int, heads: str) -> MultiHeadParams:
    """Return how the weights of a layer lie on a mesh axis ``heads`` of so many ``devices``."""
    check_params(params)
    num_heads, num_kv_heads = params.w_q.shape[1], params.w_k.shape[1]
    is_shared = kv_copies(num_heads, num_kv_heads, devices, heads) > 1
    into = PartitionSpec() if is_shared else PartitionSpec(None, heads, None)
    bias = PartitionSpec() if is_shared else PartitionSpec(heads, None)
    specs: dict[str, Any] = {
        "w_q": PartitionSpec(None, heads, None),
        "w_k": into,
        "w_v": into,
        "w_o": PartitionSpec(heads, None, None),
        "b_q": PartitionSpec(heads, None),
        "b_k": bias,
        "b_v": bias,
        "b_o": PartitionSpec(),
    }
    absent = [name for name, x in params._asdict().items() if x is None]
    return MultiHeadParams(**{**specs, **dict.fromkeys(absent)})


def shard_params(params: MultiHeadParams, heads: str, mesh: Any = None) -> MultiHeadParams:
    """Place the weights of a layer on the devices of a mesh, by heads: tensor parallelism.

    Their types then carry the division: under ``jax.jit`` the plain layer, called with these, runs
    over the devices too.

    Args:
        params: the weights of a layer. Where the devices do not divide its ``K`` key/value heads,
            ``K`` must divide them, and every device holds the weights of all of these.
        heads: the name of the axis of the mesh.
        mesh: the mesh, of devices.

    Example:
        >>> from mha_book import init_multi_head
        >>> mesh = jax.make_mesh((1,), ("heads",))
        >>> params = shard_params(init_multi_head(jax.random.key(0), 8, 4), "heads", mesh)
        >>> params.w_o.sharding.spec[0]
        'heads'
    """
    mesh = jax.sharding.get_mesh() if mesh is None else mesh
    devices = mesh_and_sizes(mesh, MeshAxes(heads=heads))[1].heads
    placed: MultiHeadParams = put_on_mesh(params, head_specs(params, devices, heads), mesh)
    return placed
