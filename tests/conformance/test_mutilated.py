"""Wrong attentions that know nothing of the catalog are detected and named, alone and in pairs."""

from mha_book.conformance import check_attention
from tests.conformance.mutilated import CHANGES, mutilated
from tests.conformance.test_catalog import TOLD, right


def verdict(*changes):
    attention = mutilated(*changes)
    report = check_attention(attention, layout="BNTH", polarity="attend", expect=TOLD)
    planted = [id for id, _, _ in changes]
    return report.passed, any(right(bug.id, planted) for bug in report.bugs)


def test_the_text_is_right_before_it_is_changed():
    assert verdict() == (True, False)


def test_each_change():
    found = {change[0]: verdict(change) for change in CHANGES}
    assert [id for id, (passed, _) in found.items() if passed] == []
    assert [id for id, (_, named) in found.items() if not named] == []
