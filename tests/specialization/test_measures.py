"""Patterns and measures of heads: values that are known, loops, baselines, sums over texts."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import causal, padding
from mha_book.specialization import measures, patterns
from mha_book.specialization.measures import MEASURES, text_patterns

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
    found = {name: np.asarray(t.mean)[0] for name, t in measures.add_texts(found).items()}
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
        np.testing.assert_allclose(found[name].mean[0], wanted, atol=1e-6, err_msg=name)


def test_baselines_are_those_of_heads_that_choose_at_random():
    """A head that looks at one visible key drawn evenly has the baseline on average."""
    heads, pairs = 4001, visible()
    chosen = np.floor(rng.uniform(size=(heads, T)) * (np.arange(T) + 1)).astype(int)
    weights = jnp.asarray(np.eye(T, dtype=np.float32)[chosen][None])
    ids = jnp.array([[1, 2, 1, 2, 3, 1, 3]])
    found = measures.add_texts(measured([weights], pairs, ids, ids == 2))
    for name, sums in found.items():
        if name not in ("next", "entropy"):
            drawn = np.asarray(sums.mean[0])
            error = drawn.std() / math.sqrt(heads)
            assert abs(drawn.mean() - float(sums.baseline_mean)) < 4 * error, name
    assert float(found["entropy"].baseline_mean) == pytest.approx(1, abs=1e-6)
    assert float(found["entropy"].mean.max()) == 0


def test_resampled_sums_add_up_the_texts_that_were_drawn():
    sums = measures.MeasureSums(
        jnp.array([[[1.0]], [[10.0]], [[100.0]]]), jnp.array([1.0, 2.0, 4.0]), jnp.ones(3)
    )
    drawn = jax.jit(lambda sums, key: sums.resampled(key, 50))(sums, jax.random.key(0))
    assert drawn.total.shape == (50, 1, 1)
    np.testing.assert_allclose(drawn.rows, 3)
    for total, baseline in zip(drawn.total[:, 0, 0].tolist(), drawn.baseline.tolist(), strict=True):
        times = [int(total) // 10**k % 10 for k in range(3)]
        assert sum(times) == 3
        assert baseline == times[0] + 2 * times[1] + 4 * times[2]


def test_the_table_has_a_row_for_each_head_and_each_name_once(no_type_checks):
    sums = measures.MeasureSums(jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array(1.0), jnp.array(4.0))
    columns = measures.head_table({"distance": sums})
    assert columns["layer"].tolist() == [0, 0, 1, 1]
    assert columns["head"].tolist() == [0, 1, 0, 1]
    assert columns["distance"].tolist() == [0.25, 0.5, 0.75, 1.0]
    for name in ("layer", "distance (uninformed)"):  # columns that would be overwritten
        with pytest.raises(ValueError, match="sums: expected names of columns that differ"):
            measures.head_table({name: sums, "distance": sums})
    with pytest.raises(ValueError, match="patterns: expected a name other than that of entropy"):
        measures.measure_heads(
            [patterns.uniform_weights(visible())],
            visible(),
            {"entropy": patterns.distance(visible())},
        )


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_half_precision_is_summed_up_in_float32(dtype):
    rows = 70_000  # more than float16 counts to
    pairs = jnp.ones((1, rows, 2), bool)
    weights = jnp.broadcast_to(jnp.array([0.25, 0.75], dtype), (1, 1, rows, 2))
    pattern = patterns.on_first_token(pairs)
    np.testing.assert_allclose(patterns.mean_score(weights, pattern), [0.25], rtol=1e-6)
    found = measures.add_texts(measures.measure_heads([weights], pairs, {"first": pattern}))
    np.testing.assert_allclose(found["first"].mean, [[0.25]], rtol=1e-6)


def test_weights_that_are_no_numbers_have_no_entropy():
    weights = jnp.array([[[[jnp.nan, 1.0], [0.0, 1.0]]]])
    found = patterns.normalized_entropy(weights, jnp.ones((1, 2, 2), bool))[0][0, 0]
    assert np.isnan(found[0])
    assert found[1] == 0
