"""What the tests of the models share."""

import pytest

from mha_book.models.smollm2 import SmolLM2
from tests.models.small import small_smollm2


@pytest.fixture(scope="module")
def small() -> SmolLM2:
    """A SmolLM2 of two layers with random weights."""
    return small_smollm2()
