"""The paired timer, on clocks that are made up: pairing, order, the A/A pair."""

import itertools

import numpy as np

from harness import timing


class FakeClock:
    """A clock that only the functions under test move on."""

    def __init__(self):
        self.now, self.log = 0.0, []

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


def test_ratios_pair_the_times_of_one_round():
    """A machine that slows down from round to round leaves every ratio as it is."""
    clock = FakeClock()
    slowing = [1, 1, 1, 2, 4, 8]  # two calls before the first round, then one a round
    runs = {"a": clock.function("a", slowing), "b": clock.function("b", [3 * s for s in slowing])}
    times = measure(clock, runs)
    assert times.seconds["a"] == [1, 2, 4, 8]
    assert timing.per_round_ratios(times.seconds["b"], times.seconds["a"]) == [3.0] * 4
    assert np.median(times.seconds["b"]) / times.seconds["a"][0] == 9.0  # unpaired: misleading


def test_order_alternates_after_the_warm_up():
    clock = FakeClock()
    runs = {name: clock.function(name, 1.0) for name in "abc"}
    measure(clock, runs)
    assert "".join(clock.log) == "aabbcc" + "abc" + "cba" + "abc" + "cba"
