"""Wrong attentions that know nothing of the catalog are detected and named, alone and in pairs."""

import random
from itertools import combinations

import pytest

from mha_book.conformance import check_attention
from tests.conformance.mutilated import CHANGES, mutilated
from tests.conformance.test_catalog import TOLD, right


def verdict(*changes):
    attention = mutilated(*changes)
    report = check_attention(attention, layout="BNTH", polarity="attend", expect=TOLD)
    planted = [id for id, _, _ in changes]
    return report.passed, any(right(bug.id, planted) for bug in report.bugs)


def drawn_pairs(count):
    """Pairs of changes of different places in the text."""
    apart = [(a, b) for a, b in combinations(CHANGES, 2) if a[1] not in b[1] and b[1] not in a[1]]
    return random.Random(1).sample(apart, count)


def test_the_text_is_right_before_it_is_changed():
    assert verdict() == (True, False)


def test_each_change():
    found = {change[0]: verdict(change) for change in CHANGES}
    assert [id for id, (passed, _) in found.items() if passed] == []
    assert [id for id, (_, named) in found.items() if not named] == []


@pytest.mark.slow
def test_pairs_of_changes():
    found = [verdict(*pair) for pair in drawn_pairs(50)]
    assert sum(passed for passed, _ in found) == 0
    assert sum(named for _, named in found) >= 0.85 * len(found)
