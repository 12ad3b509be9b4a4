"""Rows of what is stored, drawn by the commit and computed again; a changed number is caught.

The fast tests compute what needs no trained model, and hold the rest to git's history. How much is
drawn, and how long all of it takes: ``python -m tests.stored.chance``. A forgery has a digest made
anew; what it is compared with is computed once.
"""

from types import SimpleNamespace
from typing import Any

import pytest

from mha_book.storage import read_table
from tests.stored import machines as at
from tests.stored import sinks, trainings
from tests.stored import trained_heads as of
from tests.stored.chance import DRAWS
from tests.stored.files import DATA, RERUNS, RESULTS, ROOT, forged, result, scaled
from tests.turns import KNOWN, STORED_TURNS, git, is_known, is_turn

# Changed and excused of late, so that history does not hold them: always in their turn.
YOUNG = {name for name, row in RERUNS.items() if not is_known(row["since"])}
SLOW, EXHAUSTIVE = pytest.mark.slow, pytest.mark.exhaustive
MODELS, TPU = pytest.mark.needs_models, pytest.mark.needs_libtpu


def slice_of(file: str, check: Any, *marks: Any, given: Any = ()) -> Any:
    """A slice of a file; one that reads a trained model is slow, and comes in its turn."""
    name = ", ".join([check.__name__.removeprefix("check_"), *map(str, given)])
    if SLOW in marks or MODELS in marks:  # it computes longer than it compiles
        marks = (*marks, pytest.mark.optimized)
    if MODELS in marks:
        is_due = file in YOUNG or is_turn(name, STORED_TURNS)
        marks = (*marks, SLOW, *([] if is_due else [EXHAUSTIVE]))
    return pytest.param(file, check, given, marks=marks, id=name)


def drawn(what: str, check: Any, *marks: Any) -> Any:
    """What the slow tests draw of a file; all rows of one that was excused of late."""
    draw = DRAWS[what]
    count = len([*draw.rows()]) if draw.file in YOUNG else draw.count
    return slice_of(draw.file, check, *marks, SLOW, given=(count,))


def check_cache_sizes(document: Any) -> None:
    """What the second hand counts; layers, KV heads and width of SmolLM2 are those of its file."""
    from tests.independent.measures import cache_sizes  # it needs torch

    (found,) = cache_sizes(SimpleNamespace(layers=30, kv_heads=3, size=64))
    assert found in document["rows"]


