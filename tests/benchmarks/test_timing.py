"""The paired timer, on clocks that are made up: pairing, order, statistics, the A/A pair."""

import itertools

import numpy as np
import pytest

from harness import timing


class FakeClock:
    """A clock that only the functions under test move on."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def __call__(self):
        return self.now

    def function(self, name, seconds):
        """A function that takes `seconds` of this clock (a number, or one for each call)."""
        durations = itertools.repeat(seconds) if np.isscalar(seconds) else iter(seconds)

        def run():
            self.log.append(name)
            self.now += next(durations)
            return name

        return run


def measure(clock, contenders, **options):
    options = {"rounds": 4, "shortest_sample": 0.0, "wait": lambda x: x, "clock": clock, **options}
    return timing.interleave(contenders, **options)


def test_twice_as_slow_is_a_ratio_of_two():
    clock = FakeClock()
    runs = {"a": clock.function("a", 0.25), "b": clock.function("b", 0.5)}
    times = measure(clock, runs)
    ratios = timing.per_round_ratios(times.seconds["b"], times.seconds["a"])
    assert ratios == [2.0] * 4
    assert timing.summarize(ratios) == (2.0,) * 5


@pytest.mark.parametrize(
    "again, rounds",
    [
        ([1.0] * 4, 4),
        ([0.9, 1.2, 1.0, 1.0], 4),
        ([1.2] * 4 + [1.0] * 5 + [1.2] * 3, 12),  # the median of eight is 1.1
        ([1.2] * 12, 12),
    ],
)
def test_rounds_are_added_until_the_baseline_agrees_with_itself(again, rounds):
    clock = FakeClock()
    name = "a" + timing.SELF_PAIR_SUFFIX
    untimed = [1.0, 1.0]
    runs = {"a": clock.function("a", 1.0), name: clock.function(name, untimed + again)}
    times = measure(clock, runs)
    assert times.seconds[name] == pytest.approx(again[:rounds])
    assert len(times.seconds["a"]) == rounds
    assert times.outputs == {"a": "a", name: name}


def test_ratios_pair_the_times_of_one_round():
    """A machine that slows down from round to round leaves every ratio as it is."""
    clock = FakeClock()
    slowing = [1, 1, 1, 2, 4, 8]  # two calls before the first round, then one a round
    runs = {
        "a": clock.function("a", slowing),
        "b": clock.function("b", [3 * s for s in slowing]),
    }
    times = measure(clock, runs)
    assert times.seconds["a"] == [1, 2, 4, 8]
    assert timing.per_round_ratios(times.seconds["b"], times.seconds["a"]) == [3.0] * 4
    assert np.median(times.seconds["b"]) / times.seconds["a"][0] == 9.0  # unpaired: misleading


def test_order_alternates_after_the_warm_up():
    clock = FakeClock()
    runs = {name: clock.function(name, 1.0) for name in "abc"}
    measure(clock, runs)
    assert "".join(clock.log) == "aabbcc" + "abc" + "cba" + "abc" + "cba"


def test_self_pair_stands_at_both_ends_and_is_one():
    clock = FakeClock()
    runs = timing.with_self_pair(
        {"b": clock.function("b", 3.0), "a": clock.function("a", 1.5)}, "a"
    )
    assert list(runs) == ["a", "b", "a (again)"]
    assert runs["a"] is runs["a (again)"]
    times = measure(clock, runs)
    ratios = timing.per_round_ratios(times.seconds["a (again)"], times.seconds["a"])
    assert ratios == [1.0] * 4


def test_steady_drift_cancels_over_two_rounds():
    """Each call takes longer than the one before; the A/A ratios lie on both sides of one."""
    clock = FakeClock()
    drift = itertools.count(100)
    runs = timing.with_self_pair({"a": clock.function("a", drift)}, "a")
    times = measure(clock, runs)
    ratios = timing.per_round_ratios(times.seconds["a (again)"], times.seconds["a"])
    assert [r > 1 for r in ratios] == [True, False, True, False]
    assert abs(np.median(ratios) - 1) < 1e-3


def test_short_calls_are_repeated_within_a_sample():
    clock = FakeClock()
    runs = {"a": clock.function("a", 0.25), "b": clock.function("b", 2.0)}
    times = measure(clock, runs, shortest_sample=1.0, rounds=1)
    assert times.calls == {"a": 4, "b": 1}
    assert times.seconds == {"a": [0.25], "b": [2.0]}  # seconds a call, not a sample


def test_every_timed_call_is_waited_for():
    waited = []
    clock = FakeClock()
    measure(clock, {"a": clock.function("a", 1.0)}, wait=lambda x: waited.append(x) or x)
    assert len(waited) == len(clock.log) == 2 + 4


def test_a_queue_is_waited_for_once_a_sample():
    waited, clock = [], FakeClock()
    options = {"wait": lambda x: waited.append(x) or x, "wait_for_each": False}
    runs = {"a": clock.function("a", 0.25)}
    times = measure(clock, runs, shortest_sample=1.0, rounds=2, **options)
    assert times.calls == {"a": 4}
    assert len(clock.log) == 1 + 1 + 4 + 2 * 4  # a call, twice to find their number, two rounds
    assert len(waited) == 1 + 2 + 2


def test_outputs_are_of_the_last_round_and_progress_is_told():
    seen = []
    clock = FakeClock()
    times = measure(clock, {"a": clock.function("a", 1.0)}, progress=lambda *x: seen.append(x))
    assert times.outputs == {"a": "a"}
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_summary_is_order_statistics_only():
    summary = timing.summarize([5.0, 1.0, 2.0, 100.0, 3.0])
    assert summary == (3.0, 2.0, 5.0, 1.0, 100.0)
    assert summary._fields == ("median", "lower_quartile", "upper_quartile", "minimum", "maximum")


@pytest.mark.parametrize(
    "call,message",
    [
        (lambda: timing.summarize([]), "values"),
        (lambda: timing.per_round_ratios([1.0], [1.0, 2.0]), "1 and 2 rounds"),
        (lambda: timing.interleave({}, rounds=0), "rounds"),
        (lambda: timing.with_self_pair({"a": int}, "b"), "baseline"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
