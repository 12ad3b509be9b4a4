"""What the chapter on attention on hardware says beyond its equations."""

import re

import jax
import jax.numpy as jnp
import pytest

from mha_book import attend

HEADS, WIDTH = 2, 64
OPERANDS = ((HEADS, 96, WIDTH), (HEADS, 700, WIDTH), (HEADS, 700, WIDTH), (HEADS, 96, WIDTH))


@pytest.mark.loose_promotion
def test_jax_nn_rounds_the_weights_and_blocks_do_not():
    q, k, v = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in OPERANDS[:3])

    def weights(name):  # whether an array of all pairs is in half precision
        trace = str(jax.make_jaxpr(lambda *x: attend(*x, implementation=name))(q, k, v))
        return re.search(r"bf16\[(?:1,)*2,96,(?:1,)*700\]", trace) is not None

    assert weights("jax_nn")
    assert not weights("reference")
    assert not weights("blockwise")


def test_at_128_positions_the_package_adds_no_work_to_the_formula():
    """What the page says of a brief call: compiled, it is the formula and little else."""
    import overhead

    shape = jax.ShapeDtypeStruct((8, 128, 64), jnp.float32)
    cost = {
        call: jax.jit(call).lower(shape, shape, shape).compile().cost_analysis()
        for call in (attend, overhead.formula)
    }
    for what in ("flops", "transcendentals"):
        ours, textbook = (cost[call][what] for call in (attend, overhead.formula))
        assert ours == pytest.approx(textbook, rel=0.05), what
