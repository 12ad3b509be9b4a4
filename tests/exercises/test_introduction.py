"""The feedback of the introduction's exercises on right, wrong and missing attempts."""

import numpy as np
import pytest

from mha_book.exercises import verdict


def distance(weights):
    i = np.arange(len(weights))
    return abs(i[:, None] - i[None, :])


@pytest.mark.parametrize(
    ("exercise", "attempt", "expected"),
    [
        ("share-on", lambda w, j: w[:, j].mean(), "passed"),
        ("share-on", lambda w, j: ..., "not attempted"),
        ("share-on", lambda w, j: w[j].mean(), "mean over a row"),
        ("share-on", lambda w, j: w[:, j].sum(), "not their mean"),
        ("share-on", lambda w, j: w[:, j], "expected one number; got shape (5,)"),
        ("share-on", lambda w, j: 0.0, "on an example"),
        ("share-on", lambda w: 0.0, "TypeError"),
        ("mean-distance", lambda w: (w * distance(w)).sum(-1).mean(), "passed"),
        ("mean-distance", lambda w: ..., "not attempted"),
        ("mean-distance", lambda w: (w * distance(w)).sum(), "not their mean"),
        (
            "mean-distance",
            lambda w: (w * np.subtract.outer(range(5), range(5))).sum(-1).mean(),
            "cancel",
        ),
        ("mean-distance", lambda w: (w * distance(w)).mean(), "on an example"),
        ("previous-share", lambda text: 0.95, "passed"),
        ("previous-share", lambda text: ..., "not attempted"),
        ("previous-share", lambda text: 0.2, "above 0.9"),
        ("previous-share", lambda text: 7.0, "between 0 and 1"),
        ("previous-share", lambda text: np.zeros(3), "expected one number"),
    ],
)
def test_feedback(exercise, attempt, expected):
    got = verdict(f"introduction/{exercise}", attempt)
    assert expected in got
    assert got == expected or got.startswith("not yet: ")


def test_an_unknown_exercise_is_an_error():
    with pytest.raises(ValueError, match=r"exercise: expected one of .*share-on.*; got"):
        verdict("introduction/none", lambda: ...)
    with pytest.raises(ValueError, match="exercise: expected"):
        verdict("no-chapter/none", lambda: ...)
