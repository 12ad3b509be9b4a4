"""The contract suite under pytest."""

import itertools

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


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("refused", [False, True])
def test_every_pair_occurs(implementation: str, refused: bool) -> None:
    def pairs(chosen: list[Case]) -> set[tuple]:
        numbered = [tuple(enumerate(case)) for case in chosen]
        return {pair for case in numbered for pair in itertools.combinations(case, 2)}

    def of_this_kind(some: object) -> list[Case]:
        return [case for case in some if cases.is_refused(case) == refused]

    riders = list(itertools.product(cases.BATCHES, cases.SCALES))
    short = {name: levels[:2] for name, levels in cases.FACTORS.items()}
    every = [
        Case(implementation, *levels, *rider)
        for levels in itertools.product(*short.values())
        for rider in riders
    ]
    assert cases.MODES[2] == "eager"  # which has one shape only, and is held below
    assert pairs(of_this_kind(every)) <= pairs(of_this_kind(cases.pairwise(implementation)))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_kind_of_mask_occurs_eagerly(implementation: str) -> None:
    served = [case for case in cases.pairwise(implementation) if not cases.is_refused(case)]
    eagerly = {case.mask for case in served if case.mode == "eager"}
    assert eagerly == {case.mask for case in served}
    left_out = set(cases.MASKS) - eagerly
    if implementation == "blockwise":
        assert left_out == {name for name, kind in cases.MASKS.items() if kind.bias is not None}
    elif implementation == "splash":
        assert eagerly == {
            "none", "causal", "causal, offset", "causal, negative offset", "window", "key lengths",
            "key and query lengths", "segments", "segments, causal, lengths",
        }  # fmt: skip
    elif implementation == "cudnn":  # nothing where there is no GPU for it
        assert not eagerly or {"none", "causal"} <= eagerly
    else:
        assert not left_out


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
