"""The oracle, and what the probes see, against plain loops and values worked out by hand."""

import math
import types

import jax.numpy
import numpy as np
import pytest

from mha_book.conformance import check_attention, check_model
from mha_book.conformance.oracle import Case, Conventions, attend
from mha_book.conformance.subject import LAYOUTS, from_layout, to_layout
from tests import oracles


def loops(case, window=None, kv="repeat", last=False):
    """Attention entry by entry."""
    (batch, heads, queries, _), (kv_heads, keys) = case.q.shape, case.k.shape[1:3]
    read = [h % kv_heads if kv == "tile" else h // (heads // kv_heads) for h in range(heads)]

    def rule(b, h, i, j):
        own = i + (keys - queries if last else 0)
        return (
            not (case.causal and j > own)
            and not (window and j <= own - window)
            and (case.mask is None or case.mask[(*b, 0, i, j)])
            and (case.segments is None or case.segments[(*b, i)] == case.segments[(*b, j)])
        )

    visible = oracles.visible_pairs(rule, (batch, heads, queries, keys))
    return oracles.attention(case.q, case.k[:, read], case.v[:, read], visible)[0]


def case_of(queries=5, keys=5, kv_heads=2, **given):
    rng = np.random.default_rng(7)
    shapes = (2, 4, queries, 3), (2, kv_heads, keys, 3), (2, kv_heads, keys, 7)
    return Case(*(rng.normal(size=shape) for shape in shapes), **given)


@pytest.mark.parametrize("kv", ["repeat", "tile"])
@pytest.mark.parametrize("last", [False, True])
def test_against_loops(kv, last):
    corner = "bottom-right" if last else "top-left"
    conventions = Conventions(corner=corner, kv_heads=kv)
    mask = np.random.default_rng(8).random((2, 1, 5, 5)) < 0.6
    segments = np.array([[0, 0, 1, 1, 1], [0, 1, 1, 2, 2]])
    for case in (
        case_of(),
        case_of(3, 5, causal=True),
        case_of(5, 3, causal=True),
        case_of(mask=mask, causal=True),
        case_of(segments=segments),
        case_of(causal=True, window=2),
    ):
        expected = loops(case, case.window, kv, last)
        np.testing.assert_allclose(attend(case, conventions), expected, atol=1e-12)


def test_rotary_positions_by_hand():
    q = np.array([[[[1.0, 0.0]] * 2]])  # two positions, one pair of features
    v = np.eye(2)[None, None]
    for kind in ("half", "adjacent"):
        out = attend(Case(q, q, v), Conventions(rope=kind))
        odds = math.exp((1 - math.cos(1)) / math.sqrt(2))  # scores cos 0 and cos 1
        np.testing.assert_allclose(out[0, 0, 0], [odds / (1 + odds), 1 / (1 + odds)])


@pytest.mark.parametrize("layout", ["BNTH", "BTNH", "BTD"])
def test_layouts_come_back(layout):
    x = np.arange(2 * 3 * 5 * 7.0).reshape(2, 3, 5, 7)
    laid = to_layout(x, layout)
    there = from_layout(laid, layout, x.shape)
    np.testing.assert_array_equal(there[1, 4], x[1, :, 4].ravel())
    assert layout in LAYOUTS


def test_an_unknown_bug_is_not_given_a_name():
    report = check_attention(lambda q, k, v: np.sin(v), kind="numpy", layout="BNTH")
    assert not report.passed
    assert not report.bugs
    assert report.counterexample.case.q.shape == (1, 1, 1, 2)
    assert "no known bug" in str(report)


def test_a_mask_that_raises_hides_no_bug():
    def attention(q, k, v, mask=None):  # ~mask raises for floats, so floats show nothing
        scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
        scores = scores if mask is None else np.where(~mask, -1e-9, scores)
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True) @ v

    report = check_attention(attention, layout="BNTH")
    assert [bug.id for bug in report.bugs] == ["hidden-scores-zero"]


def masked(q, k, visible, v):
    scores = np.where(visible, q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1]), -1e9)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True) @ v


