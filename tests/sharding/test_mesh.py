"""Wrong plans: the error names the axis, what was expected, what came, and what to do."""

from typing import Any

import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh
from mha_book.sharding.heads import shard_params, sharded_multi_head_attention

from mha_book import init_multi_head
from mha_book.masks import causal
from mha_book.sharding.all_to_all import all_to_all_attention
from mha_book.sharding.mesh import MeshAxes, head_parts, mesh_of
from mha_book.sharding.ring import ring_attention

MESH = AbstractMesh((2, 4, 8), ("batch", "heads", "ring"))
AXES = MeshAxes("batch", "heads", "ring")


def attend(function: Any = ring_attention, **changes: Any) -> None:
    sizes = {"B": 2, "N": 8, "K": 4, "T": 16} | {k: v for k, v in changes.items() if len(k) == 1}
    options = {"mesh": MESH, "axes": AXES} | {k: v for k, v in changes.items() if len(k) > 1}
    q = jnp.ones((sizes["B"], sizes["N"], sizes["T"], 3))
    k = jnp.ones((sizes["B"], sizes["K"], sizes["T"], 3))
    function(q, k, k, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"axes": MeshAxes(sequence="sequence")},
            (
                "axes.sequence: expected an axis of the mesh, one of 'batch', 'heads', 'ring', or "
                "None; make it with jax.make_mesh((…,), ('sequence',)) or name another; got "
                "'sequence'"
            ),
        ),
        ({"axes": MeshAxes()}, "axes.sequence: expected the axis of the mesh that is the ring;"),
        ({"axes": MeshAxes("ring", None, "ring")}, "axes: expected a different axis of the mesh"),
        (
            {"T": 20},
            (
                "query: expected axis -2 (positions T) to be a multiple of 8, the devices of mesh "
                "axis 'ring'; fill it up to 24, or use 5 devices; got 20"
            ),
        ),
        ({"B": 3}, "query: expected axis 0 (sequences) to be a multiple of 2, the devices of mesh"),
        ({"N": 6, "K": 6}, "query: expected axis -3 (heads N) to be a multiple of 4, the devices"),
        (
            {"N": 12, "K": 3},
            (
                "key: expected axis -3 (heads K) to divide 4, or to be a multiple of it: the "
                "devices of mesh axis 'heads'; use 3 devices, or repeat_kv_heads; got 3"
            ),
        ),
        ({"placement": "zigzag", "T": 24, "is_causal": True}, "length: expected a multiple of 16,"),
        ({"mask": causal(jnp.array([1, 2]))}, "mask.upper: expected an integer: which steps a"),
        ({"scale": jnp.ones(())}, "scale: expected a number: a ring has no gradient of an array"),
        ({"unroll": 0}, "unroll: expected None, or a positive integer; got 0"),
        ({"mesh": 8}, "mesh: expected Mesh or AbstractMesh, as jax.make_mesh gives it; got"),
    ],
)
def test_a_wrong_ring(changes: dict[str, Any], message: str, no_type_checks: None) -> None:
    with pytest.raises(ValueError) as error:
        attend(**changes)
    assert str(error.value).startswith(message)


def test_no_mesh() -> None:
    with pytest.raises(ValueError, match=r"mesh: .*write with jax.set_mesh\(jax.make_mesh"):
        mesh_of()


def test_too_few_heads_to_exchange() -> None:
    with pytest.raises(ValueError, match=r"\(heads N\) to be a multiple of 32, .*'heads × ring'"):
        attend(all_to_all_attention)


def test_how_many_devices_share_a_key_head() -> None:
    assert [head_parts(8, k, 4, "heads") for k in (8, 4, 2, 1)] == [1, 1, 2, 4]


def test_a_wrong_layer() -> None:
    params, x = init_multi_head(0, 12, 6, num_kv_heads=3), jnp.ones((2, 16, 12))
    with pytest.raises(ValueError, match=r"axis -3 \(heads N\) to be a multiple of 4.* got 6"):
        sharded_multi_head_attention(params, x, mesh=MESH, axes=MeshAxes(heads="heads"))
    with pytest.raises(ValueError, match="method: expected one of ring, all_to_all; got 'star'"):
        sharded_multi_head_attention(params, x, mesh=MESH, axes=MeshAxes(), method="star")
    with pytest.raises(ValueError, match=r"axes.batch: expected None, or x with an axis of seq"):
        sharded_multi_head_attention(params, x[0], mesh=MESH, axes=MeshAxes("batch"))
    with pytest.raises(ValueError, match=r"axes.heads: expected an axis of the mesh"):
        shard_params(params, "columns", MESH)
