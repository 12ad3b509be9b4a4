"""The benchmarks are scripts: their modules are found beside them."""

import sys

import pytest

from tests.benchmarks.paths import BENCHMARKS

sys.path.append(str(BENCHMARKS))


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch):
    """No rest before a sample: these tests are not about the times that come out."""
    monkeypatch.setattr("harness.timing.REST", 0.0)


@pytest.fixture
def rates(monkeypatch):
    """The limits of the machine as given numbers: measuring them compiles much."""
    found = {"matmul_flops_per_s": 1e9, "stream_bytes_per_s": 1e9, "copy_bytes_per_s": 1e9}
    for name in ("attention", "heads", "parts"):
        monkeypatch.setattr(f"{name}.measure_rates", lambda *_, **__: found)
    return found
