"""Attention over many devices: data, tensor and context parallelism, and decoding over devices.

:func:`ring_attention` and :func:`all_to_all_attention` (Ulysses) attend over divided positions,
:func:`sharded_multi_head_attention` is the layer over any mesh, :func:`sharded_cached_attention`
the same over a divided KV cache, and :func:`plan_cost` says what a plan costs each device.
"""

from mha_book.sharding.all_to_all import all_to_all_attention
from mha_book.sharding.decode import shard_cache, sharded_cached_attention
from mha_book.sharding.layer import sharded_multi_head_attention
from mha_book.sharding.mesh import MeshAxes, MeshSizes
from mha_book.sharding.placement import Placement, balance, make_placement, place, restore
from mha_book.sharding.plan import PlanCost, compiled_transfers, plan_cost
from mha_book.sharding.ring import ring_attention
from mha_book.sharding.tensor_parallel import shard_params

__all__ = [
    "MeshAxes",
    "MeshSizes",
    "Placement",
    "PlanCost",
    "all_to_all_attention",
    "balance",
    "compiled_transfers",
    "make_placement",
    "place",
    "plan_cost",
    "restore",
    "ring_attention",
    "shard_cache",
    "shard_params",
    "sharded_cached_attention",
    "sharded_multi_head_attention",
]
