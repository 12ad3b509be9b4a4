"""Checks of the exercises of the chapter on bugs in the wild."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mha_book.conformance.mutants import CATALOG
from mha_book.conformance.oracle import Case, attend
from mha_book.exercises import Attempt, exercise


def _subject(bug: str, causal: bool = False) -> Callable[..., Any]:
    """Return attention on queries, keys and values, right or with a bug of the catalog."""
    function = CATALOG[bug].attend if bug else attend
    return lambda q, k, v: function(
        Case(np.asarray(q), np.asarray(k), np.asarray(v), causal=causal)
    )


@exercise("invisible")
def _invisible(attempt: Attempt) -> Iterator[str | None]:
    for tokens, num_heads in ((1, 3), (3, 1), (1, 1), (2, 2), (3, 5), (4, 2)):
        x = np.arange(tokens * num_heads * 2)
        right = x.reshape(tokens, num_heads, 2).swapaxes(0, 1)
        want = np.array_equal(right, x.reshape(num_heads, tokens, 2))
        got = attempt(tokens, num_heads)
        if not isinstance(got, bool | np.bool_):
            yield f"expected True or False; got {got!r}"
        elif got != want:
            moves = "nothing moves" if want else "something moves"
            yield f"{tokens} tokens and {num_heads} heads: {moves}"


@exercise("sees-the-future")
def _sees_the_future(attempt: Attempt) -> Iterator[str | None]:
    hints = {
        "": "a right causal mask",
        "causal-ignored": "no causal mask",
        "causal-one-ahead": "a mask that shows one token too many",
        "causal-strict": "a mask that hides the diagonal, and so the future too",
        "softmax-over-queries": "a right mask and a softmax over the queries, later ones too",
    }
    for bug, hint in hints.items():
        got = attempt(_subject(bug, causal=True))
        if not isinstance(got, bool | np.bool_):
            yield f"expected True or False; got {got!r}"
        elif got != (bug not in ("", "causal-strict")):
            yield f"it says {got} of {hint}"


@exercise("which-axis")
def _which_axis(attempt: Attempt) -> Iterator[str | None]:
    axes = {"": "keys", "softmax-over-queries": "queries", "softmax-over-heads": "heads"}
    for bug, want in axes.items():
        got = attempt(_subject(bug))
        if not isinstance(got, str) or got not in axes.values():
            yield f"expected 'keys', 'queries' or 'heads'; got {got!r}"
        elif got != want:
            yield f"it says {got}, where the weights sum to 1 over the {want}"
