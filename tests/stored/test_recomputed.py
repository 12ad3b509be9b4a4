"""Rows of what is stored, drawn by the commit and computed again; a changed number is caught.

How much is drawn, and how long all of it takes: ``python -m tests.stored.chance``. A forgery has a
digest made anew; what it is compared with is computed once.
"""

from typing import Any

import pytest

from mha_book.storage import read_table
from tests.stored import machines as at
from tests.stored import sinks, trainings
from tests.stored import trained_heads as of
from tests.stored.chance import DRAWS
from tests.stored.files import DATA, forged, result, scaled
from tests.turns import is_turn

pytestmark = pytest.mark.optimized

SLOW, EXHAUSTIVE = pytest.mark.slow, pytest.mark.exhaustive
MODELS, TPU = pytest.mark.needs_models, pytest.mark.needs_libtpu


def slice_of(file: str, check: Any, *marks: Any, given: Any = (), is_dear: bool = False) -> Any:
    """A slice of a file; one that is dear is slow but in its turn."""
    name = ", ".join([check.__name__.removeprefix("check_"), *map(str, given)])
    marks = (*marks, SLOW) if is_dear and not is_turn(name) else marks
    return pytest.param(file, check, given, marks=marks, id=name)


def draws(what: str, check: Any, *marks: Any) -> list[Any]:
    """What the fast tests draw of a file, and the slow ones."""
    draw, rows = DRAWS[what], len([*DRAWS[what].rows()])
    is_fast = not draw.is_dear or is_turn(what)
    counts = {min(draw.slow, rows): (*marks, SLOW)}
    if is_fast:  # last, as it may be as many
        counts[min(draw.fast, rows)] = marks
    return [slice_of(draw.file, check, *m, given=(n,)) for n, m in counts.items() if n]


