"""The evidence for the claims of the chapter on hardware: compiled programs and stored times."""

import numpy as np

from tests.book.verdicts import decides
from tests.stored.files import result

N, T, H = 8, 96, 16


def cases(**wanted):
    found = result("layouts-cpu.json")["cases"]
    chosen = [c for c in found if all(c["case"][key] == value for key, value in wanted.items())]
    assert chosen
    return chosen


def over(case, name, by):
    """The median of the ratios of one row's times to those of another in the same round."""
    rows = {row["name"]: row["seconds_per_round"] for row in case["rows"]}
    return float(np.median(np.divide(rows[name], rows[by])))


def test_c13_the_cache_of_a_step_is_written_anew():
    """Positions first: more bytes are put into another order, and the step takes longer."""
    (case,) = cases(part="attention", form="decode", queries=1)
    copied = {
        row["name"]: row["operations"]["copied_bytes"]
        for row in case["rows"]
        if row["name"] in ("heads first", "positions first")
    }
    cache = 2 * 4 * case["case"]["keys"] * case["case"]["d_model"]
    assert copied["positions first"] >= cache
    assert copied["heads first"] < copied["positions first"]
    assert over(case, "positions first", "heads first") > 1.5
    decides("C13", "not tested")


def test_c33_a_processor_does_not_decide():
    """Against three products the loop is much slower with gradients and about as fast forward."""
    loop, three = "loop over heads", "three products"
    for case in cases(part="projection", form="compiled, backward"):
        assert over(case, loop, three) > 1.4
    for case in cases(part="projection", form="compiled"):
        assert over(case, loop, three) < 1.35
        if case["case"]["queries"] > 1:
            assert 0.85 < over(case, loop, three) < 1.1
        products = {row["name"]: row["operations"]["products"] for row in case["rows"]}
        assert products[three] == 3
        assert products[loop] == 3 * case["case"]["heads"]
    device = result("layouts-cpu.json")["provenance"]["device"]
    assert "cpu" in str(device).lower()  # and the claim is about a GPU
    decides("C33", "undecided")
