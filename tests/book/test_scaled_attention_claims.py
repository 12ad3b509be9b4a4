"""Evidence for the claims that the chapter on scaled dot-product attention takes up.

Each experiment is run again here, on other random numbers and other text than in the chapter.
"""

import math

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from experiments import empty_rows
from mha_book import (
    attention_weights,
    init_multi_head,
    multi_head_attention,
    scaled_dot_product_attention,
)
from tests import oracles
from tests.book.verdicts import decides
from tests.stored.files import result

TEXT = (
    "We hold these truths to be self-evident, that all men are created equal, that they are "
    "endowed by their Creator with certain unalienable Rights, that among these are Life, Liberty "
    "and the pursuit of Happiness. That to secure these rights, Governments are instituted among "
    "Men, deriving their just powers from the consent of the governed."
)


def softmax(scores):
    e = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def entropy_share(weights):
    w = np.asarray(weights, np.float64)
    logs = np.log(np.where(w > 0, w, 1.0))
    return float(-(w * logs).sum(-1).mean() / math.log(w.shape[-1]))


def sensitivity(weights):
    return float((1 - (np.asarray(weights, np.float64) ** 2).sum(-1)).mean())


@pytest.fixture(scope="module")
def heads(needs_models):
    """Queries, keys, scaled scores, weights (layer, head, …) and the layers' parameters."""
    from mha_book.models.minilm import encode_with_intermediates, load_minilm, tokenize

    model = load_minilm()
    _, records = encode_with_intermediates(model.params, *tokenize(model, [TEXT]))
    inside = [record.intermediates for record in records]
    q, k, a = (np.stack([getattr(x, f)[0] for x in inside]) for f in ("query", "key", "weights"))
    scores = q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1])
    return q, k, scores, a, records, [layer.attention for layer in model.params.layers]


@pytest.mark.needs_models
def test_c19_real_heads_saturate_when_merged_and_not_in_the_control(heads):
    scores = heads[2]
    layers, number, *rest = scores.shape
    assert np.median(scores.std(-1).mean(-1)) > 1  # independent vectors would give 1

    def merged(s, count):
        return s.reshape(layers, number // count, count, *rest).sum(2) / math.sqrt(count)

    rng = np.random.default_rng(13)
    control = scores.copy()
    for layer in range(layers):
        for head in range(number):
            control[layer, head] = scores[layer, head][:, rng.permutation(rest[-1])]
    narrow, wide = (softmax(merged(scores, n)) for n in (1, 12))
    wide_control = softmax(merged(control, 12))
    assert entropy_share(wide) < 0.25 * entropy_share(narrow)
    assert sensitivity(wide) < 0.25 * sensitivity(narrow)
    assert entropy_share(wide_control) > 0.8 * entropy_share(narrow)
    assert sensitivity(wide_control) > 0.9 * sensitivity(narrow)
    decides("C19", "holds if")


def test_c38_token_matrix_and_per_head_forms_agree():
    with jax.enable_x64(True):
        params = init_multi_head(
            jax.random.key(1), d_model=15, num_heads=3, use_bias=True, dtype=jnp.float64
        )
        x = jax.random.normal(jax.random.key(2), (7, 15), jnp.float64)
        layer = np.asarray(multi_head_attention(params, x, implementation="reference"))
    by_token = oracles.layer(params, x)  # in loops over queries and keys
    p = {name: np.asarray(array) for name, array in params._asdict().items()}
    x, by_head = np.asarray(x), []
    for h in range(3):
        q, k, v = (x @ p[f"w_{n}"][:, h] + p[f"b_{n}"][h] for n in "qkv")
        by_head.append(softmax(q @ k.T / math.sqrt(5)) @ v)
    per_head = np.concatenate(by_head, -1) @ p["w_o"].reshape(15, 15) + p["b_o"]
    flat = (x @ p[f"w_{n}"].reshape(15, 15) + p[f"b_{n}"].reshape(15) for n in "qkv")
    q, k, v = (f.reshape(7, 3, 5).transpose(1, 0, 2) for f in flat)
    o = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(5)) @ v
    matrices = o.transpose(1, 0, 2).reshape(7, 15) @ p["w_o"].reshape(15, 15) + p["b_o"]
    apart = max(np.abs(by_token - other).max() for other in (per_head, matrices, layer))
    decides("C38", "confirmed", apart < 1e-12)


