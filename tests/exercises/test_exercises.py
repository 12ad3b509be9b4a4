"""Every exercise: a stub is not attempted, the chapter's solution passes, wrong answers do not."""

import pkgutil
from importlib import import_module

import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import exercises
from mha_book.exercises import judge, verdict
from tests.book import gates

CHAPTERS = [info.name for info in pkgutil.iter_modules(exercises.__path__)]
CLOSED = np.array([[1.25, 0.25], [0.25, 1.25]])

# An exercise, a wrong answer, and a piece of the hint that it gets: what a reader would try first.
WRONG = [
    ("after-pruning/key-heads", lambda k, g: g, "no query head reads"),
    ("bugs-in-the-wild/invisible", lambda t, n: False, "1 tokens and 3 heads: nothing moves"),
    ("bugs-in-the-wild/sees-the-future", lambda attention: False, "it says False of no causal"),
    ("bugs-in-the-wild/which-axis", lambda attention: "keys", "sum to 1 over the queries"),
    ("build-it-yourself/cache-elements", lambda b, k, h, n: b * k * h * n, "keys and values"),
    ("build-it-yourself/sees-the-future", lambda model, ids: False, "a little"),
    ("build-it-yourself/sees-the-future", lambda model, ids: True, "only the past"),
    ("choosing/copies", lambda k, d: d // k, "never stored on less than one device"),
    ("cost/parameters", lambda d, n, k, h: 4 * d * d, "4 D² holds for K = N"),
    ("cost/balance", lambda d, n, k, h: 2 * d * (n + k) / n, "factor of 2"),
    ("decoding/tokens", lambda p, n: sum(p**m for m in range(1, n + 1)), "adds one token"),
    ("dropout-and-gates/share", lambda rate: 6.0, "two numbers"),
    ("emergence/even-score", lambda p: float(np.mean([1 / i for i in p])), "sees itself too"),
    ("gradients/sink", lambda a, d_a: a * (1 - a) * d_a, "diagonal of the Jacobian"),
    ("gradients/values", lambda: 3, "LaTeX as a string"),
    ("grouped-query-attention/key-head", lambda h, n, k: h % k, "in turn"),
    ("grouped-query-attention/unshare", lambda w, n: jnp.tile(w, (1, n // w.shape[1], 1)),
     "in turn"),
    ("hardware/least-time", lambda f, m, p, w: f / p + m / w, "the times do not add"),
    ("head-behaviors/function-vector", lambda x, w: x.mean(0)[w].mean(0), "adds the heads up"),
    ("head-matrices/share", lambda q, k, i, j: k[:, j] @ q[:, i].T, "rows are the parts that ask"),
    ("rank/effective-rank", lambda s: s.sum() ** 2 / (s**2).sum(), "of the fourth"),
    ("heads-in-use/route", lambda w, a, k: (k - a) / (w - a), "other routes"),
    ("index-notation/read", lambda: "hbB", "such as"),
    ("index-notation/linear", lambda: 8 * 4096 * 4096 * 64 * 4, "order that makes scores"),
    ("introduction/share-on", lambda w, j: w[j].mean(), "mean over a row"),
    ("kernel-bugs/race", lambda log, n: None, "expected 2"),
    ("limits/repaired", lambda direct, fell: fell / direct, "not made up for"),
    ("many-devices/place", lambda t, n: np.arange(t).reshape(n, -1).tolist(), "another 100"),
    ("multi-head-layer/best-one-head", lambda: CLOSED + 0.02, "the error for"),
    ("multi-head-layer/reorder", lambda params, order: params, "w_q is still in the old order"),
    ("online-softmax/merge", lambda a, m, b, n: ((a + b) / 2, np.logaddexp(m, n)),
     "the parts do not count alike"),
    ("online-softmax/visited", lambda n, w, r, u: (n // r) * (n // u), "these are all blocks"),
    ("position/blindness", lambda f, x, order: abs(f(x[order]) - f(x)).max(), "is blind"),
    ("pruning/sensitivity", lambda o, s: abs((o * s).sum((2, 3)).mean(0)),
     "opposite signs of texts cancel"),
    ("scale/same-training", lambda d, o: (1 / d, d**-0.5), "the factor of the start"),
    ("scaled-attention/softmax", lambda s: jnp.exp(s), "divide by the row's sum"),
    ("scaled-attention/empty", lambda o, m: o * m.any(-1, keepdims=True).astype(o.dtype),
     "0 times NaN is NaN"),
    ("sinks/cached", lambda t, k, x, w, n: x * t + (k - x) * w, "first positions are missing"),
    ("specialization/excess", lambda m, null: m - null, "difference"),
    ("split-and-combine/merge", lambda x: x.reshape(*x.shape[:-3], x.shape[-2], -1),
     "does row i hold position"),
    ("split-and-combine/judge", lambda split: False, "rejects split_heads itself"),
    ("start-or-data/by-luck", lambda k, n: 0.25**k, "for 16 of 32"),
    ("syntax-and-meaning/offset", lambda q, a: np.unique(a, return_counts=True)[1].max() / len(a),
     "the best fixed place"),
    ("trained-length/new-base", lambda theta, h, x, p: theta / x ** (h / (2 * p)),
     "the base has to grow"),
    ("serving/batch", lambda w, c: w // c, "less cache"),
    ("serving/context", lambda m, w, t, b: (m - w) // (b * t), "a tenth"),
    ("serving/step", lambda w, c, b, p, k, r: (w + b * c) / p / r, "KV head is whole"),
    ("variants/heads", lambda n, e, a: (n + e) // a, "a key and a value"),
]  # fmt: skip


def checks(chapter: str) -> list[str]:
    """The full names of a chapter's exercises."""
    import_module(f"mha_book.exercises.{chapter}")
    start = chapter.replace("_", "-") + "/"
    return sorted(name for name in exercises.CHECKS if name.startswith(start))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("chapter", CHAPTERS)
def test_wrong_answers_and_none(chapter):
    names = checks(chapter)
    tried = [entry for entry in WRONG if entry[0] in names]
    assert tried, "a wrong answer of each chapter"
    for name, answer, expected in tried:
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
