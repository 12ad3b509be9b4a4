"""The table that compares with tensorgrad: our column is tried again, theirs has its sources."""

import json
from pathlib import Path

import pytest

from mha_book.notation import Equation, System

ROWS = {
    row["task"]: row
    for row in json.loads(
        (Path(__file__).parents[2] / "book/data/tensorgrad.json").read_text(encoding="utf8")
    )["rows"]
}
SOFTMAX = Equation(r"A^{ij} = \frac{\exp(S^{ij})}{\sum_{j'} \exp(S^{ij'})}")
PRODUCT = Equation(r"y^i = A^{ij} x^j")


def refused(call):
    try:
        call()
    except ValueError:
        return True
    return False


# What it does not do; what it does is in the tests of the notation.
MISSING = {
    "functions": lambda: not refused(lambda: Equation(r"v = \max_i q^i")),
    "symmetry": lambda: Equation("y^i = A^{ji} x^j") == PRODUCT,
    "same": lambda: Equation("y^i = A^{ik} x^k") == PRODUCT,
    "expectation": lambda: (
        not refused(lambda: Equation(r"v = \operatorname{E}\left(q^a k^a\right)"))
    ),
    "second": lambda: not refused(lambda: SOFTMAX.jacobian("S").jacobian("S")),
    "taylor": lambda: any("taylor" in name for name in (*dir(Equation), *dir(System))),
}


@pytest.mark.parametrize("name", MISSING)
def test_our_column_says_what_is_missing(name):
    assert not MISSING[name]()
    assert not ROWS[name]["mha_book"]["does"]


def test_their_column_has_its_sources_and_what_it_does_that_we_do_not():
    for name, row in ROWS.items():
        theirs = row["tensorgrad"]
        assert theirs["source"], name
        assert all(source.startswith("tensorgrad.") for source in theirs["source"]), name
        assert theirs["how"] if theirs["does"] else theirs["detail"], name
    ahead = {n for n, r in ROWS.items() if r["tensorgrad"]["does"] and not r["mha_book"]["does"]}
    assert {"second", "expectation", "taylor"} <= ahead
