"""Measures of heads: on patterns whose value is known, against loops, and their null values."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import MultiHeadParams, causal, padding
from mha_book.models import tiny
from mha_book.specialization import agreement, patterns, streaming, targets, words
from mha_book.specialization.composition import block_norms, composition
from mha_book.specialization.contribution import (
    logit_directions,
    logit_shares,
    residual_shares,
    uninformed_outputs,
)
from mha_book.specialization.measures import MEASURES, text_patterns
from mha_book.specialization.repeats import copied_positions, repeated_tokens
from mha_book.storage import read_table, write_table

T = 7
rng = np.random.default_rng(11)


def visible(mask=None, batch=1, length=T):
    return patterns.visible_pairs(causal() if mask is None else mask, batch, length)


@jax.jit
def measured(weights, pairs, token_ids, special):
    """The tallies of every text, of weights of each layer."""
    return streaming.measure_heads(weights, pairs, text_patterns(pairs, token_ids, special))


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
    found = {
        name: np.asarray(streaming.mean(t))[0] for name, t in streaming.add_texts(found).items()
    }
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
    found = streaming.add_texts(measured([weights], pairs, jnp.asarray(ids), special))
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
        np.testing.assert_allclose(streaming.mean(found[name])[0], wanted, atol=1e-6, err_msg=name)
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
            got = float(streaming.mean(found[name])[0, head])
            assert got == pytest.approx(np.mean(values), abs=1e-6)


def test_null_values_are_those_of_heads_that_choose_at_random():
    """A head that looks at one visible key drawn evenly has the null value on average."""
    heads, pairs = 4001, visible()
    chosen = np.floor(rng.uniform(size=(heads, T)) * (np.arange(T) + 1)).astype(int)
    weights = jnp.asarray(np.eye(T, dtype=np.float32)[chosen][None])
    ids = jnp.array([[1, 2, 1, 2, 3, 1, 3]])
    found = streaming.add_texts(measured([weights], pairs, ids, ids == 2))
    for name, tally in found.items():
        if name not in ("next", "entropy"):
            drawn = np.asarray(streaming.mean(tally)[0])
            error = drawn.std() / math.sqrt(heads)
            assert abs(drawn.mean() - float(streaming.baseline_mean(tally))) < 4 * error, name
    assert float(streaming.baseline_mean(found["entropy"])) == pytest.approx(1, abs=1e-6)
    assert float(streaming.mean(found["entropy"]).max()) == 0


def test_tallies_add_up_however_the_texts_are_batched():
    lengths = np.array([T, 5, 3, 6])
    real = np.arange(T)[None, :] < lengths[:, None]
    pairs = np.tril(real[:, :, None] & real[:, None, :])
    weights, ids = random_weights(pairs, 4), rng.integers(0, 3, (4, T), dtype=np.int32)
    sums = []
    for batches in (([0, 1], [2, 3]), ([3, 0], [1, 2])):
        state = None
        for texts in batches:
            of = [jnp.asarray(np.asarray(x)[texts]) for x in (weights, pairs, ids, ids == 1)]
            state = streaming.add_texts(measured([of[0]], *of[1:]), state)
        sums.append(state)
    for name, tally in sums[0].items():
        for ours, theirs in zip(tally, sums[1][name], strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, err_msg=name)
    assert sums[0]["distance"].total.shape == (1, 4)
    assert float(sums[0]["distance"].rows) == 6 + 4 + 2 + 5  # no row of padding counts


def test_intervals_by_resampling_texts():
    key = jax.random.key(0)
    value = rng.normal(3.0, 1.0, (50, 1, 2))
    rows = rng.integers(5, 9, 50)
    tally = streaming.MeasureSums(
        *map(jnp.float32, (value * rows[:, None, None], rows * 0.0, rows))
    )
    low, high = np.asarray(jax.jit(streaming.bootstrap)(tally, key))
    mean = (value * rows[:, None, None]).sum(0) / rows.sum()
    assert (low < mean).all()
    assert (mean < high).all()
    np.testing.assert_allclose(high - low, 2 * 1.96 / math.sqrt(50), rtol=0.3)


def test_the_table_is_whole_or_not_there(tmp_path):
    tally = streaming.MeasureSums(
        jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.array(1.0), jnp.array(4.0)
    )
    columns = streaming.head_table({"distance": tally, "next": tally._replace(rows=0 * tally.rows)})
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


def test_divergence_of_known_heads_and_of_loops():
    pairs = visible()
    one_hot = np.eye(T)[np.arange(T)]
    even = np.asarray(patterns.uniform_weights(pairs))[0, 0]
    random = np.asarray(random_weights(pairs, 1))[0, 0]
    heads = jnp.asarray(np.stack([one_hot, even, random, even])[None], jnp.float32)
    sums, rows = jax.jit(agreement.divergence_sums)(heads, pairs)
    found = np.asarray(sums) / float(rows)

    def entropy(p):
        return -(p[p > 0] * np.log2(p[p > 0])).sum()

    def divergence(a, b):
        return np.mean(
            [
                entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
                for p, q in zip(a, b, strict=True)
            ]
        )

    for i, j in np.ndindex(4, 4):
        a, b = (np.asarray(heads[0, n], np.float64)[1:] for n in (i, j))
        assert found[i, j] == pytest.approx(divergence(a, b), abs=2e-6)
    assert found[1, 3] == 0
    assert (np.diag(found) == 0).all()


def test_groups_that_are_there_are_found():
    place = np.repeat([0.0, 10.0, 30.0], [2, 5, 3]) + rng.uniform(size=10)
    shuffled = rng.permutation(10)
    distances = abs(place[shuffled][:, None] - place[shuffled][None])
    labels = agreement.cluster(distances, 3)
    truth = np.repeat([2, 0, 1], [2, 5, 3])[shuffled]  # the largest group is number 0
    assert labels.tolist() == truth.tolist()
    assert agreement.silhouette(distances, labels) > 0.9
    assert agreement.silhouette(distances, rng.permutation(labels)) < 0.5
    assert sorted(agreement.cluster(distances, 10)) == list(range(10))
    assert agreement.silhouette(np.array([[0.0, 2], [2, 0]]), np.array([0, 1])) == 0


D, N, H, C = 23, 6, 3, 5


def layer(num_kv_heads, scale=1.0):
    shapes = [(D, N, H), (D, num_kv_heads, H), (D, num_kv_heads, C), (N, C, D)]
    return MultiHeadParams(*(jnp.asarray(rng.normal(size=s) * scale, jnp.float32) for s in shapes))


def products(params, gain=1.0):
    """W_Q W_K^T and W_V W_O of every head as full matrices, in float64."""
    w_q, w_k, w_v, w_o = (np.asarray(w, np.float64) for w in params[:4])
    w_q, w_k, w_v = (np.reshape(gain, (-1, 1, 1)) * w for w in (w_q, w_k, w_v))
    group = N // w_k.shape[1]
    qk = [w_q[:, h] @ w_k[:, h // group].T for h in range(N)]
    return qk, [w_v[:, h // group] @ w_o[h] for h in range(N)]


def test_composition_is_that_of_the_full_matrices():
    earlier, later, gain = layer(2), layer(3), rng.uniform(1, 2, D)
    found = jax.jit(composition)(earlier, later, jnp.asarray(gain, jnp.float32))
    writes, (qk, ov) = products(earlier)[1], products(later, gain)
    norm = np.linalg.norm
    for i, j in np.ndindex(N, N):
        for got, read in ((found.query, qk[j]), (found.key, qk[j].T), (found.value, ov[j])):
            wanted = norm(writes[i] @ read) / (norm(writes[i]) * norm(read))
            assert float(got[i, j]) == pytest.approx(wanted, rel=1e-4)


def test_composition_of_unrelated_heads_is_one_over_root_d():
    squares = [np.square(np.stack(jax.jit(composition)(layer(N), layer(N)))) for _ in range(20)]
    assert math.sqrt(np.mean(squares)) == pytest.approx(1 / math.sqrt(D), rel=0.03)


def test_block_norms_and_what_they_leave_open():
    params = layer(2)
    found = jax.jit(block_norms)(params)
    np.testing.assert_allclose(found.w_o, np.linalg.norm(params.w_o, axis=(1, 2)), rtol=1e-5)
    wanted = [np.linalg.norm(m) for m in products(params)[1]]
    np.testing.assert_allclose(found.w_v_w_o, wanted, rtol=1e-5)
    # The same layer, written with larger values and smaller blocks.
    same = block_norms(params._replace(w_v=3 * params.w_v, w_o=params.w_o / 3))
    np.testing.assert_allclose(same.w_v_w_o, found.w_v_w_o, rtol=1e-5)
    np.testing.assert_allclose(same.w_o, found.w_o / 3, rtol=1e-5)


def test_direct_shares_add_up_to_the_logits():
    config = tiny.TinyConfig(13, d_model=10, num_heads=2, num_kv_heads=1, d_hidden=0)
    shapes = jax.eval_shape(lambda key: tiny.init_tiny(key, config), jax.random.key(1))
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), shapes)
    ids = jnp.asarray(rng.integers(0, 13, (2, T)))

    @jax.jit
    def run(params, ids):
        logits, records = tiny.forward(params, ids, config=config, return_intermediates=True)
        layers = list(zip(params.layers, records, strict=True))
        added = [
            jnp.einsum("bntc,ncd->btd", record.intermediates.head_outputs, layer.attention.w_o)
            for layer, record in layers
        ]
        last, record = layers[-1]
        stream = record.inputs + added[-1] + last.attention.b_o[None, None]
        readout = jnp.moveaxis(params.unembedding[:, ids], 0, -1)
        directions = logit_directions(
            stream, params.output_norm.weight, readout, config.epsilon, centred=True
        )
        heads = jnp.stack(
            [
                logit_shares(record.intermediates.head_outputs, layer.attention.w_o, directions)
                for layer, record in layers
            ]
        )  # (L, B, N, T)
        rest = records[0].inputs + sum(x.attention.b_o[None, None] for x in params.layers)
        total = heads.sum((0, 2)) + jnp.sum(rest * directions, -1)
        bias = jnp.sum(params.output_norm.bias[None, None] * readout, -1)
        logit = jnp.take_along_axis(logits, ids[..., None], -1)[..., 0]
        own = residual_shares(
            records[0].intermediates.head_outputs, params.layers[0].attention.w_o, records[0].inputs
        )
        return total + bias, logit, own, added[0], records[0].inputs

    total, logit, own, added, inputs = run(params, ids)
    np.testing.assert_allclose(total, logit, atol=1e-5)
    assert own.shape == (2, 2, T)
    whole = np.linalg.norm(added, axis=-1) / np.linalg.norm(inputs, axis=-1)
    assert (np.asarray(own).sum(1) >= whole - 1e-5).all()  # norms of parts and of their sum


def test_uninformed_outputs_are_means_of_the_values():
    value = rng.normal(size=(1, 2, T, C))
    found = uninformed_outputs(jnp.asarray(value, jnp.float32), visible(), 4)
    for h, i in np.ndindex(4, T):
        np.testing.assert_allclose(found[0, h, i], value[0, h // 2, : i + 1].mean(0), atol=1e-6)


def test_repeated_sequences():
    period = 5
    draw = jax.jit(lambda key: repeated_tokens(key, 2, period, jnp.arange(100, 131), first_id=0))
    ids = np.asarray(draw(jax.random.key(0)))
    assert ids.shape == (2, 11)
    assert (ids[:, 0] == 0).all()
    assert all(len(set(row[1:6].tolist())) == period for row in ids)
    assert not np.array_equal(ids[0], ids[1])
    pairs = jnp.asarray(np.tril(np.ones((2, 11, 11), bool)))
    pattern, same, copied = jax.jit(
        lambda pairs, ids: (
            targets.on_successor(pairs, ids),
            targets.on_same_token(pairs, ids),
            copied_positions(ids, period),
        )
    )(pairs, ids)
    # Each row of the second copy has one target: the place after the same token in the first.
    assert pattern.counted.sum(1).tolist() == [period] * 2
    score = np.asarray(pattern.score)
    for row in range(6, 11):
        assert np.flatnonzero(score[0, row]).tolist() == [row - period + 1]
    assert np.flatnonzero(copied[0]).tolist() == [7, 8, 9, 10]
    assert np.flatnonzero(same.score[1, 8]).tolist() == [3]


PAIRS, IDS = jnp.ones((1, 2, 2), bool), jnp.zeros((1, 2), jnp.int32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: patterns.on_target(PAIRS, jnp.ones((1, 2, 2))), "target: expected booleans"),
        (lambda: patterns.on_target(PAIRS[0], PAIRS), r"visible: expected axes \(B, T, S\)"),
        (lambda: targets.in_window(PAIRS, -1), "width: expected 0 or more; got -1"),
        (lambda: targets.on_flagged(PAIRS, PAIRS[0]), r"flags: expected axes \(B, S\) = \(1, 2\)"),
        (lambda: targets.on_same_token(PAIRS, IDS[0]), r"token_ids: expected axes \(B, T\)"),
        (lambda: targets.on_successor(PAIRS[:, :1], IDS), r"visible: expected axes \(B, T, T\)"),
        (
            lambda: patterns.mean_score(jnp.ones((1, 2, 2)), patterns.distance(PAIRS)),
            r"weights: expected axes \(B, N, T, S\) = \(1, N, 2, 2\); got shape \(1, 2, 2\)",
        ),
        (
            lambda: patterns.visible_pairs(padding(jnp.array([1, 2])), 3, 2),
            r"mask: expected one for all heads, axes \(B, 1, T, S\) = \(3, 1, 2, 2\)",
        ),
        (
            lambda: streaming.measure_heads([jnp.ones((1, n, 2, 2)) for n in (1, 2)], PAIRS, {}),
            "weights: expected for each layer axes",
        ),
        (lambda: agreement.cluster(np.ones((2, 3)), 1), r"distances: expected axes \(M, M\)"),
        (lambda: agreement.cluster(np.eye(2), 3), "num_clusters: expected from 1 to 2; got 3"),
        (lambda: agreement.silhouette(np.eye(2), np.zeros(2)), "labels: expected two groups"),
        (lambda: repeated_tokens(jax.random.key(0), 1, 3, IDS[0]), "period: expected from 1 to"),
        (
            lambda: repeated_tokens(jax.random.key(0), 1, 1, IDS[0], copies=1),
            "copies: expected 2 or more; got 1",
        ),
        (
            lambda: composition(layer(2), layer(2)._replace(w_k=jnp.ones((D + 1, 2, H)))),
            "later: expected inputs as wide as what earlier writes, 23",
        ),
        (
            lambda: residual_shares(
                jnp.ones((1, 2, 3, 4)), jnp.ones((2, 5, 6)), jnp.ones((1, 3, 6))
            ),
            r"head_outputs: expected axes \(B, N, T, C\) with N, C = \(2, 5\)",
        ),
        (
            lambda: uninformed_outputs(jnp.ones((1, 2, 2, 1)), PAIRS, 3),
            "num_heads: expected a multiple of 2; got 3",
        ),
    ],
)
def test_bad_input(no_type_checks, call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_excess_is_zero_for_the_uninformed_and_one_for_the_pure():
    pairs = visible(batch=2)
    pure = jnp.zeros((2, 1, T, T)).at[:, :, jnp.arange(1, T), jnp.arange(T - 1)].set(1.0)
    pure = pure.at[:, :, 0, 0].set(1.0)
    even = patterns.uniform_weights(pairs)
    ids = jnp.zeros((2, T), jnp.int32)
    found = measured([jnp.concatenate([pure, even], 1)], pairs, ids, ids == 0)
    excess = streaming.above_chance(streaming.add_texts(found)["previous"])
    np.testing.assert_allclose(excess, [[1.0, 0.0]], atol=1e-6)
    assert streaming.above_chance(found["previous"]).shape == (2, 1, 2)  # text by text


def test_resampled_tallies_add_up_the_texts_that_were_drawn():
    tally = streaming.MeasureSums(
        jnp.array([[[1.0]], [[10.0]], [[100.0]]]), jnp.array([1.0, 2.0, 4.0]), jnp.ones(3)
    )
    drawn = jax.jit(streaming.resampled, static_argnums=2)(tally, jax.random.key(0), 50)
    assert drawn.total.shape == (50, 1, 1)
    np.testing.assert_allclose(drawn.rows, 3)
    for total, null in zip(drawn.total[:, 0, 0].tolist(), drawn.null.tolist(), strict=True):
        times = [int(total) // 10**k % 10 for k in range(3)]
        assert sum(times) == 3
        assert null == times[0] + 2 * times[1] + 4 * times[2]
    low, high = jax.jit(streaming.bootstrap)(tally, jax.random.key(0))
    assert 1 <= float(low[0, 0]) < 37 < float(high[0, 0]) <= 100


def test_attention_between_words(no_type_checks):
    owner = np.array([-1, 0, 0, 1, 2, -1])
    weights = rng.dirichlet(np.ones(6), size=(3, 6))
    between = words.word_weights(weights, owner)
    assert between.shape == (3, 3, 3)
    wanted = weights[1, [1, 2]].mean(0)
    np.testing.assert_allclose(between[1, 0], [wanted[1] + wanted[2], wanted[3], wanted[4]])
    special = weights[:, :, [0, 5]].sum(-1)
    rows = np.stack([special[:, [1, 2]].mean(-1), special[:, 3], special[:, 4]], -1)
    np.testing.assert_allclose(between.sum(-1) + rows, 1)
    with pytest.raises(ValueError, match="weights: expected axes"):
        words.word_weights(weights[:, :5], owner)


def test_the_most_attended_other_word():
    between = np.array([[[0.9, 0.5, 0.1], [0.2, 0.7, 0.1], [0.3, 0.2, 0.5]]])
    assert words.most_attended(between, 0, is_causal=False).tolist() == [1]
    assert words.most_attended(between, 2, is_causal=True).tolist() == [0]
    assert words.most_attended(between, 1, is_causal=True).tolist() == [0]
    with pytest.raises(ValueError, match="word: expected one that sees another"):
        words.most_attended(between, 0, is_causal=True)


def test_words_of_tokens_with_a_tokenizer_that_cuts_words():
    class Encoding:
        offsets = ((0, 0), (0, 2), (2, 5), (5, 6), (6, 10), (10, 11), (0, 0))

    class Model:
        class tokenizer:
            encode = staticmethod(lambda text: Encoding)

    given = ["Kings", ",", "now", "."]
    assert words.join_words(given) == "Kings, now."
    assert words.word_of_tokens(Model, given).tolist() == [-1, 0, 0, 1, 2, 3, -1]
    with pytest.raises(ValueError, match="none for words"):
        words.word_of_tokens(Model, [*given, "then", "."])
