"""The evidence for the claims of the chapter on what heads cost."""

import jax
import jax.numpy as jnp

from mha_book import init_multi_head, multi_head_attention, multi_head_attention_with_intermediates
from mha_book.costs import attention_size, kv_cache_bytes, traced_matmul_flops
from tests.book.verdicts import decides
from tests.stored.files import result

DATA = result("models.json")
MODELS = {m["name"]: m for m in DATA["models"] if m["latent"] is None}


def shapes(d, n, use_bias=False, k=None, h=None):
    return jax.eval_shape(
        lambda key: init_multi_head(key, d, n, num_kv_heads=k, head_dim=h, use_bias=use_bias),
        jax.random.key(0),
    )


def size(tree):
    return sum(x.size for x in jax.tree.leaves(tree))


def test_four_squares():
    # C04: whatever the number of heads, and under the three conditions alone.
    assert {size(shapes(512, n)) for n in (1, 2, 8, 512)} == {4 * 512**2}
    assert size(shapes(512, 8, use_bias=True)) == 4 * 512**2 + 4 * 512
    assert size(shapes(512, 8, k=2)) < 4 * 512**2 < size(shapes(512, 8, h=128))
    decides("C04", "confirmed", size(shapes(512, 8)) == 4 * 512**2)


def test_the_third_is_the_output_projection():
    # C15: 786 thousand and 1.05 million are with and without W_O; one head can go without.
    for n in (1, 8):
        params = shapes(512, n)
        assert (size(params), size(params[:3])) == (1_048_576, 786_432) == (4 * 512**2, 3 * 512**2)

    def merged_gap(n, d=12):
        """How far the layer is from the one that has W_V W_O, for all heads, in W_V's place."""
        given = init_multi_head(jax.random.key(0), d, n)
        x = jax.random.normal(jax.random.key(1), (5, d))
        product = jnp.einsum("bhc,hcd->bd", given.w_v, given.w_o)
        one = given._replace(
            w_v=jnp.reshape(product, (d, n, d // n)), w_o=jnp.reshape(jnp.eye(d), (n, d // n, d))
        )
        layer = jax.jit(multi_head_attention)
        return float(jnp.abs(layer(given, x) - layer(one, x)).max())

    assert merged_gap(1) < 1e-5
    assert merged_gap(3) > 0.01
    without = params.w_o.size == 1_048_576 - 786_432
    decides("C15", "corrected", without, size(shapes(512, 1)) < size(params))


def test_widths_of_published_heads():
    # C17: the four rows, and how many others do not follow.
    for name, sizes in {
        "BERT-base": (768, 12, 64),
        "GPT-2 small": (768, 12, 64),
        "GPT-3 175B": (12288, 96, 128),
        "T5-small": (512, 8, 64),
    }.items():
        assert tuple(MODELS[name][k] for k in ("d_model", "num_heads", "head_dim")) == sizes
    unusual = {name for name, m in MODELS.items() if m["head_dim"] not in (64, 128)}
    assert unusual >= {"MiniLM-L6", "GPT-J 6B", "GPT-3 2.7B", "GPT-NeoX 20B", "Gemma 7B"}
    assert len(unusual) == 11
    assert len(MODELS) == 45
    assert MODELS["T5-11B"]["num_heads"] * MODELS["T5-11B"]["head_dim"] == 16 * 1024
    widths = [row["head_dim"] for row in DATA["defaults"]]
    usual = sum(h in (64, 128) for h in widths)
    assert 0.7 < usual / len(widths) < 0.85
    decides("C17", "corrected", MODELS["BERT-base"]["head_dim"] == 64)


def test_equal_products_and_more_scores():
    # C20: one head against eight, counted; and measured where the file says.
    x = jax.ShapeDtypeStruct((32, 512), jnp.float32)
    flops = {n: traced_matmul_flops(multi_head_attention, shapes(512, n), x) for n in (1, 8, 64)}
    assert len({*flops.values()}) == 1
    scores = {
        n: jax.eval_shape(
            lambda p, x: multi_head_attention_with_intermediates(p, x)[1].weights, shapes(512, n), x
        ).size
        for n in (1, 8)
    }
    assert scores[8] == 8 * scores[1]
    for case in result("heads-cpu.json")["cases"]:
        ratio = {row["heads"]: row["ratio"]["median"] for row in case["rows"][:-1]}
        spread = abs(case["rows"][-1]["ratio"]["median"] - 1)
        assert ratio[1] < 1 - spread
        assert ratio[64] > 1 + spread
    for name in ("heads-naive-gpu", "heads-gpu"):  # eight are the baseline
        for case in result(f"{name}.json")["cases"]:
            assert next(row for row in case["rows"] if row["heads"] == 1)["ratio"]["median"] < 0.9
    decides("C20", "corrected", len({*flops.values()}) == 1)


def test_growing_by_heads():
    # C21: the printed sizes fit; cost is no reason; not all families do it.
    for d, n in ((512, 8), (768, 12), (1024, 16), (2048, 32)):
        by_heads, by_width = attention_size(d, n), attention_size(d, 8)
        assert d == 64 * n
        assert by_heads.parameter_count == by_width.parameter_count
        assert kv_cache_bytes(by_heads, position_count=7, bytes_per_element=2) == kv_cache_bytes(
            by_width, position_count=7, bytes_per_element=2
        )
    for family, holds in (("GPT-2", True), ("Llama", True), ("T5", False), ("GPT-3", False)):
        widths = {
            m["head_dim"]
            for name, m in MODELS.items()
            if name.startswith((family + " ", family + "-")) and not name.startswith("Llama 2")
        }
        assert (len(widths) == 1) == holds
    decides("C21", "not tested")
