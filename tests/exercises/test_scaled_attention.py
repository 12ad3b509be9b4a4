"""Each exercise: the stub is not attempted, the solution passes, wrong tries get useful words."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.exercises import verdict
from mha_book.exercises.scaled_attention import CHECKS
from tests.book.gates import ROOT, load, tags

NOTEBOOK = load(ROOT / "book" / "scaled-attention.ipynb")
NAMES = sorted(CHECKS)
SETUP = """
import math
import jax.numpy as jnp
import numpy as np
from mha_book.exercises import check
scores = np.random.default_rng(0).normal(size=(2, 3, 5, 7))
def softmax(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
"""


def cells(tag):
    return [c.source for c in NOTEBOOK.cells if c.cell_type == "code" and tag in tags(c)]


@pytest.mark.parametrize("tag, word", [("exercise", "not attempted"), ("solution", "passed")])
def test_stubs_and_solutions_of_the_chapter(tag, word, capsys):
    sources = cells(tag)
    assert len(sources) == len(NAMES)
    for source in sources:
        exec(SETUP + source, {})
    lines = [line for line in capsys.readouterr().out.splitlines() if "scaled-attention/" in line]
    assert sorted(lines) == [f"scaled-attention/{name}: {word}" for name in NAMES]


def masked(allowed):
    """A try at the second exercise from a rule on (position, i, j, left)."""

    def attempt(queries, keys, offset, left):
        i, j = jnp.arange(queries)[:, None], jnp.arange(keys)[None, :]
        return allowed(i + offset, i, j, left)

    return attempt


def bisect(sign):
    def attempt(scores, entropy):
        low, high = -10.0, 10.0
        for _ in range(50):
            middle = (low + high) / 2
            a = np.asarray(jax.nn.softmax(scores * math.exp(sign * middle)), np.float64)
            mean = -(a * np.log(np.maximum(a, 1e-300))).sum(-1).mean()
            sharper = sign * (mean - entropy) > 0
            low, high = (middle, high) if sharper else (low, middle)
        return math.exp(middle)

    return attempt


def log_odds(weight):
    return math.log(weight / (1 - weight))


WRONG = [
    ("softmax", lambda s: jnp.exp(s), "divide by the row's sum"),
    ("softmax", lambda s: jnp.exp(s) / jnp.exp(s).sum(), "a sum of its own"),
    ("softmax", lambda s: jnp.exp(s) / jnp.exp(s).sum(-1, keepdims=True), "exp(1000) is inf"),
    (
        "softmax",
        lambda s: jnp.exp(jnp.minimum(s, 80)) / jnp.exp(jnp.minimum(s, 80)).sum(-1, keepdims=True),
        "subtract the row's maximum",
    ),
    (
        "softmax",
        lambda s: jnp.exp(s - 1000) / jnp.exp(s - 1000).sum(-1, keepdims=True),
        "gave",
    ),
    ("softmax", lambda s: jax.nn.softmax(s), "an empty row"),
    ("softmax", lambda s: jax.nn.softmax(s).sum(-1), "the shape of the scores"),
    ("softmax", lambda s: undefined_name, "NameError"),
    ("visible", masked(lambda p, i, j, w: j <= i), "the offset is left out"),
    ("visible", masked(lambda p, i, j, w: (j <= i) & (j >= i - w)), "the offset is left out"),
    ("visible", masked(lambda p, i, j, w: (j > p) | (j < p - w)), "True has to mean"),
    ("visible", masked(lambda p, i, j, w: (j < p) & (j >= p - w)), "its own position"),
    ("visible", masked(lambda p, i, j, w: (j <= p) & (j > p - w)), "one key too short"),
    ("visible", masked(lambda p, i, j, w: j <= p), "the window is missing"),
    ("visible", masked(lambda p, i, j, w: j >= p - w), "later keys"),
    ("visible", masked(lambda p, i, j, w: j == p), "wrong at (i, j) = "),
    ("visible", masked(lambda p, i, j, w: (j <= p).astype(jnp.float32)), "a boolean array"),
    ("visible", masked(lambda p, i, j, w: (j <= p)[0]), "expected shape (T, S)"),
    ("cosine", lambda d, s, w: math.log(w * (s - 1) / (1 - w)), "that is the score itself"),
    ("cosine", lambda d, s, w: math.log(w * (s - 1) / (1 - w)) / d, "not all of it"),
    ("cosine", lambda d, s, w: math.log(w * s / (1 - w)) / math.sqrt(d), "S - 1 other keys"),
    ("cosine", lambda d, s, w: log_odds(w) / math.sqrt(d), "the other keys count too"),
    ("cosine", lambda d, s, w: 0.5, "expected 0."),
    ("temperature", bisect(-1), "the factor multiplies the scores"),
    ("temperature", lambda s, e: 1.0, "the mean entropy at factor 1.000 is"),
    ("temperature", lambda s, e: -1.0, "a positive factor"),
]


@pytest.mark.parametrize("name, attempt, words", WRONG)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
def test_a_wrong_try_is_told_why(name, attempt, words):
    said = verdict(f"scaled-attention/{name}", attempt)
    assert said.startswith("not yet: ")
    assert words in said, said


def test_the_right_try_with_the_right_sign_passes():
    assert verdict("scaled-attention/temperature", bisect(1)) == "passed"
