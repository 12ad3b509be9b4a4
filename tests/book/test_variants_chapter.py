"""The variants of the layer: their lines differentiated, their counts against the package's."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.costs import (
    attention_size,
    forward_matmul_flops,
    kv_cache_bytes,
    latent_size,
    visible_pair_count,
)
from mha_book.notation import System
from tests.book import gates
from tests.book.equations import EXECUTED
from tests.book.executed import _given, _shown, _whole
from tests.book.extensions import ROOT
from tests.book.test_equations import page_equations

LINES = [label for label, of in EXECUTED.items() if of.within and label.startswith("variant-")]
LENGTH = 100_000


def test_every_variant_of_the_page_is_run_within_the_layer():
    labels = (label for label, _ in page_equations(ROOT)["further-inference"])
    shown = {label for label in labels if label.startswith("variant-")}
    assert shown == {*LINES, "variant-layer", "variant-subtraction"}


@pytest.mark.parametrize(
    "label", [x if x == "variant-sink" else pytest.param(x, marks=pytest.mark.slow) for x in LINES]
)
def test_the_derived_backward_pass_is_that_of_jax(label):
    with jax.enable_x64(True):
        whole = System.parse(_whole(_shown()[label], EXECUTED[label]), scalars={})
        given, _ = _given(EXECUTED[label])
        arrays = {n: jnp.asarray(x, jnp.float64) for n, x in given.items() if np.ndim(x)}
        numbers = {n: x for n, x in given.items() if not np.ndim(x)}
        y, pull = whole.vjp({**arrays, **numbers}, wrt=list(arrays))
        pushed = jnp.asarray(np.random.default_rng(1).normal(size=y.shape))

        def loss(arrays):
            return jnp.sum(whole({**arrays, **numbers})["Y"] * pushed)

        found, wanted = pull(pushed), jax.grad(loss)(arrays)
        assert found.keys() == wanted.keys()
        for name in wanted:
            np.testing.assert_allclose(found[name], wanted[name], atol=1e-8, rtol=1e-8)


def printed():
    """The table of counts as text."""
    page = gates.load(ROOT / "book" / "further-inference.ipynb")
    (cell,) = (c for c in page.cells if c.id == "table")
    return "".join(out.get("data", {}).get("text/plain", "") for out in cell.outputs)


def table():
    """Weights in millions, numbers kept and operations in millions, by the name of the layer."""
    rows = re.findall(r"^([a-zA-Z- ]+?) +([\d.]+) +([\d,]+) +([\d,]+) +[\d.]+", printed(), re.M)
    return {
        name: (float(m), int(kept.replace(",", "")), int(flops.replace(",", "")))
        for name, m, kept, flops in rows
    }


def counts(size, kept):
    """What the package's formulas say: products of weights once, of pairs for all positions."""
    operations = 2 * size.weight_count + forward_matmul_flops(size, pair_count=LENGTH)
    return size.weight_count / 1e6, kept, operations / 1e6


@pytest.mark.parametrize("name, groups", [("multi-head", 32), ("grouped", 8), ("multi-query", 1)])
def test_the_table_has_the_counts_of_the_package(name, groups):
    size = attention_size(2048, 32, groups, 64)
    wanted = counts(size, kv_cache_bytes(size, position_count=1, bytes_per_element=1))
    weights, kept, operations = table()[name]
    assert weights == pytest.approx(wanted[0], abs=0.06)
    assert kept == wanted[1]
    assert operations - wanted[2] == pytest.approx(16, abs=1)  # the softmax: five for each weight


def test_prefill_of_grouped_heads_is_that_of_the_package():
    """Two products a pair, a softmax and a factor; all 16 layers."""
    found = float(re.search(r"^grouped +(?:[\d.,]+ +){5}([\d.]+)", printed(), re.M)[1])
    pairs = visible_pair_count(LENGTH, LENGTH)
    size = attention_size(2048, 32, 8, 64)
    wanted = forward_matmul_flops(size, token_count=LENGTH, pair_count=pairs) + 6 * 32 * pairs
    assert found == pytest.approx(16 * wanted / 1e15, abs=0.006)


def test_the_latent_layer_has_the_counts_of_the_package():
    size = latent_size(2048, 32, 256, 64, 32, 64, is_absorbed=True)
    weights, kept, operations = table()["latent"]
    assert kept == kv_cache_bytes(size, position_count=1, bytes_per_element=1) == 288
    assert weights == pytest.approx(12.1)
    pairs = forward_matmul_flops(size, pair_count=LENGTH) / 1e6
    added = 32 * LENGTH * (5 + 2) / 1e6  # softmax; the sum of both parts of a score, its factor
    assert operations - pairs - added == pytest.approx(2 * weights, abs=3)


def test_the_table_has_22_layers_and_the_rest_keep_what_is_said():
    found = table()
    assert len(found) == 22
    assert found["tied"][1] == 8 * 64 + 32
    assert found["grouped latent"][1] == found["low-rank"][1] == found["latent"][1]
    assert found["tensor product"][1] == 4 * (32 + 64)
    assert found["multi-matrix"][1] == 2 * 128
    assert found["windows"][1] == round(4096 * (1 + 1024 / LENGTH) / 2)
    assert found["cross-layer"][1] == 4096 / 2
    assert found["selected keys"][1] == 4096 + 64
    assert found["hybrid"][1] == 4096 / 4
    for name in ("differential", "gated", "mixture of heads", "talking heads", "knocking heads"):
        assert found[name][1] == found["multi-head"][1]
