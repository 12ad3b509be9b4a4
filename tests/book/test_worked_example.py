"""The example to check by hand: Q = K = V = I₂, two heads of width one.

Head 0 has queries, keys and values (1, 0), so that its first query has the scores 1 and 0, and
the output is the sigmoid of 1; its second query has two scores of 0, and the output is the mean.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import (
    attend,
    attention_weights,
    combine_heads,
    identity_params,
    multi_head_attention,
    scaled_dot_product_attention,
    split_heads,
)

EXPECTED = np.array([[0.73105858, 0.5], [0.5, 0.73105858]])


def test_worked_example() -> None:
    with jax.enable_x64(True):
        heads = split_heads(jnp.eye(2, dtype=jnp.float64), 2)  # (2, 2, 1)
        output = combine_heads(scaled_dot_product_attention(heads, heads, heads))
        np.testing.assert_allclose(output, EXPECTED, rtol=0, atol=5e-9)
        weights = attention_weights(heads, heads)
        np.testing.assert_allclose(weights[0], [[0.73105858, 0.26894142], [0.5, 0.5]], atol=5e-9)


@pytest.mark.parametrize("implementation", ["reference", "jax_nn", None])
def test_worked_example_by_dispatch(implementation: str | None) -> None:
    heads = split_heads(jnp.eye(2), 2)
    output = combine_heads(attend(heads, heads, heads, implementation=implementation))
    np.testing.assert_allclose(output, EXPECTED, rtol=0, atol=1e-7)


def test_worked_example_as_a_layer_with_identity_weights() -> None:
    output = multi_head_attention(identity_params(2, 2), jnp.eye(2))
    np.testing.assert_allclose(output, EXPECTED, rtol=0, atol=1e-7)
