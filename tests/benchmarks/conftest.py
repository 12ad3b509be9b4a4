"""The benchmarks are scripts: their modules are found beside them."""

import sys

import pytest

from tests.benchmarks.paths import BENCHMARKS

sys.path.append(str(BENCHMARKS))


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch):
    """No rest before a sample: these tests are not about the times that come out."""
    monkeypatch.setattr("harness.timing.REST", 0.0)
