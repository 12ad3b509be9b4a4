"""Every exercise: the stub is not attempted, the chapter's solution passes, wrong answers do not.

Each chapter has a module beside this one with ``ANSWERS``: the exercise, a wrong answer, and a
piece of the hint that it gets.
"""

import pkgutil
from importlib import import_module

import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import exercises
from mha_book.exercises import judge, verdict
from tests.book import gates

pytestmark = pytest.mark.unoptimized
CHAPTERS = [info.name for info in pkgutil.iter_modules(exercises.__path__)]
ANSWERS = {chapter: import_module(f"tests.exercises.{chapter}").ANSWERS for chapter in CHAPTERS}


def checks(chapter: str) -> list[str]:
    """The full names of a chapter's exercises."""
    import_module(f"mha_book.exercises.{chapter}")
    start = chapter.replace("_", "-") + "/"
    return sorted(name for name in exercises.CHECKS if name.startswith(start))


def answers(chapter: str):
    start = chapter.replace("_", "-")
    return [(f"{start}/{name}", answer, expected) for name, answer, expected in ANSWERS[chapter]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_wrong_answers_and_none(chapter):
    names = checks(chapter)
    assert sorted({name for name, _, _ in answers(chapter)}) == names
    for name, answer, expected in answers(chapter):
        said = verdict(name, answer)
        assert said.startswith("not yet: "), said
        assert expected in said
    for name in names:
        for stub in (lambda *_: ..., lambda *_: (1.0, ...)):
            assert verdict(name, stub) == "not attempted", name
        for bad in (np.nan, jnp.float32(jnp.inf)):
            every = (bad, (bad, bad), np.full((2, 2), bad), np.full((3, 3), bad))
            for answer in every:
                said = verdict(name, lambda *_, answer=answer: answer)
                assert said.startswith("not yet: "), (name, answer, said)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_the_chapter_has_each_exercise_once(chapter):
    """Its stored cells: the stub is not attempted, the solution passes."""
    name = chapter.replace("_", "-")
    cells = gates.load(gates.ROOT / "book" / f"{name}.ipynb").cells
    for tag, word in (("exercise", "not attempted"), ("solution", "passed")):
        printed = "".join(gates.printed(cell) for cell in cells if tag in gates.tags(cell))
        said = sorted(line for line in printed.splitlines() if line.startswith(f"{name}/"))
        assert said == [f"{each}: {word}" for each in checks(chapter)]


def test_judge():
    half = {"half of it": 1.5}
    assert judge(3.0 + 1e-6, 3.0, half) is None
    assert judge(1.5, 3.0, half, "here: ") == "here: half of it"
    assert judge(2, 3.0, half) == "expected 3; got 2"
    assert judge("3", 3.0, half) == "expected a number; got str"
    assert judge(10**9 + 1, 10**9, {}) == "expected 1000000000; got 1000000001"  # whole: exactly
    want = np.array([[1.0, 2.0]])
    assert judge(want + 1e-7, want, {}) is None
    assert judge([1.0], want, {}) == "expected the shape (1, 2); got (1,)"
    assert judge(want[:, ::-1], want, {"turned": want[:, ::-1]}) == "turned"
    assert judge(want + 1, want, {}) == "the entries are wrong, first at (0, 0)"


def test_what_the_reader_raises_is_an_answer():
    """An attempt that ended Python would have ended the notebook."""

    def leaves(weights, j):
        raise SystemExit(3)

    assert verdict("introduction/share-on", leaves) == "not yet: SystemExit: 3"


def test_an_unknown_exercise_is_an_error():
    for name, known in (("introduction/none", "share-on"), ("no-chapter/none", "a chapter/name")):
        with pytest.raises(ValueError, match=f"exercise: expected one of .*{known}.*; got"):
            verdict(name, lambda: ...)
