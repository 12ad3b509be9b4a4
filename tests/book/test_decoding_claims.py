"""The evidence for the claim of the chapter on writing one token."""

import json

import jax
import jax.numpy as jnp

from mha_book import scaled_dot_product_attention
from mha_book.costs import attention_size, forward_matmul_flops, kv_cache_bytes, traced_matmul_flops
from mha_book.multihead.cache import attend_cached, init_cache
from tests.book.extensions import ROOT
from tests.book.verdicts import decides


def test_c31_fewer_bytes_and_as_many_operations():
    slots, heads, width = 128, 32, 16
    query = jax.ShapeDtypeStruct((2, heads, 1, width), jnp.float32)
    read = {}
    for k in (32, 8, 1):
        cache = jax.eval_shape(lambda k=k: init_cache(2, k, slots, width))
        program = jax.jit(attend_cached).lower(query, cache).compile()
        size = attention_size(heads * width, heads, k)
        wanted = kv_cache_bytes(size, position_count=2 * slots, bytes_per_element=4)
        others = 4 * 2 * heads * width + 4 * 2  # the query and the lengths
        read[k] = program.memory_analysis().argument_size_in_bytes
        assert wanted <= read[k] <= wanted + others
        counted = traced_matmul_flops(
            scaled_dot_product_attention,
            query,
            *(jax.ShapeDtypeStruct((2, k, slots, width), jnp.float32) for _ in range(2)),
        )
        assert counted == forward_matmul_flops(size, pair_count=2 * slots)
    assert read[32] > 3.5 * read[8]


def test_c31_measured_steps():
    path = ROOT / "benchmarks" / "results" / "decode-cpu.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    ratio = {
        part: dict(zip(found["kv_heads"], found["ratio"], strict=True))
        for part, found in stored["sharing"].items()
    }
    # A step over a long cache gets much faster, if less than its bytes say; a prompt does not.
    assert ratio["decode"][8]["upper_quartile"] < 0.75
    assert 1 / 32 < ratio["decode"][1]["median"] < 0.25
    # The same operations take far less in all with one key head than a step with eight takes.
    assert ratio["decode"][1]["median"] < ratio["decode"][8]["median"] / 2
    assert ratio["prefill"][8]["median"] > 0.75
    assert ratio["prefill"][1]["median"] > 0.75
    line = stored["growth"]["attention"]
    assert line["slope_s_per_token"] * line["lengths"][-1] > 2 * abs(line["intercept_s"])
    # For one short sequence the weights take most of a step: little is left to save.
    model = stored["growth"]["SmolLM2"]
    assert model["slope_s_per_token"] * 100 < model["intercept_s"] / 4
    decides("C31", "holds if")
