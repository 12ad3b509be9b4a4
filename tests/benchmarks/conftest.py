"""What the tests of the benchmarks share."""

import pytest


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch):
    """No rest before a sample: these tests are not about the times that come out."""
    monkeypatch.setattr("harness.timing.REST", 0.0)
