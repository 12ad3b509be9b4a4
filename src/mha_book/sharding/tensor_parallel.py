r"""Tensor parallelism: the heads of a layer divided over devices, and with them its weights.

Device $d$ of $P$ has $N/P$ heads: their columns of $W_Q$, $W_K$ and $W_V$ and their rows of $W_O$.
It computes $\sum_h O^h W_O^h$ over its own heads, and one all-reduce gives the output of the layer.
Nothing else is sent: what a head does concerns no other head.

Where there are fewer key/value heads than devices, several devices need the same one. Its weights
are *replicated*, or *split* among those devices by columns and gathered before they are used: less
to hold, more to send. Latent attention has one latent for all heads, which no division of the heads
divides: every device makes it from the whole of $W_C$, and keeps the whole of it.

References:
    Shoeybi et al., Megatron-LM, 2019 (arXiv:1909.08053), section 3.
"""

from typing import Any, TypeVar

import jax
from jax.sharding import PartitionSpec

from mha_book._checks import check, check_type
from mha_book.multihead.latent import LatentParams
from mha_book.multihead.parameters import FusedMultiHeadParams, MultiHeadParams, check_params
from mha_book.sharding.mesh import MeshAxes, check_divisible, kv_copies, mesh_and_sizes, put_on_mesh

__all__ = ["shard_params"]

KV_HEADS = ("replicate", "split")
Params = TypeVar("Params", MultiHeadParams, LatentParams)


def head_specs(
    params: MultiHeadParams, devices: int, heads: str, kv_heads: str = "replicate"
) -> MultiHeadParams:
    """Return how the weights of a layer lie on a mesh axis ``heads`` of so many ``devices``."""
    check_separate(params)
    check(kv_heads in KV_HEADS, "kv_heads", f"one of {', '.join(KV_HEADS)}", repr(kv_heads))
    num_heads, num_kv_heads = params.w_q.shape[1], params.w_k.shape[1]
    is_shared = kv_copies(num_heads, num_kv_heads, devices, heads) > 1
    rows = heads if kv_heads == "split" else None
    into = PartitionSpec(rows, None, None) if is_shared else PartitionSpec(None, heads, None)
    if is_shared and rows is not None:
        for name in ("w_k", "w_v"):
            size = getattr(params, name).shape[0]
            check_divisible(name, "axis 0 (D)", size, devices, heads)
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


def latent_specs(params: LatentParams, devices: int, heads: str) -> LatentParams:
    """Return how the weights of latent attention lie: what has an axis of heads is divided.

    ``w_c`` and ``w_kr``, which make the latent, and ``w_qc`` are whole on every device.
    """
    check_type(params, "params", LatentParams, "as init_latent gives them")
    check_divisible("params", "axis of heads (N)", params.w_q.shape[1], devices, heads)
    whole: dict[str, Any] = {
        name: None if x is None else PartitionSpec() for name, x in params._asdict().items()
    }
    middle = PartitionSpec(None, heads, None)
    divided = {"w_q": middle, "w_uk": middle, "w_uv": middle, "w_o": PartitionSpec(heads)}
    return LatentParams(**{**whole, **divided})


def shard_params(
    params: Params, heads: str, mesh: Any = None, kv_heads: str = "replicate"
) -> Params:
    """Place the weights of a layer on the devices of a mesh, by heads: tensor parallelism.

    Their types then carry the division: under ``jax.jit`` the plain layer, called with these, runs
    over the devices too.

    Args:
        params: the weights of a layer, or of one with latent attention.
        heads: the name of the axis of the mesh.
        mesh: the mesh, of devices.
        kv_heads: what to do with key/value heads where the devices do not divide ``K``, which must
            divide them then: "replicate" to hold the weights of all of them on every device,
            "split" to hold ``D / devices`` rows of these, gathered before they are used.

    Example:
        >>> from mha_book import init_multi_head
        >>> mesh = jax.make_mesh((1,), ("heads",))
        >>> params = shard_params(init_multi_head(jax.random.key(0), 8, 4), "heads", mesh)
        >>> params.w_o.sharding.spec[0]
        'heads'
    """
    mesh = jax.sharding.get_mesh() if mesh is None else mesh
    devices = mesh_and_sizes(mesh, MeshAxes(heads=heads))[1].heads
    specs: Any
    if isinstance(params, LatentParams):
        specs = latent_specs(params, devices, heads)
    else:
        specs = head_specs(params, devices, heads, kv_heads)
    placed: Params = put_on_mesh(params, specs, mesh)
    return placed


def check_separate(params: Any) -> None:
    """Raise unless these are the separate weights of a layer, which can be divided by heads."""
    if isinstance(params, FusedMultiHeadParams):
        check(False, "params", "MultiHeadParams: write unfuse(params)", type(params).__name__)
    check_params(params)
