"""The book's headline numbers are those that a second hand found; see ``tests/independent``."""

import numpy as np
import pytest

from tests.book.extensions import status
from tests.stored.files import ROOT, result

ROWS = result("independent.json")["rows"]


def farthest(row, ours):
    theirs = np.array(row["theirs"])
    assert ours.shape == theirs.shape
    return abs(ours - theirs).max()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_the_book_has_what_a_second_hand_found(row):
    ours = status.book_numbers(ROOT, row["place"], row.get("at"))
    assert farthest(row, ours) <= row["tolerance"]
    # The tolerance tells other numbers from these: a constant, and each one the next one's.
    assert farthest(row, np.full_like(ours, ours.mean())) > row["tolerance"]
    assert farthest(row, np.roll(ours, 1)) > row["tolerance"]
