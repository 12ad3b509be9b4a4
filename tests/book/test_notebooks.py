"""Every chapter is stored executed, in order, without errors, and normalised."""

import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest

from tests.book import gates
from tests.book.extensions import ROOT, tool

CHAPTERS = gates.chapters()


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
@pytest.mark.parametrize(
    "gate", [gates.execution_problems, gates.id_problems], ids=lambda gate: gate.__name__
)
def test_gate(chapter: Path, gate: Callable[[nbformat.NotebookNode], list[str]]) -> None:
    assert gate(gates.load(chapter)) == []


def test_what_is_not_compared_is_a_time_or_a_device() -> None:
    text = (ROOT / "tests" / "nbval_sanitize.cfg").read_text(encoding="utf8")
    rules = re.findall("^regex: (.*)", text, re.M)
    assert rules == ["(?m)^time: .*$", "(?m)^device: .*$"]


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_exercises(chapter: Path) -> None:
    at_least = 0 if chapter in gates.reference() else gates.EXERCISES_AT_LEAST
    assert gates.exercise_problems(gates.load(chapter), at_least) == []


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
def test_normalised(chapter: Path) -> None:
    refresh = tool("refresh")
    stored = chapter.read_text(encoding="utf-8")
    assert refresh.text_of(refresh.normalise(nbformat.reads(stored, as_version=4))) == stored, (
        "run `make notebooks`, or `python book/_tools/refresh.py --normalise` to leave outputs"
    )
