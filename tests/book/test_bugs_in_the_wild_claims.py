"""The bugs of the chapter are those of the catalog; the evidence for its claims."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import (
    MultiHeadParams,
    combine_heads,
    init_multi_head,
    multi_head_attention,
    multi_head_attention_with_intermediates,
    split_heads,
)
from mha_book.conformance import check_attention, check_model, mutant
from mha_book.conformance.oracle import TEXTS
from tests.book import gates
from tests.book.verdicts import decides
from tests.scripts import regenerate_layer_peers as peers
from tests.turns import is_turn

CELLS = gates.load(gates.ROOT / "book" / "bugs-in-the-wild.ipynb").cells
BUGS = {cell.id.removeprefix("bug-"): cell for cell in CELLS if cell.id.startswith("bug-")}
TEXT = "\n".join(cell.source for cell in CELLS if cell.cell_type == "markdown")
TOLD = {
    "kv-heads-tiled": {"expect": {"kv_heads": "repeat"}},
    "mask-inverted": {"polarity": "attend"},
    "window-one-more": {"expect": {"window": "W"}},
    "empty-row-mean": {"expect": {"empty": "zero"}},
    "causal-top-left": {"expect": {"corner": "bottom-right"}},
}


def in_turn() -> list:
    """Every bug; two of three are left to the slow tests: the chapter itself runs them all."""
    return [pytest.param(b, marks=[] if is_turn(b) else [pytest.mark.slow]) for b in BUGS]


@pytest.mark.parametrize("bug", in_turn())
def test_a_bug_runs_alone_and_is_that_of_the_catalog(bug, capsys):
    """Pasted into an empty session, its code gives what the catalog's bug of that name gives."""
    names = {"__name__": "pasted"}
    exec(BUGS[bug].source, names)
    said = capsys.readouterr().out
    assert said == gates.printed(BUGS[bug])
    if "attention" in names:
        report = check_attention(names["attention"], **TOLD.get(bug, {}))
        assert report.bugs == (mutant(bug),)
        assert mutant(bug).sentence in " ".join(said.split())
    else:
        problem = TEXTS["models"][bug.replace("-", "_")].split("{")[0]
        assert any(words.startswith(problem) for words in check_model(names["model"]).diagnosis)


def test_the_threads_of_the_catalog_are_cited():
    assert len(BUGS) >= 19
    threads = re.findall(r"\[`([\w.-]+/[\w.-]+)#(\d+)`\]\((\S+?)\)", TEXT)
    assert len(threads) > 40
    for repository, number, address in threads:
        places = (f"https://github.com/{repository}/{kind}/{number}" for kind in ("issues", "pull"))
        assert address in places
    cited = {f"{repository}#{number}" for repository, number, _ in threads}
    assert {thread for seen in TEXTS["seen"].values() for thread in seen} <= cited


def narrow(x):
    return jnp.asarray(x, jnp.float32)