@pytest.mark.needs_models
def test_c41_rows_are_stochastic_unless_empty(heads):
    weights = heads[3].astype(np.float64)
    assert ((weights >= 0) & (weights <= 1)).all()
    assert np.abs(weights.sum(-1) - 1).max() < 1e-5
    narrow = weights.astype(ml_dtypes.bfloat16).astype(np.float64)
    assert np.abs(narrow.sum(-1) - 1).max() > 1e-3
    # The ends of the interval are reached by rounding alone.
    q, k = jnp.array([[1.0]]), jnp.array([[0.0], [200.0]])
    assert attention_weights(q, k, scale=1.0).tolist() == [[0.0, 1.0]]
    assert 0 < softmax(np.array([0.0, 200.0]))[0] < 1e-80
    empty = attention_weights(q, k, mask=jnp.zeros((1, 2), bool))
    assert empty.tolist() == [[0.0, 0.0]]
    decides("C41", "confirmed", np.abs(weights.sum(-1) - 1).max() < 1e-5)


@pytest.mark.needs_models
def test_c42_a_head_averages_values_of_visible_tokens(heads):
    *_, records, layers = heads
    record, params = records[4], layers[4]
    x, w_v, b_v = (np.asarray(a, np.float64) for a in (record.inputs[0], params.w_v, params.b_v))
    a = np.asarray(record.intermediates.weights[0], np.float64)
    of_average = np.einsum("hij,jb,bhc->hic", a, x, w_v) + b_v[:, None]
    outputs = np.asarray(record.intermediates.head_outputs[0])
    assert outputs.shape[-1] != x.shape[-1]
    assert np.allclose(of_average, outputs, atol=1e-4)
    # An average lies between the least and the greatest of the values, entry by entry.
    v = np.asarray(record.intermediates.value[0])
    assert (outputs <= v.max(1, keepdims=True) + 1e-5).all()
    assert (outputs >= v.min(1, keepdims=True) - 1e-5).all()
    weights = attention_weights(
        record.intermediates.query, record.intermediates.key, is_causal=True
    )
    assert (np.triu(np.asarray(weights)[0, 0], 1) == 0).all()
    decides(
        "C42",
        "holds if",
        np.allclose(of_average, outputs, atol=1e-4),
        (np.asarray(weights)[0, 0] > 0).all(),
    )


def naive(scores):
    e = jnp.exp(scores)
    return e / e.sum(axis=-1, keepdims=True)


def is_right(weights, scores):
    want = softmax(np.asarray(scores).astype(np.float64))
    return bool(np.allclose(np.asarray(weights).astype(np.float64), want, atol=1e-2))


@pytest.mark.parametrize(
    "dtype, row, right",
    [
        ("float32", [0.0, 80.0], True),
        ("float32", [0.0, 89.0], False),
        ("float32", [88.0] * 4, False),  # the sum overflows, the terms do not
        ("float32", [-200.0, -200.0], False),
        ("bfloat16", [0.0, 80.0], True),
        ("bfloat16", [0.0, 89.0], False),
        ("float16", [0.0, 11.0], True),
        ("float16", [0.0, 12.0], False),
        ("float32", [0.0, -math.inf], True),
    ],
)
def test_c45_exponential_by_sum_fails_out_of_range(dtype, row, right):
    scores = jnp.asarray([row], dtype)
    assert is_right(naive(scores), scores) == right
    assert is_right(naive(scores - scores.max(-1, keepdims=True)), scores)
    decides("C45", "holds if")


# What the chapter says about other libraries.


def test_the_table_of_empty_rows_shows_zero_the_mean_and_nan():
    operands = [jnp.asarray(x) for x in (empty_rows.QUERY, empty_rows.KEY, empty_rows.VALUE)]
    mask = jnp.asarray(empty_rows.VISIBLE)
    middle = [x[:, None] for x in operands]  # (T, N, H)
    ours = scaled_dot_product_attention(*operands, mask=mask)
    by_mask = jax.nn.dot_product_attention(*middle, mask=mask[None])[:, 0]
    bias = jnp.where(mask, 0.0, -jnp.inf)[None]
    by_bias = jax.nn.dot_product_attention(*middle, bias=bias)[:, 0]
    assert (ours[1] == 0).all()
    assert np.allclose(by_mask[1], empty_rows.VALUE.mean(0), atol=1e-4)
    assert jnp.isnan(by_bias[1]).all()
    # The line that the recommendation gives for jax.nn mends its row, gradients included.
    mended = jnp.where(mask.any(-1, keepdims=True), by_mask, 0)
    assert np.allclose(mended, ours, atol=1e-5)
    for answer in result("empty-rows.json")["torch"].values():
        assert np.allclose(answer["other_row"], ours[0], atol=2e-3)
