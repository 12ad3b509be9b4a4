"""Attention over many devices: heads divided, sequences around a ring, and both.

:func:`ring_attention` and :func:`all_to_all_attention` attend over a divided sequence,
:func:`sharded_multi_head_attention` is the layer over any mesh.
"""

from mha_book.sharding.all_to_all import all_to_all_attention
from mha_book.sharding.heads import shard_params, sharded_multi_head_attention
from mha_book.sharding.mesh import MeshAxes, MeshSizes
from mha_book.sharding.placement import Placement, balance, make_placement, place, restore
from mha_book.sharding.plan import plan_cost
from mha_book.sharding.ring import ring_attention

__all__ = [
    "MeshAxes",
    "MeshSizes",
    "Placement",
    "all_to_all_attention",
    "balance",
    "make_placement",
    "place",
    "plan_cost",
    "restore",
    "ring_attention",
    "shard_params",
    "sharded_multi_head_attention",
]
