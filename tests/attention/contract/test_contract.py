"""The contract suite under pytest."""

import numpy as np
import pytest

from mha_book.attention.dispatch import IMPLEMENTATIONS
from tests.attention.contract import cases, suite
from tests.attention.contract.cases import Case

UNOPTIMIZED = [pytest.mark.unoptimized]  # an interpreted kernel is a large program for one run


def pairwise() -> list:
    """Every case; each second one is left to the whole run."""
    every = [case for name in IMPLEMENTATIONS for case in cases.pairwise(name)]
    return [
        pytest.param(
            case,
            id=f"{case.implementation}-{case.name}",
            marks=[pytest.mark.slow] * (number % 2)
            + UNOPTIMIZED * (case.implementation == "splash"),
        )
        for number, case in enumerate(every)
    ]


@pytest.mark.parametrize("case", pairwise())
def test_pairwise(case: Case) -> None:
    assert suite.run(case).complaints == ()


@pytest.mark.parametrize("mask", cases.MASKS)
def test_kinds_of_mask_hide_something_and_not_all(mask: str) -> None:
    case = Case("reference", mask, "G = 3", "float32", "T > S", "C = H", "NTH", "eager", False,
                (2,), "scale left out")  # fmt: skip
    problem = suite.build(case)
    hidden = np.count_nonzero(~problem.visible)
    assert (hidden == 0) == (mask in ("none", "bias"))
    assert problem.visible.any()


def test_poison_is_there() -> None:
    case = Case("reference", "key and query lengths", "G = 3", "float32", "T > S", "C = H", "NTH",
                "eager", False, (2,), "scale left out")  # fmt: skip
    poisoned = suite.poison(suite.build(case))
    assert np.isnan(poisoned.query).any()
    assert np.isinf(poisoned.key).any()
    assert np.isnan(poisoned.value).any()
