"""Patterns and measures of heads: values that are known, loops, baselines, sums over texts."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import causal, padding
from mha_book.specialization import measures, patterns
from mha_book.specialization.measures import MEASURES, text_patterns
from mha_book.storage import read_table, write_table

pytestmark = pytest.mark.unoptimized
T = 7
rng = np.random.default_rng(11)


def visible(mask=None, batch=1, length=T):
    return patterns.visible_pairs(causal() if mask is None else mask, batch, length)


@jax.jit
def measured(weights, pairs, token_ids, special):
    """The sums of every text, of weights of each layer."""
    return measures.measure_heads(weights, pairs, text_patterns(pairs, token_ids, special))


def random_weights(pairs, heads):
    shape = (pairs.shape[0], heads, *pairs.shape[1:])
    raw = rng.uniform(size=shape) ** 3 * np.asarray(pairs)[:, None]
    return jnp.asarray(raw / np.maximum(raw.sum(-1, keepdims=True), 1e-30), jnp.float32)


def test_known_patterns_have_their_exact_values():
    eye, rows = np.eye(T), np.arange(T)
    previous = eye[np.maximum(rows - 1, 0)]
    even = np.tril(np.ones((T, T))) / (rows[:, None] + 1)
    heads = np.stack([np.stack([previous, eye, eye[np.zeros(T, int)], even])] * 2)  # two texts
    ids = jnp.array([[5, 6, 7, 5, 6, 8, 9]] * 2)  # the 5 and the 6 come twice
    special = jnp.asarray([[False, False, True, False, False, False, False]] * 2)
    found = measured([jnp.asarray(heads, jnp.float32)], visible(batch=2), ids, special)
    found = {name: np.asarray(measures.mean(t))[0] for name, t in measures.add_texts(found).items()}
    share = np.mean([1 / (i + 1) for i in range(1, T)])
    # Of the heads: previous, self, first, even.
    expected = {
        "previous": [1, 0, 1 / 6, share],
        "self": [0, 1, 0, share],
        "first": [1 / 6, 0, 1, share],
        "local": [1, 1, 0, (5 / 6 + 5 / 7) / 2],  # only the rows 5 and 6 see beyond four tokens
        "same token": [0, 0, 1 / 2, (1 / 4 + 1 / 5) / 2],
        "induction": [0, 0, 0, (1 / 4 + 1 / 5) / 2],  # rows 3 and 4, keys 1 and 2
        "special": [1 / 5, 1 / 5, 0, np.mean([1 / (i + 1) for i in range(2, T)])],
        "distance": [1, 0, 3.5, 1.75],
        "entropy": [0, 0, 0, 1],
    }
    assert set(expected) | {"next"} == set(found) == set(MEASURES)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, atol=1e-6, err_msg=name)
    assert np.isnan(found["next"]).all()  # no causal row sees what comes after


@pytest.mark.parametrize("is_causal", [True, False])
def test_measures_are_those_of_loops(is_causal):
    lengths = jnp.array([T, 5])
    mask = padding(lengths, lengths)
    pairs = visible(mask & causal() if is_causal else mask, 2)
    weights, special = random_weights(pairs, 4), jnp.asarray(rng.uniform(size=(2, T)) < 0.3)
    ids = rng.integers(0, 3, (2, T), dtype=np.int32)
    found = measures.add_texts(measured([weights], pairs, jnp.asarray(ids), special))
    is_target = {
        "previous": lambda b, i, j: j == i - 1,
        "next": lambda b, i, j: j == i + 1,
        "local": lambda b, i, j: abs(i - j) <= 4,
        "special": lambda b, i, j: bool(special[b, j]),
        "same token": lambda b, i, j: i != j and ids[b, i] == ids[b, j],
        "induction": lambda b, i, j: j not in (0, i + 1) and ids[b, j - 1] == ids[b, i],
    }
    w, seen = np.asarray(weights, np.float64), np.asarray(pairs)
    for name, target in is_target.items():
        wanted = []
        for head in range(4):
            total, rows = 0.0, 0
            for b, i in np.ndindex(2, T):
                keys = np.flatnonzero(seen[b, i])
                hit = [j for j in keys if target(b, i, j)]
                if 0 < len(hit) < len(keys):
                    total, rows = total + w[b, head, i, hit].sum(), rows + 1
            wanted.append(total / rows if rows else math.nan)
        assert float(found[name].rows) == rows
        np.testing.assert_allclose(measures.mean(found[name])[0], wanted, atol=1e-6, err_msg=name)
    several = [(b, i) for b, i in np.ndindex(2, T) if seen[b, i].sum() > 1]
    for name, row in {
        "distance": lambda i, p: (p * abs(i - np.arange(T))).sum(),
        "entropy": lambda i, p: -(p[p > 0] * np.log(p[p > 0])).sum(),
    }.items():
        for head in range(4):
            values = [
                row(i, w[b, head, i]) / (math.log(seen[b, i].sum()) if name == "entropy" else 1)
                for b, i in several
            ]
            got = float(measures.mean(found[name])[0, head])
            assert got == pytest.approx(np.mean(values), abs=1e-6)


def test_baselines_are_those_of_heads_that_choose_at_random():
    """A head that looks at one visible key drawn evenly has the baseline on average."""
    heads, pairs = 4001, visible()
    chosen = np.floor(rng.uniform(size=(heads, T)) * (np.arange(T) + 1)).astype(int)
    weights = jnp.asarray(np.eye(T, dtype=np.float32)[chosen][None])
    ids = jnp.array([[1, 2, 1, 2, 3, 1, 3]])
    found = measures.add_texts(measured([weights], pairs, ids, ids == 2))
    for name, sums in found.items():
        if name not in ("next", "entropy"):
            drawn = np.asarray(measures.mean(sums)[0])
            error = drawn.std() / math.sqrt(heads)
            assert abs(drawn.mean() - float(measures.baseline_mean(sums))) < 4 * error, name
    assert float(measures.baseline_mean(found["entropy"])) == pytest.approx(1, abs=1e-6)
    assert float(measures.mean(found["entropy"]).max()) == 0


def test_sums_add_up_however_the_texts_are_batched():
    lengths = np.array([T, 5, 3, 6])
    real = np.arange(T)[None, :] < lengths[:, None]
    pairs = np.tril(real[:, :, None] & real[:, None, :])
    weights, ids = random_weights(pairs, 4), rng.integers(0, 3, (4, T), dtype=np.int32)
    sums = []
    for batches in (([0, 1], [2, 3]), ([3, 0], [1, 2])):
        state = None
        for texts in batches:
            of = [jnp.asarray(np.asarray(x)[texts]) for x in (weights, pairs, ids, ids == 1)]
            state = measures.add_texts(measured([of[0]], *of[1:]), state)
        sums.append(state)
    for name, of_one in sums[0].items():
        for ours, theirs in zip(of_one, sums[1][name], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=name)
    assert sums[0]["distance"].total.shape == (1, 4)
    assert float(sums[0]["distance"].rows) == 6 + 4 + 2 + 5  # no row of padding counts


def test_above_chance_is_zero_for_uniform_attention_and_one_for_the_pure():
    pairs = visible(batch=2)
    pure = np.eye(T, dtype=np.float32)[np.maximum(np.arange(T) - 1, 0)]
    even = np.asarray(patterns.uniform_weights(pairs))[0, 0]
    heads = jnp.asarray(np.stack([[pure, even, even, pure]] * 2))
    ids = jnp.zeros((2, T), jnp.int32)
    found = measured([heads], pairs, ids, ids == 0)
    above = measures.above_chance(measures.add_texts(found)["previous"])
    np.testing.assert_allclose(above, [[1.0, 0.0, 0.0, 1.0]], atol=1e-6)
    assert measures.above_chance(found["previous"]).shape == (2, 1, 4)  # text by text


def test_intervals_by_resampling_texts():
    key = jax.random.key(0)
    value = rng.normal(3.0, 1.0, (50, 1, 2))
    rows = rng.integers(5, 9, 50)
    sums = measures.MeasureSums(*map(jnp.float32, (value * rows[:, None, None], rows * 0.0, rows)))
    low, high = np.asarray(jax.jit(measures.bootstrap_interval)(sums, key))
    mean = (value * rows[:, None, None]).sum(0) / rows.sum()
    assert (low < mean).all()
    assert (mean < high).all()
    np.testing.assert_allclose(high - low, 2 * 1.96 / math.sqrt(50), rtol=0.3)


def test_bootstrap_samples_add_up_the_texts_that_were_drawn():
    sums = measures.MeasureSums(
        jnp.array([[[1.0]], [[10.0]], [[100.0]]]), jnp.array([1.0, 2.0, 4.0]), jnp.ones(3)
    )
    drawn = jax.jit(measures.bootstrap_samples, static_argnums=2)(sums, jax.random.key(0), 50)
    assert drawn.total.shape == (50, 1, 1)
    np.testing.assert_allclose(drawn.rows, 3)
    for total, baseline in zip(drawn.total[:, 0, 0].tolist(), drawn.baseline.tolist(), strict=True):
        times = [int(total) // 10**k % 10 for k in range(3)]
        assert sum(times) == 3
        assert baseline == times[0] + 2 * times[1] + 4 * times[2]


def test_the_table_is_whole_or_not_there(tmp_path):
    sums = measures.MeasureSums(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array(1.0), jnp.array(4.0))
    columns = measures.head_table({"distance": sums, "next": sums._replace(rows=0 * sums.rows)})
    assert columns["layer"].tolist() == [0, 0, 1, 1]
    path = tmp_path / "folder" / "heads.csv"
    write_table(path, columns)
    back = read_table(path)
    assert list(back) == list(columns)
    for name, column in columns.items():
        np.testing.assert_allclose(back[name], column, rtol=1e-5)
    assert [p.name for p in path.parent.iterdir()] == ["heads.csv"]
    with pytest.raises(ValueError, match="columns: expected one or more, of one axis"):
        write_table(path, {"a": [1, 2], "b": [1]})
    np.testing.assert_allclose(read_table(path)["distance"], columns["distance"])
    path.write_text("a,b\n1\n")
    with pytest.raises(ValueError, match="rows of one length"):
        read_table(path)


PAIRS, IDS = jnp.ones((1, 2, 2), bool), jnp.zeros((1, 2), jnp.int32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: patterns.on_target(PAIRS, jnp.ones((1, 2, 2))), "target: expected booleans"),
        (lambda: patterns.on_target(PAIRS[0], PAIRS), r"visible: expected axes \(B, T, S\)"),
        (lambda: patterns.in_window(PAIRS, -1), "width: expected 0 or more; got -1"),
        (lambda: patterns.on_keys(PAIRS, PAIRS[0]), r"keys: expected axes \(B, S\) = \(1, 2\)"),
        (lambda: patterns.on_duplicate_token(PAIRS, IDS[0]), r"token_ids: expected axes \(B, T\)"),
        (
            lambda: patterns.on_induction_target(PAIRS[:, :1], IDS),
            r"visible: expected axes \(B, T, T\)",
        ),
        (
            lambda: patterns.mean_score(jnp.ones((1, 2, 2)), patterns.distance(PAIRS)),
            r"weights: expected axes \(B, N, T, S\) = \(1, N, 2, 2\); got shape \(1, 2, 2\)",
        ),
        (
            lambda: patterns.visible_pairs(padding(jnp.array([1, 2])), 3, 2),
            r"mask: expected one for all heads, axes \(B, 1, T, S\) = \(3, 1, 2, 2\)",
        ),
        (
            lambda: measures.measure_heads([jnp.ones((1, n, 2, 2)) for n in (1, 2)], PAIRS, {}),
            "weights: expected for each layer axes",
        ),
    ],
)
def test_bad_input(no_type_checks, call, message):
    with pytest.raises(ValueError, match=message):
        call()