def test_a_mask_that_always_raises_fails():
    def attention(q, k, v, mask=None):
        return masked(q, k, True if mask is None else mask.nothing, v)

    report = check_attention(attention)
    assert not report.passed
    assert "raises: " in report.diagnosis[0]


def test_a_mask_may_be_required():
    assert check_attention(lambda q, k, v, mask: masked(q, k, mask, v)).passed
    assert check_attention(lambda q, k, v, mask: masked(q, k, ~mask, v)).passed


def test_a_layout_with_a_batch_is_tried_first():
    report = check_attention(lambda q, k, v, mask: masked(q, k, mask[:1], v))
    assert [bug.id for bug in report.bugs] == ["mask-first-sequence"]


def test_the_bug_of_the_argument_is_named_before_the_general_one():
    def attention(q, k, v, causal=False):
        return masked(q, k, True, v)

    assert check_attention(attention).bugs[0].id == "causal-ignored"


def test_what_is_meant_makes_a_convention_a_bug():
    def tiled(q, k, v):
        k, v = (np.tile(x, (1, q.shape[1] // x.shape[1], 1, 1)) for x in (k, v))
        return attend(Case(*(np.asarray(x, np.float64) for x in (q, k, v))))

    assert check_attention(tiled).passed
    report = check_attention(tiled, expect={"kv_heads": "repeat"})
    assert [bug.id for bug in report.bugs] == ["kv-heads-tiled"]


@pytest.mark.parametrize("shown", ["W", "W + 1"])
def test_a_window_may_be_required_or_a_pair(shown):
    def seen(q, k, left):
        back = np.arange(q.shape[-2])[:, None] + k.shape[-2] - q.shape[-2] - np.arange(k.shape[-2])
        return (back >= 0) & ((left < 0) | (back < left + (shown == "W + 1")))

    def required(q, k, v, window):
        return masked(q, k, seen(q, k, window), v)

    def pair(q, k, v, causal=False, window_size=(-1, -1)):
        left, right = window_size
        assert right in (-1, 0)
        return masked(q, k, seen(q, k, left) | (not causal), v)

    for attention in (required, pair):
        report = check_attention(attention, expect={"window": "W"})
        assert [bug.id for bug in report.bugs] == ["window-one-more"] * (shown == "W + 1")


def test_a_module_may_use_several_libraries():
    def attention(q, k, v):
        scores = q @ k.swapaxes(-1, -2)
        scores[...] /= math.sqrt(q.shape[-1])  # which JAX refuses
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        return powers / powers.sum(-1, keepdims=True) @ v

    mixed = types.FunctionType(attention.__code__, {"np": np, "math": math, "jnp": jax.numpy})
    report = check_attention(mixed)
    assert (report.passed, report.conventions["arrays"]) == (True, "numpy")


def test_what_a_causal_mask_empties_is_told():
    def attention(q, k, v, mask=None, causal=False):
        queries, keys = q.shape[-2], k.shape[-2]
        seen = np.tri(queries, keys, keys - queries if causal else keys, dtype=bool)
        out = masked(q, k, seen if mask is None else seen & mask, v)
        emptied = ~seen.any(-1, keepdims=True)
        hidden = False if mask is None else ~(seen & mask).any(-1, keepdims=True)
        return np.where(emptied, np.nan, np.where(hidden, 0, out))

    assert "NaN" in check_attention(attention).conventions["emptied"]
    report = check_attention(attention, expect={"empty": "zero"})
    assert [bug.id for bug in report.bugs] == ["empty-row-nan"]


def test_a_model_is_a_black_box():
    table = np.random.default_rng(0).normal(size=(64, 64))

    def right(tokens):
        return np.cumsum(table[tokens], axis=1)

    def one_ahead(tokens):
        return table[tokens] + table[np.roll(tokens, -1, axis=1)]

    def mixed(tokens):
        return table[tokens] + table[tokens].mean(0, keepdims=True)

    assert check_model(right).passed
    assert "off by one" in check_model(one_ahead).diagnosis[0]
    assert "others of its batch" in check_model(mixed).diagnosis[0]
