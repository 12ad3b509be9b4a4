"""The evidence for the claims of the chapter on hardware: compiled programs and stored times."""

import numpy as np

from tests.book.verdicts import decides
from tests.stored.files import result

N, T, H = 8, 96, 16


def cases(name="layouts-cpu", **wanted):
    found = result(f"{name}.json")["cases"]
    chosen = [c for c in found if all(c["case"][key] == value for key, value in wanted.items())]
    assert chosen
    return chosen


def over(case, name, by):
    """The median of the ratios of one row's times to those of another in the same round."""
    rows = {row["name"]: row.get("seconds_per_round") for row in case["rows"]}
    return float(np.median(np.divide(rows[name], rows[by])))


def test_c13_the_kernel_wants_the_other_order_than_a_cache():
    """On two cores as on an H100 a cache with positions first is written anew in each step."""
    (case,) = cases(part="attention", form="decode", queries=1)
    copied = {
        row["name"]: row["operations"]["copied_bytes"]
        for row in case["rows"]
        if row["name"] in ("heads first", "positions first")
    }
    cache = 2 * 4 * case["case"]["keys"] * case["case"]["d_model"]
    assert copied["heads first"] < cache <= copied["positions first"]
    assert over(case, "positions first", "heads first") > 1.5
    for case in cases("decode-lengths-gpu"):
        assert over(case, "jax.nn", "jax.nn, converted") > 2.5
    for case in cases("attention-gpu", is_causal=True):
        assert over(case, "attend", "jax.nn cudnn") > 1.05
    decides("C13", "holds if")


def test_c33_with_gradients_and_not_forward():
    """Against three products the loop is much slower with gradients and about as fast forward."""
    loop, three = "loop over heads", "three products"
    for name, most in (("layouts-cpu", 1.35), ("layouts-gpu", 1.45)):
        for case in cases(name, part="projection", form="compiled, backward"):
            assert over(case, loop, three) > 1.4
        for case in cases(name, part="projection", form="compiled"):
            assert over(case, loop, three) < most
    for case in cases("layouts-gpu", part="projection", form="op by op"):
        assert over(case, loop, three) > 1.7
    decides("C33", "holds if")
