"""Errors of every implementation against float64, in each dtype, and beside those of ``jax.nn``."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import attend
from tests.attention.contract.cases import ANYWHERE

B, N, K, T, H = 1, 4, 2, 600, 16  # more keys than a block has
NAMES = [name for name in ANYWHERE if name != "jax_nn"]
FLOAT32 = 3e-6  # of the largest entry


def passes(call: Callable[..., Any], *operands: Any) -> list[np.ndarray]:
    """Return the output and the gradients of query, key and value, for a fixed cotangent."""
    *given, cotangent = operands

    @jax.jit
    def both(given: Any, cotangent: Any) -> Any:
        output, pull = jax.vjp(call, *given)
        return output, *pull(cotangent)

    return [np.asarray(x, np.float64) for x in both(given, cotangent)]


@functools.cache
def setting(dtype: str, is_causal: bool) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return operands rounded to the dtype, and what float64 makes of them."""
    rng = np.random.default_rng(11)
    shapes = ((B, N, T, H), (B, K, T, H), (B, K, T, H), (B, N, T, H))
    operands = [rng.standard_normal(shape).astype(jnp.dtype(dtype)) for shape in shapes]
    call = functools.partial(attend, is_causal=is_causal, implementation="reference")
    with jax.enable_x64(True):
        return operands, passes(call, *(jnp.asarray(x, "float64") for x in operands))


def errors(call: Callable[..., Any], dtype: str, is_causal: bool) -> np.ndarray:
    """Return the root of the mean square error of each array, relative to its own size."""
    operands, expected = setting(dtype, is_causal)
    got = passes(call, *(jnp.asarray(x) for x in operands))
    return np.array(
        [np.linalg.norm(g - e) / np.linalg.norm(e) for g, e in zip(got, expected, strict=True)]
    )


def by_name(name: str, is_causal: bool) -> Callable[..., Any]:
    return functools.partial(attend, is_causal=is_causal, implementation=name)


@functools.cache
def of_jax_nn(dtype: str, is_causal: bool) -> np.ndarray:
    def call(*given: jax.Array) -> jax.Array:
        turned = (jnp.swapaxes(x, 1, 2) for x in given)
        return jnp.swapaxes(jax.nn.dot_product_attention(*turned, is_causal=is_causal), 1, 2)

    return errors(call, dtype, is_causal)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_float32_is_as_near_to_float64_as_it_can_be(name: str, is_causal: bool) -> None:
    with jax.default_matmul_precision("highest"):
        assert errors(by_name(name, is_causal), "float32", is_causal).max() < FLOAT32


@pytest.mark.loose_promotion  # jax.nn's backward pass promotes
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_bfloat16_is_no_worse_than_jax_nn(name: str, is_causal: bool) -> None:
    mine, theirs = (
        errors(by_name(name, is_causal), "bfloat16", is_causal),
        of_jax_nn("bfloat16", is_causal),
    )
    # Splash rounds its queries once more, after the scale, here no power of two.
    most = 1.15 if name == "splash" else 1.02
    assert (mine <= most * theirs).all(), (mine, theirs)
