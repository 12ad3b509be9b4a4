"""Wrong plans: the error names the axis, what was expected, what came, and what to do."""

import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh

from mha_book import init_multi_head
from mha_book.multihead.cache import init_cache
from mha_book.sharding import (
    MeshAxes,
    MeshSizes,
    make_placement,
    plan_cost,
    sharded_cached_attention,
)
from mha_book.sharding.mesh import kv_copies

MESH = AbstractMesh((2, 4, 8), ("batch", "heads", "ring"))


def test_how_many_devices_need_a_key_head() -> None:
    assert [kv_copies(8, k, 4, "heads") for k in (8, 4, 2, 1)] == [1, 1, 2, 4]


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
