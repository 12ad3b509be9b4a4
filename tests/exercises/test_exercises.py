"""Every exercise: the stub is not attempted, solutions pass, wrong answers get their hint.

Each chapter has a module beside this one with ``ANSWERS``: the exercise, an answer, and "passed" or
a piece of the hint that the answer gets.
"""

import pkgutil
from importlib import import_module

import pytest

from mha_book import exercises
from mha_book.exercises import verdict
from tests.book import gates

pytestmark = pytest.mark.unoptimized
CHAPTERS = [info.name for info in pkgutil.iter_modules(exercises.__path__)]
ANSWERS = {chapter: import_module(f"tests.exercises.{chapter}") for chapter in CHAPTERS}
CHECKS = {chapter: import_module(f"mha_book.exercises.{chapter}").CHECKS for chapter in CHAPTERS}


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
        said = verdict(f"{chapter.replace('_', '-')}/{name}", lambda *_: ...)
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


def test_an_unknown_exercise_is_an_error():
    with pytest.raises(ValueError, match=r"exercise: expected one of .*share-on.*; got"):
        verdict("introduction/none", lambda: ...)
    with pytest.raises(ValueError, match="exercise: expected"):
        verdict("no-chapter/none", lambda: ...)
