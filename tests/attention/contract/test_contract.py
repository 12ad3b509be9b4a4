"""The contract suite under pytest."""

import numpy as np
import pytest

from mha_book.attention.dispatch import IMPLEMENTATIONS
from tests.attention.contract import cases, suite
from tests.attention.contract.cases import Case


def pairwise() -> list:
    """Every case; two of three are left to the whole run, which compiles them as a user would."""
    every = [case for name in IMPLEMENTATIONS for case in cases.pairwise(name)]
    return [
        pytest.param(
            case,
            id=f"{case.implementation}-{case.name}",
            # An interpreted kernel is a large program for one run.
            marks=[pytest.mark.slow] * (number % 3 > 0)
            + [pytest.mark.optimized] * (number % 3 > 0 and case.implementation != "splash"),
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
