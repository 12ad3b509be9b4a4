"""How often intervals of 95% contain the mean, by simulation.

    python -m experiments.coverage [--quick] [--out FOLDER]

Samples of a normal and of a skewed (exponential) population, as many as there are seeds or texts in
the book. Student's interval, and the bootstrap by percentiles and BCa with 1,000 draws. Stores
book/data/coverage.json; four minutes of one core.
"""

from typing import Any

import numpy as np

from experiments.shared import Run, experiment
from mha_book.specialization.intervals import bootstrap_interval, mean_interval

METHODS = ("percentile", "BCa", "Student")
POPULATIONS = {"normal": "normal", "skewed": "exponential"}  # with the mean 0, and 1
SIZES, TRIALS = (4, 5, 6, 12, 16, 24), 10_000


def inside(population: str, size: int, method: str, trials: int) -> float:
    """Return the share of samples whose interval contains the mean of the population."""
    rng = np.random.default_rng(size)
    samples = getattr(rng, POPULATIONS[population])(size=(trials, size))
    mean = float(population == "skewed")
    if method == "Student":
        middle, half = mean_interval(samples)
        return float((abs(middle - mean) <= half).mean())
    if method == "percentile":  # the same rows of every sample, which is as good and fast
        times = rng.multinomial(size, [1 / size] * size, size=1000)
        low, high = np.quantile(samples @ times.T / size, (0.025, 0.975), axis=1)
        return float(((low <= mean) & (mean <= high)).mean())
    found = [bootstrap_interval(x, rng, draws=1000, method="BCa") for x in samples[: trials // 20]]
    return float(np.mean([low <= mean <= high for low, high in found]))


@experiment("coverage.json", digits=4, seeds="the number of samples", inputs=())
def main(run: Run, sizes: Any) -> dict[str, Any]:
    """Count."""
    trials = 40 if run.quick else TRIALS
    found = {
        population: {
            str(size): {method: inside(population, size, method, trials) for method in METHODS}
            for size in SIZES
        }
        for population in POPULATIONS
    }
    return {"config": {"trials": trials, "BCa": trials // 20}, "inside": found}
