"""What the chapter on attention without stored scores says beyond its equations."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import attend
from mha_book.attention.online_softmax import finalize, init, update

HEADS, WIDTH = 2, 64


@pytest.mark.parametrize("name, power", [("blockwise", 1), ("reference", 2)])
def test_what_is_kept_for_the_backward_pass(name, power):
    def kept(length):
        x = jax.ShapeDtypeStruct((HEADS, length, WIDTH), jnp.float32)
        function = lambda *x: jax.vjp(lambda *y: attend(*y, implementation=name), *x)[1]  # noqa: E731
        return sum(x.size for x in jax.tree.leaves(jax.eval_shape(function, x, x, x)))

    assert 2**power * 0.8 < kept(4096) / kept(2048) < 2**power * 1.05


def test_the_example_by_hand():
    """Four scores in two blocks: every number that the page has, before and after the second."""
    scores = jnp.log(jnp.array([[1.0, 2.0, 4.0, 1.0]]))
    values = jnp.array([[4.0], [1.0], [2.0], [4.0]])
    first = update(init((1, 1), jnp.float32), scores[:, :2], values[:2])
    np.testing.assert_allclose([float(x[0, 0]) for x in first], [np.log(2), 1.5, 3.0], rtol=1e-6)
    second = update(first, scores[:, 2:], values[2:])
    np.testing.assert_allclose([float(x[0, 0]) for x in second], [np.log(4), 2.0, 4.5], rtol=1e-6)
    output, lse = finalize(second)
    np.testing.assert_allclose([output[0, 0], lse[0]], [2.25, np.log(8)], rtol=1e-6)
