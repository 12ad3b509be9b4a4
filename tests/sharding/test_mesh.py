"""Wrong plans: the error names the axis, what was expected, what came, and what to do."""

import re
from typing import Any

import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

from mha_book import init_multi_head
from mha_book.masks import causal
from mha_book.multihead.cache import init_cache
from mha_book.sharding import (
    MeshAxes,
    MeshSizes,
    all_to_all_attention,
    make_placement,
    plan_cost,
    ring_attention,
    sharded_cached_attention,
    sharded_multi_head_attention,
)
from mha_book.sharding.mesh import kv_copies

MESH = AbstractMesh((2, 4, 8), ("batch", "heads", "ring"))
AXES = MeshAxes("batch", "heads", "ring")


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
        ({"axes": MeshAxes("ring", None, "ring")}, "axes: expected a different axis of the mesh"),
        (
            {"T": 20},
            (
                "query: expected axis -2 (positions T) to be a multiple of 8, the devices of mesh "
                "axis 'ring'; fill it up to 24, or use 5 devices; got 20"
            ),
        ),
        ({"B": 3}, "query: expected axis 0 (sequences) to be a multiple of 2, the devices of mesh"),
        (
            {"N": 12, "K": 3},
            (
                "key: expected axis -3 (heads K) to divide 4, or to be a multiple of it: the "
                "devices of mesh axis 'heads'; use 3 devices, or repeat_kv_heads; got 3"
            ),
        ),
        ({"placement": "zigzag", "T": 24, "is_causal": True}, "length: expected a multiple of 16,"),
        ({"mask": causal(jnp.array([1, 2]))}, "mask.upper: expected an integer: which steps a"),
        ({"scale": float("nan")}, "scale: expected a finite number"),
        (
            {"function": all_to_all_attention},
            "query: expected axis -3 (heads N) to be a multiple of 32, the devices of mesh axis",
        ),
    ],
)
def test_a_wrong_call(changes: dict[str, Any], message: str, no_type_checks: None) -> None:
    given = {"B": 2, "N": 8, "K": 4, "T": 16, "function": ring_attention, **changes}
    b, n, kv, t, function = (given.pop(name) for name in ("B", "N", "K", "T", "function"))
    q, k = jnp.ones((b, n, t, 3)), jnp.ones((b, kv, t, 3))
    with pytest.raises(ValueError, match=re.escape(message)):
        function(q, k, k, **{"mesh": MESH, "axes": AXES, **given})


def test_how_many_devices_need_a_key_head() -> None:
    assert [kv_copies(8, k, 4, "heads") for k in (8, 4, 2, 1)] == [1, 1, 2, 4]


def test_a_layer_without_sequences_to_divide() -> None:
    params, x = init_multi_head(0, 12, 6, num_kv_heads=3), jnp.ones((16, 12))
    with pytest.raises(ValueError, match=r"axes.batch: expected None, or x with an axis of seq"):
        sharded_multi_head_attention(params, x, mesh=MESH, axes=MeshAxes("batch"))


@pytest.mark.parametrize("count", [5, -1])
def test_counts_of_new_tokens(count: int) -> None:
    params, cache = init_multi_head(0, 12, 6), init_cache(1, 6, 8, 2)
    axes, x = MeshAxes(sequence="ring"), jnp.ones((1, 3, 12))
    with pytest.raises(ValueError, match="counts: expected numbers from 0 to 3, the new tokens"):
        sharded_cached_attention(params, x, cache, jnp.array([count]), axes=axes, mesh=MESH)


def test_a_list_of_placements(no_type_checks: None) -> None:
    with pytest.raises(ValueError, match=r"placement: .* a Placement; got \['zigzag'\]"):
        make_placement(["zigzag"], 8, 2)  # type: ignore[arg-type]


def test_a_plan_of_heads_that_do_not_divide() -> None:
    sizes = {"batch": 1, "num_heads": 4, "length": 8, "head_dim": 2, "devices": MeshSizes()}
    with pytest.raises(ValueError, match="num_kv_heads: expected a divisor of num_heads = 4; got"):
        plan_cost(**sizes, num_kv_heads=3)