SLICES = [
    slice_of("independent.json", check_cache_sizes, pytest.mark.needs_torch),
    drawn("ablation", of.ablation, MODELS),
    slice_of("heads.json", of.ablation, MODELS, EXHAUSTIVE, given=(270,)),
    slice_of("heads.json", of.scores_of_weights, MODELS),
    slice_of("heads.json", of.gradients, MODELS),
    slice_of("heads.json", of.induction, MODELS),
    drawn("curves", of.curves, MODELS),
    slice_of("pruning.json", of.together, MODELS),
    slice_of("pruning.json", of.sentences, MODELS, given=(2, 24)),
    drawn("alike", of.alike, MODELS),
    slice_of("pruning-alike.json", of.ranking, MODELS),
    slice_of("pruning-means.json", of.means, MODELS),
    drawn("before training", of.before_training, MODELS),
    slice_of("emergence.json", of.ranks, MODELS),
    drawn("moved", of.moved, MODELS),
    slice_of("heads-in-use.json", of.closed, MODELS),
    slice_of("catalogue.json", of.successors, MODELS),
    slice_of("catalogue.json", of.indirect_objects, MODELS),
    slice_of("circuit.json", of.circuit_parts, MODELS),
    slice_of("induction.json", of.circuit_of_words, MODELS),
    drawn("cache", of.cache_in_few_bits, MODELS),
    slice_of("papers.json", of.check_told),
    drawn("few keys", of.few_keys, MODELS),
    slice_of("papers.json", of.merged_minilm, MODELS),
    slice_of("papers.json", of.retrieving, MODELS),
    *(slice_of("papers.json", of.losses_of_papers, MODELS, given=(part,)) for part in of.LOSSES),
    drawn("positions", of.beyond_the_trained_length, MODELS),
    drawn("restart", of.begun_anew, MODELS),
    slice_of("sinks.json", sinks.changed_sinks, MODELS, given=(3,)),
    slice_of("sinks.json", sinks.cut, MODELS, given=(3,)),
    slice_of("sinks.json", sinks.random_orders),
    slice_of("sinks.json", sinks.masses, MODELS),
    slice_of("sinks.json", sinks.streams, MODELS),
    slice_of("sinks-resting.json", sinks.matches, MODELS),
    slice_of("sinks-resting.json", sinks.resting_heads, MODELS),
    slice_of("sinks-training.json", sinks.models, MODELS, given=("softmax", "gate")),
    slice_of("sinks-training.json", sinks.models, MODELS, given=("logit", "sigmoid")),
    slice_of("sinks-training.json", sinks.beginning, MODELS),
    slice_of("coverage.json", trainings.covered),
    drawn("scale", trainings.one_head),
    slice_of("build-it-yourself.json", trainings.typed_code, MODELS),
    slice_of("hidden-bugs.json", trainings.check_verdicts),
    slice_of("hidden-bugs.json", trainings.a_bug_checked, given=("softmax-over-queries",)),
    slice_of("hidden-bugs.json", trainings.a_bug_trained, MODELS,
             given=("kv-heads-tiled", "copying")),
    slice_of("hidden-bugs.json", trainings.a_bug_trained, MODELS,
             given=("join-without-transpose", "text")),
    slice_of("emergence.json", trainings.stored_models, MODELS),
    slice_of("transition.json", trainings.transition_of_two_layers, MODELS),
    slice_of("transition-text.json", trainings.transition_on_text, MODELS),
    drawn("nudges", trainings.nudges, MODELS),
    slice_of("gradients-dropout.json", trainings.without_heads, MODELS),
    slice_of("gradients-dropout.json", trainings.noise, MODELS, given=(200,)),
    *(slice_of("gradients-dropout.json", trainings.dropout_training, MODELS,
               given=(5, number)) for number in range(5)),
    slice_of("gradients-training.json", trainings.first_steps_by_hand, MODELS,
             given=("float64", 4)),
    slice_of("gradients-training.json", trainings.first_steps_by_hand, MODELS,
             given=("float32", 4)),
    slice_of("sharing.json", trainings.starts, MODELS),
    drawn("shared curve", trainings.shared_curve, MODELS),
    slice_of("gates.json", trainings.check_gate_base, MODELS),
    slice_of("gates.json", trainings.recovery, MODELS),
    slice_of("gates.json", trainings.check_learned, MODELS),
    slice_of("gates-quiet.json", trainings.without_noise, MODELS),
    slice_of("head-memory.json", at.check_faults),
    slice_of("pods.json", at.check_rings),
    slice_of("pods.json", at.check_rings_again, TPU),
]  # fmt: skip


def test_a_file_that_is_new_or_excused_has_a_slice():
    """Those without one are times, as all of a GPU's, or were read when they were stored."""
    old = git("ls-tree", "-r", "--name-only", KNOWN).split()
    young = {p.name for p in RESULTS if old and str(p.relative_to(ROOT)) not in old}
    new = {name for name in young if not name.endswith("-gpu.json")}
    assert new | YOUNG <= {slice.values[0] for slice in SLICES}


@pytest.mark.parametrize("file, check, given", SLICES)
def test_a_slice_computed_again(file, check, given):
    check(result(file), *given)


@pytest.mark.slow
@pytest.mark.needs_models
def test_a_forged_number_is_caught(tmp_path):
    document = forged("heads.json", tmp_path, lambda x: scaled(x, "importance/weight norm", 1.01))
    with pytest.raises(AssertionError):
        of.scores_of_weights(document)


@pytest.mark.needs_models
@pytest.mark.parametrize("name, layers", [("minilm", 6), pytest.param("smollm2", 30, marks=SLOW)])
def test_a_table_of_heads_measured_again(name, layers, tmp_path):
    found = of.measured_heads(name, layers, tmp_path / "heads.csv")
    told = read_table(DATA / f"heads-{name}.csv")
    of.check_table(found, told)
    told["entropy"] = told["entropy"] * 0.98
    with pytest.raises(AssertionError, match="entropy"):
        of.check_table(found, told)
