"""What the chapter on attention on hardware says beyond its equations."""

import math
import re

import jax
import jax.numpy as jnp
import pytest

from mha_book import attend
from mha_book.attention.blocks import block_sizes
from mha_book.costs import entry_count

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


def compiled(name, length):
    x = jax.ShapeDtypeStruct((HEADS, length, WIDTH), jnp.float32)
    function = jax.jit(lambda *x: attend(*x, is_causal=True, implementation=name))
    return function.lower(x, x, x).compile()


def largest_shape(text):
    shapes = re.findall(r"\b(?:pred|bf16|[fsu]\d+)\[([\d,]+)\]", text)
    return max(math.prod(map(int, shape.split(","))) for shape in shapes)


def test_blocks_store_no_array_of_pairs_and_the_reference_does():
    length = 2048
    sizes = block_sizes(1, length, length, HEADS, 1, position_dependent=True)
    blocks, reference = (compiled(name, length) for name in ("blockwise", "reference"))
    assert largest_shape(blocks.as_text()) == HEADS * sizes.queries * sizes.keys < length**2
    assert largest_shape(reference.as_text()) == HEADS * length**2
    rooms = [x.memory_analysis().temp_size_in_bytes for x in (blocks, reference)]
    assert rooms[0] < 4 * length**2 < rooms[1]


@pytest.mark.parametrize("name, power", [("blockwise", 1), ("reference", 2)])
def test_what_is_kept_for_the_backward_pass(name, power):
    def kept(length):
        x = jax.ShapeDtypeStruct((HEADS, length, WIDTH), jnp.float32)
        function = lambda *x: jax.vjp(lambda *y: attend(*y, implementation=name), *x)[1]  # noqa: E731
        return entry_count(jax.eval_shape(function, x, x, x))

    assert 2**power * 0.8 < kept(4096) / kept(2048) < 2**power * 1.05
