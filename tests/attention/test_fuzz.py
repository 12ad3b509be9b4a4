"""Masks and specs that nobody wrote: what they allow, what serves, what is said of wrong ones."""

import random
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import pytest

from mha_book.storage import read_result
from tests.attention import fuzz
from tests.attention.fuzz import SHAPES, WAYS
from tests.notation.helpers import examples

pytestmark = [pytest.mark.usefixtures("no_type_checks"), pytest.mark.unoptimized]

STORED = Path(__file__).parents[1] / "data" / "fuzz_masks.json"
FEW = [SHAPES[1], SHAPES[8]]  # each shape compiles its operations anew


@examples(5, 100)
def test_a_tree_of_masks_is_its_rule_pair_by_pair(count: int) -> None:
    @hypothesis.settings(max_examples=count)
    @hypothesis.given(st.randoms(use_true_random=False))
    def check(draw: random.Random) -> None:
        shape = draw.choice(FEW if count == 5 else SHAPES)
        fuzz.visible_everywhere(fuzz.draw_mask(draw, shape), shape, ["used"])

    check()


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_same_however_it_travels(way: str) -> None:
    for number in range(2):
        draw = random.Random(number)
        drawn = fuzz.draw_mask(draw, FEW[1])
        fuzz.visible_everywhere(drawn, FEW[1], [way])


@pytest.mark.slow
def test_every_implementation_that_serves_attends_by_it() -> None:
    for number in range(3):
        draw = random.Random(number)
        fuzz.attended(draw, fuzz.draw_mask(draw, FEW[1]), FEW[1])


@examples(8, 60)
def test_a_wrong_mask_is_refused_by_its_name(count: int) -> None:
    named = {fuzz.refused(random.Random(number), FEW[1]) for number in range(count)}
    assert len(named) >= min(10, count // 2)


def test_select_names_what_serves() -> None:
    draw = random.Random(1)
    assert {fuzz.selected(draw) for _ in range(1000)} >= {
        "reference", "jax_nn", "cudnn", "splash", "blockwise", "decode"
    }  # fmt: skip


def test_what_was_stored_of_a_longer_run() -> None:
    found = read_result(STORED)
    counts = found["counts"]
    wrong = sum(count for name, count in counts.items() if name.startswith("wrong"))
    assert counts["masks"] == wrong >= 50
    assert counts["attend served"] > counts["attend refused"] > 0
    assert sum(n for name, n in counts.items() if name.startswith("selected")) == 10 * wrong
    assert found["peak_MB"] < 4000


def test_the_harness_sees_a_wrong_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(4)
    drawn = fuzz.draw_mask(draw, FEW[1])
    wrong = drawn._replace(rule=lambda b, n, i, j: not drawn.rule(b, n, i, j))
    with pytest.raises(AssertionError, match="used: "):
        fuzz.visible_everywhere(wrong, FEW[1], ["used"])
