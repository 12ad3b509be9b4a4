"""Slices of what is stored, computed again; a changed number in each of them is caught.

A slice takes seconds, the slow ones up to a few minutes, and all 270 ablations half an hour
(exhaustive). A forgery has a digest made anew; what it is compared with is computed once.
"""

import platform
import sys
from typing import Any

import pytest

from mha_book.storage import read_table
from tests.stored import machines as at
from tests.stored import sinks, trainings
from tests.stored import trained_heads as of
from tests.stored.files import DATA, forged, result, scaled

SLOW, EXHAUSTIVE = pytest.mark.slow, pytest.mark.exhaustive
MODELS, TPU = pytest.mark.needs_models, pytest.mark.needs_libtpu
GLIBC = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="settings of glibc")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux's mark of the most memory held")


def slice_of(file: str, check: Any, path: str, factor: float, *marks: Any, given: Any = ()) -> Any:
    """A slice of a file, and the numbers that a forger multiplies by a factor."""
    name = ", ".join([check.__name__.removeprefix("check_"), *map(str, given)])
    return pytest.param(file, check, given, path, factor, marks=marks, id=name)


FEW = (("place", 0), ("content", 4))  # two seeds in which the nudged head did not win
EVERY = tuple((kind, seed) for kind in trainings.NUDGES for seed in range(16))
SETTINGS = (
    ("scarce text", "none"), ("scarce text", "heads"), ("scarce text", "weights and output"),
    ("scarce text", "all three"), ("whole text", "weights"),
)  # fmt: skip
SHARED = ("4, parameters", "2, width", "2, parameters", "1, width", "1, parameters")
SLICES = [
    slice_of("heads.json", of.ablation, "importance/ablation", 0.7, MODELS, SLOW),
    slice_of("heads.json", of.ablation, "importance/ablation", 0.7, MODELS, EXHAUSTIVE,
             given=(270,)),
    slice_of("heads.json", of.scores_of_weights, "importance/weight norm", 1.01, MODELS),
    slice_of("heads.json", of.gradients, "importance/taylor", 1.1, MODELS, SLOW),
    slice_of("heads.json", of.induction, "induction/zero/copied", 1.1, MODELS, SLOW),
    slice_of("pruning.json", of.curves, "smollm2/curves/*/scores", 1.02, MODELS),
    slice_of("pruning.json", of.longer, "smollm2/longer/*", 0.98, MODELS, SLOW),
    slice_of("pruning.json", of.together, "smollm2/together/alone", 3, MODELS, SLOW),
    slice_of("pruning.json", of.sentences, "minilm/curves/*/scores", 0.9, MODELS, SLOW),
    slice_of("pruning-alike.json", of.alike, "smollm2/curves/*/scores", 1.02, MODELS, SLOW),
    slice_of("gates.json", of.before_training, "smollm2/removed heads/before", 0.98, MODELS),
    slice_of("emergence.json", of.ranks, "ranks/SmolLM2/loss/whole", 0.98, MODELS),
    slice_of("quantization.json", of.moved, "draws/*/excess/*", 0.9, MODELS, SLOW),
    slice_of("heads-in-use.json", of.closed, "closed/mean/copied", 0.9, MODELS, SLOW),
    slice_of("heads-in-use.json", of.routes, "routes/looking back/0/keys/scores", 1.5,
             MODELS),
    slice_of("later-senders.json", of.later, "senders/19.3/keys/scores", 1.1, MODELS),
    slice_of("cache-bits.json", of.cache_in_few_bits, "found/8 bits/loss", 0.99, MODELS, SLOW),
    slice_of("papers.json", of.check_told, "told/scores-smollm2-heads", 2),
    slice_of("papers.json", of.few_keys, "keys of a query/recalled", 1.05, MODELS, SLOW),
    slice_of("papers.json", of.merged_minilm, "of minilm/cosines/*", 0.97, MODELS, SLOW),
    slice_of("papers.json", of.heads_of_a_token, "heads of a token/*", 0.98, MODELS, SLOW),
    slice_of("sinks.json", sinks.changed_sinks, "later/value 0", 0.98, MODELS),
    slice_of("sinks.json", sinks.cut, "cut/gradient, with sink/text", 0.98, MODELS),
    slice_of("sinks.json", sinks.random_orders, "orders/random 0", 2),
    slice_of("sinks.json", sinks.masses, "mass/speeches, none/by text", 0.9, MODELS, SLOW),
    slice_of("sinks.json", sinks.streams, "stream/first", 0.98, MODELS, SLOW),
    slice_of("sinks-training.json", sinks.models, "forms/gate/mass", 0.5, MODELS,
             given=("softmax", "gate")),
    slice_of("sinks-training.json", sinks.models, "forms/logit/loss", 0.98, MODELS, SLOW,
             given=("logit", "sigmoid")),
    slice_of("sinks-training.json", sinks.beginning, "forms/gate/training", 0.98,
             MODELS, SLOW),
    slice_of("scale.json", trainings.one_head, "scaled/256/curve_loss", 0.8),
    slice_of("build-it-yourself.json", trainings.typed_code, "models/one head/loss", 0.98, MODELS,
             SLOW),
    slice_of("emergence.json", trainings.stored_models, "seeds/roles", 0.8, MODELS),
    slice_of("emergence.json", trainings.nudges, "seeds/runs/nudge place 0.2/last roles",
             1.5, MODELS, given=FEW),
    slice_of("emergence.json", trainings.nudges, "seeds/runs/nudge place 0.2/last roles",
             1.5, MODELS, SLOW, given=EVERY),
    slice_of("gradients-dropout.json", trainings.without_heads, "removal/*", 1.01, MODELS),
    slice_of("gradients-dropout.json", trainings.noise, "noise/*/variance_by_formula", 1.1,
             MODELS, given=(4,)),
    slice_of("gradients-dropout.json", trainings.noise, "noise/*/variance", 1.1,
             MODELS, SLOW, given=(200,)),
    *(slice_of("gradients-dropout.json", trainings.dropout_training,
               f"{regime}/{setting}/validation", 0.9, MODELS, SLOW, given=(regime, setting))
      for regime, setting in SETTINGS),
    slice_of("gradients-training.json", trainings.first_steps_by_hand, "float64/losses/manual",
             1.001, MODELS, given=("float64", 4)),
    slice_of("gradients-training.json", trainings.first_steps_by_hand, "float32/losses/manual",
             1.001, MODELS, SLOW, given=("float32", 4)),
    slice_of("sharing.json", trainings.starts, "scratch/*/losses", 0.99, MODELS, SLOW),
    slice_of("sharing.json", trainings.shared_curve, "scratch/4, width/losses", 0.97, MODELS,
             given=("4, width", 100)),
    *(slice_of("sharing.json", trainings.shared_curve, f"scratch/{name}/losses", 0.97, MODELS,
               mark, given=(name, 800))
      for mark, names in ((SLOW, ("multi-head", "4, width")), (EXHAUSTIVE, SHARED))
      for name in names),
    slice_of("gates.json", trainings.check_gate_base, "base/losses", 0.95, MODELS, SLOW),
    slice_of("gates.json", trainings.recovery, "recovery/at once", 0.95, MODELS, SLOW),
    slice_of("gates.json", trainings.check_learned, "learned/losses", 0.9, MODELS, SLOW),
    slice_of("gates-quiet.json", trainings.without_noise, "gates/losses", 0.95, MODELS, SLOW),
    slice_of("head-memory.json", at.check_counted, "default/attention 16/faults", 0, GLIBC, SLOW),
    slice_of("pods.json", at.check_rings, "programs/*/bytes/arguments", 2),
    slice_of("pods.json", at.check_rings_again, "programs/*/bytes/temporaries", 0.5, TPU),
    slice_of("ring-memory.json", at.check_rises, "memory/1", 0.2),
    slice_of("ring-memory.json", at.check_rises_again, "memory/4", 0.65, LINUX, SLOW),
]  # fmt: skip


@pytest.mark.parametrize("file, check, given, path, factor", SLICES)
def test_a_slice_computed_again(file, check, given, path, factor):
    check(result(file), *given)


@pytest.mark.slow
@pytest.mark.parametrize("file, check, given, path, factor", SLICES)
def test_a_forged_number_is_caught(file, check, given, path, factor, tmp_path):
    document = forged(file, tmp_path, lambda document: scaled(document, path, factor))
    with pytest.raises(AssertionError):
        check(document, *given)


@pytest.mark.needs_models
@pytest.mark.parametrize(
    "name, layers", [("minilm", 6), ("smollm2", 2), pytest.param("smollm2", 30, marks=SLOW)]
)
def test_a_table_of_heads_measured_again(name, layers, tmp_path):
    found = of.measured_heads(name, layers, tmp_path / "heads.csv")
    told = read_table(DATA / f"heads-{name}.csv")
    of.check_table(found, told)
    told["entropy"] = told["entropy"] * 0.98
    with pytest.raises(AssertionError, match="entropy"):
        of.check_table(found, told)
