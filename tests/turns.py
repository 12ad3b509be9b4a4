"""What is dear is among the fast tests of one commit in some, drawn by its hash, else slow."""

import functools
import hashlib
import subprocess
from pathlib import Path

import pytest

TURNS = 3
STORED_TURNS = 6  # of stored data that git's history holds to the digit
KNOWN = "30e5058"  # the commit at which every excuse was read, and every file without a slice
SEEN = "95e02dbe"  # the commit whose texts, verdicts and outputs were read

# Notebooks over eight seconds of a processor each, which compute longer than they compile; a
# line for each turn, so that every turn takes as long.
NOTEBOOK_TURNS = 6
DEAR = (
    "specialization", "head-behaviors", "limits",
    "build-it-yourself", "grouped-query-attention", "introduction",
    "further-inference", "pruning", "heads-in-use",
    "syntax-and-meaning", "after-pruning", "position",
    "rank", "head-matrices", "hardware",
    "one-head-or-two", "further-heads", "trained-length",
)  # fmt: skip

ROOT = Path(__file__).parents[1]


def git(*given: str) -> str:
    """What git says in this checkout; nothing where there is no history."""
    run = subprocess.run(["git", *given], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout


@functools.cache
def commit() -> str:
    """The commit of this checkout; without git, the empty string."""
    return git("rev-parse", "HEAD").strip()


@functools.cache
def is_known(at: str) -> bool:
    """Whether a commit, by the beginning of its hash, is that of ``KNOWN`` or before it."""
    return not commit() or git("merge-base", at, KNOWN).startswith(at)


@functools.cache
def known_pages(at: str = KNOWN) -> dict[str, str]:
    """Each notebook of the book at ``KNOWN`` or ``SEEN`` as it was stored, by its name."""
    lines = git("log", "--format=%h", "-G^(KNOWN|SEEN) =", "-E", "--", "tests/turns.py")
    assert len(lines.split()) < 3, "neither moves"
    names = git("ls-tree", "--name-only", at, "book/").split()
    return {Path(n).stem: git("show", f"{at}:{n}") for n in names if n.endswith(".ipynb")}


def is_turn(what: str, turns: int = TURNS) -> bool:
    """Whether something dear is among the tests of this commit: of one in so many."""
    return hashlib.sha256(f"turn of {commit()} {what}".encode()).digest()[0] % turns == 0


def in_turn(what: str) -> pytest.MarkDecorator:
    """Mark a test as slow, and in other commits than one in three as exhaustive."""
    return pytest.mark.slow if is_turn(what) else pytest.mark.exhaustive


def is_notebook_turn(stem: str) -> bool:
    """Whether a dear notebook is among the fast tests of this commit."""
    turn = hashlib.sha256(commit().encode()).digest()[0] % NOTEBOOK_TURNS
    return stem in DEAR[3 * turn : 3 * turn + 3]