SLICES = [
    *draws("ablation", of.ablation, MODELS),
    slice_of("heads.json", of.ablation, MODELS, EXHAUSTIVE, given=(270,)),
    slice_of("heads.json", of.scores_of_weights, MODELS),
    slice_of("heads.json", of.gradients, MODELS, SLOW),
    slice_of("heads.json", of.induction, MODELS, SLOW),
    *draws("curves", of.curves, MODELS),
    slice_of("pruning.json", of.longer, MODELS, SLOW),
    slice_of("pruning.json", of.together, MODELS, SLOW),
    slice_of("pruning.json", of.sentences, MODELS, SLOW, given=(20, 24)),
    *draws("alike", of.alike, MODELS),
    slice_of("pruning-alike.json", of.ranking, MODELS, SLOW),
    slice_of("pruning-means.json", of.means, MODELS, SLOW),
    *draws("before training", of.before_training, MODELS),
    slice_of("emergence.json", of.ranks, MODELS),
    *draws("moved", of.moved, MODELS),
    slice_of("heads-in-use.json", of.closed, MODELS, SLOW),
    slice_of("heads-in-use.json", of.routes, MODELS, is_dear=True),
    slice_of("catalogue.json", of.successors, MODELS, is_dear=True),
    slice_of("catalogue.json", of.indirect_objects, MODELS, SLOW),
    slice_of("circuit.json", of.circuit_patched, MODELS, is_dear=True),
    slice_of("circuit.json", of.circuit_parts, MODELS, SLOW),
    slice_of("induction.json", of.circuit_of_words, MODELS, is_dear=True),
    *draws("cache", of.cache_in_few_bits, MODELS),
    slice_of("papers.json", of.check_told),
    *draws("few keys", of.few_keys, MODELS),
    slice_of("papers.json", of.merged_minilm, MODELS, SLOW),
    slice_of("papers.json", of.heads_of_a_token, MODELS, SLOW),
    slice_of("papers.json", of.retrieving, MODELS, SLOW),
    *draws("entropy", of.orders_with_entropy, MODELS),
    slice_of("papers.json", of.merged_heads, MODELS, SLOW),
    *draws("positions", of.beyond_the_trained_length, MODELS),
    *draws("restart", of.begun_anew, MODELS),
    slice_of("sinks.json", sinks.changed_sinks, MODELS, given=(3,), is_dear=True),
    slice_of("sinks.json", sinks.cut, MODELS, given=(3,)),
    slice_of("sinks.json", sinks.random_orders),
    slice_of("sinks.json", sinks.masses, MODELS, SLOW),
    slice_of("sinks.json", sinks.streams, MODELS, SLOW),
    slice_of("sinks-resting.json", sinks.matches, MODELS),
    slice_of("sinks-resting.json", sinks.resting_heads, MODELS, SLOW),
    slice_of("sinks-training.json", sinks.models, MODELS, given=("softmax", "gate")),
    slice_of("sinks-training.json", sinks.models, MODELS, SLOW, given=("logit", "sigmoid")),
    slice_of("sinks-training.json", sinks.beginning, MODELS, SLOW),
    slice_of("coverage.json", trainings.covered),
    *draws("scale", trainings.one_head),
    slice_of("build-it-yourself.json", trainings.typed_code, MODELS, SLOW),
    slice_of("hidden-bugs.json", trainings.check_verdicts),
    slice_of("hidden-bugs.json", trainings.a_bug_checked, given=("softmax-over-queries",)),
    slice_of("hidden-bugs.json", trainings.a_bug_trained, MODELS, SLOW,
             given=("kv-heads-tiled", "copying")),
    slice_of("hidden-bugs.json", trainings.a_bug_trained, MODELS, SLOW,
             given=("join-without-transpose", "text")),
    slice_of("emergence.json", trainings.stored_models, MODELS),
    *draws("nudges", trainings.nudges, MODELS),
    slice_of("gradients-dropout.json", trainings.without_heads, MODELS),
    slice_of("gradients-dropout.json", trainings.noise, MODELS, given=(4,), is_dear=True),
    slice_of("gradients-dropout.json", trainings.noise, MODELS, SLOW, given=(200,)),
    *(slice_of("gradients-dropout.json", trainings.dropout_training, MODELS, SLOW,
               given=(5, number)) for number in range(5)),
    slice_of("gradients-training.json", trainings.first_steps_by_hand, MODELS,
             given=("float64", 4), is_dear=True),
    slice_of("gradients-training.json", trainings.first_steps_by_hand, MODELS, SLOW,
             given=("float32", 4)),
    slice_of("sharing.json", trainings.starts, MODELS, SLOW),
    slice_of("sharing.json", trainings.shared_curve, MODELS, given=(2, 100),
             is_dear=True),
    *draws("shared curve", trainings.shared_curve, MODELS),
    slice_of("gates.json", trainings.check_gate_base, MODELS, SLOW),
    slice_of("gates.json", trainings.recovery, MODELS, SLOW),
    slice_of("gates.json", trainings.check_learned, MODELS, SLOW),
    slice_of("gates-quiet.json", trainings.without_noise, MODELS, SLOW),
    slice_of("head-memory.json", at.check_faults),
    slice_of("pods.json", at.check_rings),
    slice_of("pods.json", at.check_rings_again, TPU),
    slice_of("ring-memory.json", at.check_rises),
]  # fmt: skip


@pytest.mark.parametrize("file, check, given", SLICES)
def test_a_slice_computed_again(file, check, given):
    check(result(file), *given)


# One of each kind: a score of all heads, a loss of texts, of a training, words, an order, a
# measure of stored weights, bytes of programs, memory of processes.
FORGED = [
    ("heads.json", of.scores_of_weights, (), "importance/weight norm", 1.01),
    ("pruning.json", of.curves, (18,), "smollm2/curves/*/scores", 1.02),
    ("sharing.json", trainings.shared_curve, (4, 100), "scratch/*/losses", 0.97),
    ("papers.json", of.check_told, (), "told/scores-smollm2-heads", 2),
    ("sinks.json", sinks.random_orders, (), "orders/random 0", 2),
    ("emergence.json", trainings.stored_models, (), "seeds/roles", 0.8),
    ("head-memory.json", at.check_faults, (), "default/attention 16/faults", 0),
    ("pods.json", at.check_rings, (), "programs/*/bytes/arguments", 2),
    ("hidden-bugs.json", trainings.check_verdicts, (), "differences/*/text/moved/loss", 1.1),
    ("ring-memory.json", at.check_rises, (), "memory/1", 0.2),
]


@pytest.mark.slow
@pytest.mark.needs_models
@pytest.mark.parametrize("file, check, given, path, factor", FORGED)
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
