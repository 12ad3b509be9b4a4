"""Fixtures of the tests of the notation."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield
