"""Changed lines of a system, and what a step of writing costs by it."""

import numpy as np
import pytest

from mha_book.costs import attention_size, entry_count, pair_matmul_flops
from mha_book.multihead.cache import init_cache
from mha_book.notation import System, multi_head_layer
from mha_book.notation.system import cached_elements, decode_flops, replace_equations

LATENT = r"""
Z^{jn} = X^{jb} W_Z^{bn} \\
S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} W_{UK}^{hna} Z^{jn} \\
O^{hic} = A^{hij} Z^{jn} W_{UV}^{hnc}
"""
GROUPED = r"""
K^{kja} = X^{jb} W_K^{kba} \\
V^{kjc} = X^{jb} W_V^{kbc} \\
S^{kgij} = \frac{1}{\sqrt{d_k}} Q^{kgia} K^{kja} \\
O^{kgic} = A^{kgij} V^{kjc}
"""
SIZES = {"h": 6, "a": 5, "b": 13, "c": 7, "d": 13, "n": 3}


def test_a_line_takes_the_place_of_its_like_and_what_is_not_needed_goes():
    changed = replace_equations(multi_head_layer(), LATENT)
    assert set(changed.names) == {"Q", "Z", "S", "A", "O", "Y"}
    assert changed.inputs == ("X", "W_Q", "W_Z", "W_UK", "W_UV", "W_O")


def test_heads_by_pairs_are_the_grouped_layer():
    changed = replace_equations(multi_head_layer(), GROUPED, split=("h", "kg"))
    grouped = multi_head_layer(grouped=True)
    rng = np.random.default_rng(0)
    k, g, a, b, c, i = 2, 3, 5, 7, 11, 4
    arrays = {
        "X": rng.normal(size=(i, b)),
        "W_Q": rng.normal(size=(k, g, b, a)),
        "W_K": rng.normal(size=(k, b, a)),
        "W_V": rng.normal(size=(k, b, c)),
        "W_O": rng.normal(size=(k, g, c, b)),
    }
    np.testing.assert_allclose(changed(arrays)["Y"], grouped(arrays)["Y"], atol=1e-5)


def test_kept_is_the_cache():
    cache = init_cache(1, 6, 1, 5, value_dim=7)
    layer = multi_head_layer()
    assert sum(cached_elements(layer, **SIZES).values()) == entry_count((cache.keys, cache.values))
    assert cached_elements(replace_equations(layer, LATENT), **SIZES) == {"Z": 3}


def test_a_missing_size_is_an_error():
    with pytest.raises(ValueError, match="K: expected the size of each index"):
        cached_elements(multi_head_layer(), h=2, c=3)


def test_a_step_counts_the_products_that_the_costs_count():
    layer, positions = multi_head_layer(), 1009
    found = decode_flops(layer, positions, **SIZES)
    size = attention_size(13, 6, 6, 5, 7)
    assert found["Q"] + found["K"] + found["V"] + found["Y"] == 2 * size.weight_count
    pairs = pair_matmul_flops(size, pair_count=positions)
    scaling = 6 * 5  # the factor is multiplied into the one query
    assert found["S"] + found["O"] == pairs + scaling


def test_the_order_of_a_latent_step_is_the_absorbed_one():
    # One query: cheaper through the latent than by making a key of every position.
    found = decode_flops(replace_equations(multi_head_layer(), LATENT), 1009, **SIZES)
    pairs = 2 * 1009 * 6 * (3 + 3)  # scores and averages over the latent, of 6 heads
    absorbing = 2 * 6 * 3 * (5 + 7)
    scaling = 6 * 3  # of the queries that meet the latent
    assert found["S"] + found["O"] == pairs + absorbing + scaling


def test_biases_stay_and_other_letters_are_not_split():
    biased = replace_equations(multi_head_layer(use_bias=True), r"A^{hij} = \tanh(S^{hij})")
    assert "b_Q" in biased.inputs
    system = System.parse(
        r"y^{\theta h} = x^{\theta h} \\ z = y^{\theta h} \frac{1}{N}", scalars={"N": "h"}
    )
    split = replace_equations(system, "w = z", split=("h", "kg"))
    assert split.equations[0].free == (r"\theta", "k", "g")
    assert replace_equations(system, "w = z").inputs == ("x",)
