"""Every planted defect applies to today's files; the slow suite plants a draw of them."""

import random

import pytest

from tests.defects import ROOT, copied, load, plant
from tests.turns import commit

DEFECTS = load([])
DRAWN = 12  # a draw by the commit, so that over some commits each has its turn


def test_defects_apply() -> None:
    """Each text is in its file once, the planted one is another, and ids are unique."""
    assert len({defect.id for defect in DEFECTS}) == len(DEFECTS)
    for defect in DEFECTS:
        assert (ROOT / defect.file).read_text().count(defect.old) == 1, defect.id
        assert defect.old != defect.new, defect.id


@pytest.mark.slow
def test_drawn_defects_are_caught() -> None:
    drawn = random.Random(commit()).sample(DEFECTS, min(DRAWN, len(DEFECTS)))
    with copied() as place:
        missed = [one.id for one in drawn if plant(one, place).status != "caught"]
    assert not missed
