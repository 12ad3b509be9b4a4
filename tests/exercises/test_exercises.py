"""Every exercise: the stub is not attempted, solutions pass, wrong answers get their hint.

Each chapter has a module beside this one with ``ANSWERS``: the exercise, an answer, and "passed" or
a piece of the hint that the answer gets.
"""

import pkgutil
from importlib import import_module

import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import exercises
from mha_book.exercises import verdict
from tests.book import gates

pytestmark = pytest.mark.unoptimized
CHAPTERS = [info.name for info in pkgutil.iter_modules(exercises.__path__)]
ANSWERS = {chapter: import_module(f"tests.exercises.{chapter}") for chapter in CHAPTERS}
for chapter in CHAPTERS:
    import_module(f"mha_book.exercises.{chapter}")
CHECKS = {
    chapter: [name.partition("/")[2] for name in exercises.CHECKS if name.startswith(f"{chapter}/")]
    for chapter in (name.replace("_", "-") for name in CHAPTERS)
}
CHECKS = {chapter.replace("-", "_"): names for chapter, names in CHECKS.items()}


def cases():
    for chapter, module in ANSWERS.items():
        marks = [pytest.mark.filterwarnings(text) for text in getattr(module, "WARNINGS", ())]
        for number, (exercise, answer, expected) in enumerate(module.ANSWERS):
            name = f"{chapter.replace('_', '-')}/{exercise}"
            yield pytest.param(name, answer, expected, id=f"{name}-{number}", marks=marks)


@pytest.mark.parametrize(("exercise", "answer", "expected"), [*cases()])
def test_answers(exercise, answer, expected):
    said = verdict(exercise, answer)
    assert said == "passed" if expected == "passed" else said.startswith("not yet: "), said
    assert expected in said


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_exercise_has_a_stub_a_solution_and_a_wrong_answer(chapter):
    answers = ANSWERS[chapter].ANSWERS
    assert {name for name, _, expected in answers if expected == "passed"} == {*CHECKS[chapter]}
    assert {name for name, _, expected in answers if expected != "passed"} == {*CHECKS[chapter]}
    for name in CHECKS[chapter]:
        for stub in (lambda *_: ..., lambda *_: (..., ...), lambda *_: (1.0, ...)):
            said = verdict(f"{chapter.replace('_', '-')}/{name}", stub)
            assert said == "not attempted", name


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_chapter_has_each_exercise_once(chapter):
    """Its stored cells: the stub is not attempted, the solution passes."""
    chapter = chapter.replace("_", "-")
    cells = gates.load(gates.ROOT / "book" / f"{chapter}.ipynb").cells
    for tag, word in (("exercise", "not attempted"), ("solution", "passed")):
        printed = "".join(gates.printed(cell) for cell in cells if tag in gates.tags(cell))
        said = sorted(line for line in printed.splitlines() if line.startswith(f"{chapter}/"))
        names = sorted(CHECKS[chapter.replace("-", "_")])
        assert said == sorted(f"{chapter}/{name}: {word}" for name in names)


NO_NUMBERS = [np.nan, np.inf, -np.inf, np.float32("nan"), jnp.float32(jnp.inf)]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_what_is_no_number_does_not_pass(chapter):
    for name in CHECKS[chapter]:
        for bad in NO_NUMBERS:
            answers = [lambda *_, bad=bad: bad, lambda *_, bad=bad: (bad, bad)]
            answers += [lambda *_, bad=bad, n=n: np.full((n, n), bad) for n in (2, 3)]
            for answer in answers:
                said = verdict(f"{chapter.replace('_', '-')}/{name}", answer)
                assert said.startswith("not yet: "), (name, bad, said)


def test_a_right_answer_with_a_part_that_is_no_number_does_not_pass():
    """The parts of the right answers, one after the other, made NaN or infinite."""
    for chapter, module in ANSWERS.items():
        for exercise, right, expected in module.ANSWERS:
            if expected != "passed":
                continue
            for bad in (np.nan, np.inf):

                def spoiled(*given, right=right, bad=bad):
                    answer = right(*given)
                    if isinstance(answer, tuple) and all(isinstance(x, float) for x in answer):
                        return (*answer[:-1], bad)
                    return bad if isinstance(answer, float) else answer

                name = f"{chapter.replace('_', '-')}/{exercise}"
                if gives_floats(name, right):
                    assert verdict(name, spoiled).startswith("not yet: "), name


def gives_floats(name, right):
    """Whether the answers to an exercise are floats, or tuples of them."""
    kinds = []

    def watched(*given):
        answer = right(*given)
        parts = answer if isinstance(answer, tuple) else (answer,)
        kinds.append(all(isinstance(part, float) for part in parts))
        return answer

    verdict(name, watched)
    return any(kinds)


@pytest.mark.parametrize("kind", [np.asarray, np.float64, jnp.float32, jnp.asarray])
def test_numbers_of_numpy_and_jax_are_answers(kind):
    found = []
    for chapter, module in ANSWERS.items():
        for exercise, right, expected in module.ANSWERS:
            name = f"{chapter.replace('_', '-')}/{exercise}"
            if expected == "passed" and name in NUMBERS:
                said = verdict(name, lambda *given, right=right: kind(right(*given)))
                assert said == "passed", (name, said)
                found.append(name)
    assert {*found} == NUMBERS


NUMBERS = {
    "cost/balance",
    "cost/equal-parameters",
    "decoding/slowdown",
    "decoding/tokens",
    "grouped-query-attention/key-head",
    "hardware/intensity",
    "hardware/least-time",
    "hardware/whole",
    "online-softmax/rises",
    "scale/cosine",
    "specialization/null-value",
}


def test_an_unknown_exercise_is_an_error():
    with pytest.raises(ValueError, match=r"exercise: expected one of .*share-on.*; got"):
        verdict("introduction/none", lambda: ...)
    with pytest.raises(ValueError, match="exercise: expected"):
        verdict("no-chapter/none", lambda: ...)
