"""The evidence for the claims of the chapter on dropout and gates."""

import numpy as np

from mha_book.specialization.intervals import mean_interval
from tests.book.verdicts import decides
from tests.stored.files import result


def test_c32_dropout_between_is_like_the_others():
    stored = result("gradients-dropout.json")
    for regime, sign in (("whole text", 1), ("scarce text", -1)):
        validation = {name: np.array(row["validation"]) for name, row in stored[regime].items()}
        for name in ("weights", "heads", "output", "weights and output", "all three"):
            middle, half = mean_interval(validation[name] - validation["none"])
            assert sign * middle > half, (regime, name)
        middle, half = mean_interval(validation["all three"] - validation["weights and output"])
        assert sign * middle > half, regime
    # Stopped where each was best, no setting differs detectably from none.
    curves = {
        name: np.array(row["curve_validation"]).min(axis=1)
        for name, row in stored["scarce text"].items()
    }
    for name in curves.keys() - {"none"}:
        middle, half = mean_interval(curves[name] - curves["none"])
        assert abs(middle) < half, name
    places = ("weights", "heads", "output")
    noise = {place: np.array(stored["noise"][place]["variance"]) for place in places}
    assert (noise["heads"] < 0.9 * noise["weights"]).mean() > 0.5
    assert (noise["heads"] < 0.9 * noise["output"]).all()
    for row in (stored["noise"][place] for place in places):
        assert np.allclose(row["variance"], row["variance_by_formula"], rtol=0.05)
        assert np.mean(row["beyond_three_errors"]) < 0.02  # the mean is that without dropout
    decides("C32", "undecided", {*places} <= {*stored["noise"]})


def test_c35_removing_heads():
    stored = result("gradients-dropout.json")
    costs, heads = {}, 1 << np.arange(8)
    for name, losses in stored["removal"].items():
        losses = np.array(losses)
        costs[name] = losses - losses[:, :1]
        assert (costs[name][:, heads] > 0).all(), "a head is free"
    alone = costs["none"][:, heads]
    four = np.argsort(alone, axis=1)[:, :4]
    together = costs["none"][np.arange(5), (1 << four).sum(axis=1)]
    ratio = together / np.take_along_axis(alone, four, axis=1).sum(axis=1)
    assert ratio.min() > 0.8
    assert ratio.max() < 1.5
    backed = costs["weights"][:, 255] / costs["weights"][:, heads].sum(axis=1)
    assert backed.min() > 2.5
    assert (costs["none"][:, 255] / alone.sum(axis=1)).max() < 1.6
    assert (costs["weights"][:, heads].mean(axis=1) < alone.mean(axis=1) / 2).all()
    decides("C35", "undecided")
