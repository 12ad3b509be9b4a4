"""The evidence for what the chapter on heads in use says; it has no claim of the ledger."""

import numpy as np

from mha_book.storage import read_result
from tests.book.extensions import ROOT

STORED = read_result(ROOT / "book" / "data" / "heads-in-use.json")
LATER = read_result(ROOT / "book" / "data" / "later-senders.json")


def rise(found, part):
    return np.array(found[part]) - np.array(STORED["closed"]["whole"][part])


def test_induction_heads_are_needed_for_copying_and_not_for_short_texts():
    closed = STORED["closed"]
    assert len(STORED["top"]) == 8
    for way in ("zero", "mean"):
        others = [rise(found, "copied").mean() for found in closed[f"{way} controls"]]
        least = rise(closed[way], "copied").min()
        assert least > 4 > 2 * max(others)  # in every sequence, against every draw
        assert np.mean(others) < rise(closed[way], "copied").mean() / 10
        assert abs(rise(closed[way], "text").mean()) < 0.05


def test_the_strongest_sender_serves_by_the_keys():
    routes = STORED["routes"]
    whole = np.array(routes["whole"]["scores"]).mean()

    def left(found):
        return np.array(found["scores"]).mean() / whole

    first, *rest = routes["looking back"]
    assert STORED["senders"]["looking back"][0] == [16, 0]
    assert left(first["keys"]) < 0.3
    assert abs(left(first["keys"]) - left(first["altogether"])) < 0.1
    assert min(left(first["queries"]), left(first["values"])) > 0.8
    assert min(left(found["keys"]) for found in (*rest, *routes["others"])) > 0.9
    assert left(routes["together"]["keys"]) < 0.3


def test_three_of_the_eight_have_a_second_sender():
    top = [tuple(head) for head in STORED["top"]]
    assert top == [tuple(head) for head in LATER["top"]]
    whole = np.array(LATER["whole"]["scores"])

    def left(found):
        return dict(zip(top, (np.array(found["scores"]) / whole).mean(1), strict=True))

    by_first = left(STORED["routes"]["looking back"][0]["keys"])
    three = [tuple(head) for head in LATER["receivers"]]
    five = [head for head in top if head not in three]
    assert max(by_first[head] for head in five) < 0.3 <= min(by_first[head] for head in three)
    later = {name: left(found["keys"]) for name, found in LATER["senders"].items()}
    assert later["19.3"][20, 6] < 0.5
    assert min(later["22.1"][head] for head in three[1:]) > 0.5
    assert max(later["22.1"][head] for head in three[1:]) < 0.9
    assert max(later["first and later"][head] for head in three) < 0.2
    assert min(left(found["keys"])[head] for found in LATER["of controls"] for head in three) > 0.95
