"""No false alarm: what is right passes, in whatever layout, convention, dtype and library."""

import pytest

from mha_book.conformance import check_attention
from tests.conformance.correct import implementations, make

MANY = implementations(30)
CONVENTIONS = ("corner", "empty", "window", "kv_heads")


def alarmed(choice):
    told = {"library_name" if name == "library" else name: value for name, value in choice.items()}
    report = check_attention(make(**told), kind=choice["library"])
    return "" if report.passed else f"{choice}\n{report}"


@pytest.mark.loose_promotion
def test_numpy_and_jax():
    chosen = [one for one in MANY if one["library"] == "numpy"][:5]
    assert not [text for text in map(alarmed, chosen) if text]


@pytest.mark.slow
@pytest.mark.needs_torch
@pytest.mark.loose_promotion
def test_all():
    assert not [text for text in map(alarmed, MANY) if text]
