"""The bugs of the catalog, and pairs of them, are detected and named."""

import random
from pathlib import Path

import numpy as np
import pytest

from mha_book.conformance import check_attention, mutant
from mha_book.conformance.mutants import CATALOG, pairs
from mha_book.conformance.oracle import TEXTS, Case, Conventions
from tests.turns import commit

BOOK = Path(__file__).parents[2] / "book"
TOLD = {"corner": "bottom-right", "empty": "zero", "window": "W", "kv_heads": "repeat"}
TOLD_ITSELF = "causal-bottom-right"
FUNCTIONS = [one.id for one in CATALOG.values() if one.within == "" and one.id != TOLD_ITSELF]
DRAWN = [one.id for one in random.Random(commit()).sample(list(pairs()), 24)]


def subject(bug, module=np):
    """A function with a bug, of NumPy or JAX, whose conventions are told."""

    def attention(q, k, v, mask=None, causal=False, window=None, segments=None):
        q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
        mask = None if mask is None else np.asarray(mask)
        segments = None if segments is None else np.asarray(segments)
        case = Case(q, k, v, mask, causal, window, segments)
        with np.errstate(over="ignore"):
            return module.asarray(bug.attend(case, Conventions()._replace(**TOLD)), np.float32)

    return attention


def verdict(id, module=np):
    bug = mutant(id)
    report = check_attention(
        subject(bug, module), layout="BNTH", polarity="attend", expect=TOLD, kind="numpy"
    )
    return not report.passed, {one.id for one in report.bugs}


def right(name, planted):
    """Whether a name has nothing but planted bugs; it explains all that was tried anyway."""
    return set(name.split(" + ")) <= set(planted)


def rates(ids):
    found = {id: verdict(id) for id in ids}
    missed = [id for id, (detected, _) in found.items() if not detected]
    misnamed = {
        id: names
        for id, (_, names) in found.items()
        if id not in missed and not any(right(name, id.split(" + ")) for name in names)
    }
    return missed, misnamed


def test_the_catalog():
    assert len(CATALOG) >= 60
    assert len({one.sentence for one in CATALOG.values()}) == len(CATALOG)
    links = {one.read for one in CATALOG.values()}
    links |= {problem.rpartition("see ")[2] for problem in TEXTS["models"].values()}
    for page, _, anchor in (link.partition("#") for link in links):
        text = (BOOK / f"{page}.ipynb").read_text(encoding="utf8")
        assert not anchor or f'"({anchor})=\\n"' in text, f"{page}#{anchor}"


@pytest.mark.parametrize(
    "ids", [FUNCTIONS[::4], *(pytest.param(x, marks=pytest.mark.slow) for x in (FUNCTIONS, DRAWN))],
    ids=["a quarter", "all", "pairs"],
)  # fmt: skip
def test_bugs_are_detected_and_named(ids):
    missed, misnamed = rates(ids)
    assert len(missed) <= 0.05 * len(ids), missed
    assert len(misnamed) <= 0.15 * len(ids), misnamed