def test_left_multiplication():
    """W X is right for positions in columns; in rows it fails, or mixes positions."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=(4, 4))
    x, square = rng.normal(size=(3, 4)), rng.normal(size=(4, 4))
    np.testing.assert_allclose(w.T @ x.T, (x @ w).T)
    with pytest.raises(ValueError, match="matmul"):
        w @ x
    assert np.abs(w @ square - square @ w).max() > 0.1
    heads = np.asarray(split_heads(narrow(x @ w), 2)).swapaxes(0, 1)
    assert np.abs((w.T @ x.T).reshape(heads.shape) - heads).max() > 0.1
    decides(
        "C34", "holds if", np.allclose(w.T @ x.T, (x @ w).T), np.allclose(w @ square, square @ w)
    )


def test_output_projection_on_the_left():
    """concat[j] is feature j mod H of head j // H; W_O stands on the left of a column alone."""
    rng = np.random.default_rng(1)
    o = rng.normal(size=(3, 4, 2))  # heads, positions, features
    concat = np.asarray(combine_heads(narrow(o)), np.float64)
    for j in range(6):
        np.testing.assert_allclose(concat[:, j], o[j // 2, :, j % 2], atol=1e-6)
    w_o = rng.normal(size=(5, 6))  # (D, N·H)
    for i in range(4):
        entries = [w_o[d, j] * o[j // 2, i, j % 2] for d in range(5) for j in range(6)]
        expected = np.reshape(entries, (5, 6)).sum(axis=1)
        np.testing.assert_allclose(w_o @ concat[i], expected, atol=1e-5)
    with pytest.raises(ValueError, match="matmul"):
        w_o @ concat
    decides(
        "C26",
        "holds if",
        np.allclose(w_o @ concat[i], expected, atol=1e-5),
        w_o.shape[1] == concat.shape[0],
    )


def test_attention_weights_are_computed():
    """They change with the input and grow with its length; the parameters do neither."""
    params = init_multi_head(jax.random.key(3), 6, 3)
    x = jax.random.normal(jax.random.key(4), (5, 6))
    _, first = multi_head_attention_with_intermediates(params, x)
    _, second = multi_head_attention_with_intermediates(params, x[::-1] * 2)
    assert np.abs(first.weights - second.weights).max() > 0.01
    _, longer = multi_head_attention_with_intermediates(params, jnp.tile(x, (2, 1)))
    assert first.weights.shape == (3, 5, 5)
    assert longer.weights.shape == (3, 10, 10)
    forms = jnp.einsum("bha,dha->hbd", params.w_q, params.w_k)
    scores = jnp.einsum("ib,hbd,jd->hij", x, forms, x) / np.float32(np.sqrt(2))
    np.testing.assert_allclose(jax.nn.softmax(scores, axis=-1), first.weights, atol=1e-5)
    decides(
        "C36", "corrected", np.allclose(jax.nn.softmax(scores, axis=-1), first.weights, atol=1e-5)
    )


def test_interface():
    """Both shapes; there is no jnp.randn, and no layer without parameters."""
    assert not hasattr(jnp, "randn")
    x = jax.random.normal(jax.random.key(0), (2, 10, 64))
    assert split_heads(x, 8).shape == (2, 8, 10, 8)
    params = init_multi_head(jax.random.key(1), d_model=64, num_heads=8)
    assert multi_head_attention(params, x, x, x).shape == (2, 10, 64)
    with pytest.raises(TypeError, match="num_heads"):
        multi_head_attention(x, x, x, num_heads=8)
    decides("C11", "corrected", split_heads(x, 8).shape == (2, 8, 10, 8), hasattr(jnp, "randn"))


# What the page says of torch: the stored facts, and torch itself.


def test_the_stored_layer_of_torch_is_ours(layer_peers):
    """The numbers that torch made agree with this package, for both orders of the axes."""
    small = layer_peers["small_layer"]
    d, n = small["d_model"], small["num_heads"]
    into = [narrow(w.T.reshape(d, n, d // n)) for w in np.split(peers.pattern(3 * d, d), 3)]
    w_o = narrow(peers.pattern(d, d, start=1000).T.reshape(n, d // n, d))
    params = MultiHeadParams(*into, w_o)
    x = narrow(peers.pattern(small["first_axis"], small["second_axis"], d, start=2000))
    np.testing.assert_allclose(
        multi_head_attention(params, x), small["output_batch_first"], atol=1e-5
    )
    across = multi_head_attention(params, jnp.swapaxes(x, 0, 1))
    np.testing.assert_allclose(jnp.swapaxes(across, 0, 1), small["output_batch_second"], atol=1e-5)


@pytest.mark.needs_torch
@pytest.mark.filterwarnings("default")
def test_the_split_module(layer_peers):
    """One piece, the whole input; dropout 64; the heads are those of the layer inside."""
    found = peers.module_facts()
    assert found == layer_peers["split_module"]
    assert found["pieces"] == 1
    assert found["shape_of_a_piece"] == found["input_shape"]
    assert (found["third_argument"], found["dropout_of_the_layer"]) == ("dropout", 64.0)
    assert found["error_in_training"] == "ValueError"
    assert found["equals_the_layer_inside"]
    # Every entry along the first axis is mixed with every other, none along the second.
    assert found["changed_by_entry_0_of_axis_0"] == [True, True]
    assert found["changed_by_entry_0_of_axis_1"] == [True, False]
    decides("C37", "corrected", found["equals_the_layer_inside"], found["pieces"] > 1)
