"""The kernels under an interpreter that plays the memories, cores and copies of a TPU.

It notes which core reads and writes what, and in what order that is certain to happen.
"""

import contextlib
from collections.abc import Iterator
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic.interpret import interpret_pallas_call  # where it says what it found
from jax.experimental.pallas import tpu as pltpu

from mha_book import scaled_dot_product_attention
from mha_book.attention import flash, splash

X = jnp.asarray(np.random.default_rng(5).standard_normal((2, 256, 8)), jnp.float32)


@contextlib.contextmanager
def interpreter(cores: int) -> Iterator[pltpu.InterpretParams]:
    yield pltpu.InterpretParams(detect_races=True, num_cores_or_threads=cores)
    pltpu.reset_tpu_interpret_mode_state()


def race_found(result: object) -> bool:
    jax.block_until_ready(result)
    return interpret_pallas_call.races.races_found


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_kernel_to_learn_from_has_none(is_causal: bool, no_type_checks: None) -> None:
    """On two cores: heads and blocks of queries are said to be parallel, blocks of keys are not."""
    with interpreter(2) as interpret, mock.patch.object(flash, "check_flag"):
        output = flash.flash_attention(X, X, X, is_causal=is_causal, interpret=interpret)
        assert not race_found(output)
    expected = scaled_dot_product_attention(X, X, X, is_causal=is_causal)
    np.testing.assert_allclose(output, expected, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_splash_attention_has_none(no_type_checks: None) -> None:
    """On one core, as v5e and v6e have. Its rows' sums are outputs that two cores would share."""
    with interpreter(1) as interpret:
        kernel = splash._kernel(2, 256, 256, None, 0, None, interpret)
        output, pull = jax.vjp(kernel, X, X, X)
        assert not race_found(output)
        assert not race_found(pull(output))
    unscaled = scaled_dot_product_attention(X, X, X, is_causal=True, scale=1.0)
    np.testing.assert_allclose(output, unscaled, rtol=0, atol=1e-5)
