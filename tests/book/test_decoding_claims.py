"""The evidence for the claim of the chapter on writing one token."""

from tests.book.verdicts import decides
from tests.stored.files import result


def test_c31_measured_steps():
    stored = result("decode-cpu.json")
    ratio = {
        part: dict(zip(found["kv_heads"], found["ratio"], strict=True))
        for part, found in stored["sharing"].items()
    }
    # A step over a long cache gets much faster, if less than its bytes say; a prompt does not.
    assert ratio["decode"][8]["upper_quartile"] < 0.75
    assert 1 / 32 < ratio["decode"][1]["median"] < 0.25
    # The same operations take far less in all with one key head than a step with eight takes.
    assert ratio["decode"][1]["median"] < ratio["decode"][8]["median"] / 2
    assert ratio["prefill"][8]["median"] > 0.75
    assert ratio["prefill"][1]["median"] > 0.75
    line = stored["growth"]["attention"]
    assert line["slope_s_per_token"] * line["lengths"][-1] > 2 * abs(line["intercept_s"])
    # For one short sequence the weights take most of a step: little is left to save.
    model = stored["growth"]["SmolLM2"]
    assert model["slope_s_per_token"] * 100 < model["intercept_s"] / 4
    decides("C31", "undecided")
