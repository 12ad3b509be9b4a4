"""The evidence for the claims of the chapter on hardware: compiled programs and stored times."""

import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import attend, fuse, init_multi_head
from mha_book.multihead.cache import attend_cached, init_cache
from mha_book.multihead.layer import project_heads
from tests.book.extensions import ROOT
from tests.book.verdicts import decides

STORED = ROOT / "benchmarks" / "results" / "layouts-cpu.json"
N, T, H = 8, 96, 16
pytestmark = pytest.mark.unoptimized


def cases(**wanted):
    found = json.loads(STORED.read_text(encoding="utf-8"))["cases"]
    chosen = [c for c in found if all(c["case"][key] == value for key, value in wanted.items())]
    assert chosen
    return chosen


def over(case, name, by):
    """The median of the ratios of one row's times to those of another in the same round."""
    rows = {row["name"]: row["seconds_per_round"] for row in case["rows"]}
    return float(np.median(np.divide(rows[name], rows[by])))


def program(form, layout):
    shape = (1, N, T, H) if layout == "NTH" else (1, T, N, H)
    x = jax.ShapeDtypeStruct(shape, jnp.float32)
    function = jax.jit(functools.partial(attend, layout=layout, implementation=form))
    return function.lower(x, x, x).compile().as_text()


def test_c13_a_step_over_the_packages_cache_copies_little_of_it():
    query = jax.ShapeDtypeStruct((1, N, 1, 64), jnp.float32)
    cache = jax.eval_shape(lambda: init_cache(1, N, 8192, 64))
    text = jax.jit(attend_cached).lower(query, cache).compile().as_text()
    sizes = [
        4 * np.prod([int(n) for n in shape.split(",")])
        for shape in re.findall(r"= f32\[([\d,]+)\]\S* copy\(", text)
    ]
    assert sum(sizes) < 0.1 * 2 * 4 * 8192 * N * 64


@pytest.mark.parametrize("form", ["reference", "jax_nn"])
@pytest.mark.parametrize("layout", ["NTH", "TNH"])
def test_c13_heads_are_independent_in_either_order(form, layout):
    """Both products run over the heads as their one batch axis, whatever the order was."""
    found = re.findall(
        r"f32\[(\d+),\d+,\d+\]\S* dot\(.*lhs_batch_dims=\{0\}", program(form, layout)
    )
    assert found == [str(N)] * 2


def test_c13_the_cache_of_a_step_is_written_anew():
    """Positions first: more bytes are put into another order, and the step takes longer."""
    (case,) = cases(part="attention", form="decode", queries=1)
    copied = {
        row["name"]: row["operations"]["copied_bytes"]
        for row in case["rows"]
        if row["name"] in ("heads first", "positions first")
    }
    cache = 2 * 4 * case["case"]["keys"] * case["case"]["d_model"]
    assert copied["positions first"] >= cache
    assert copied["heads first"] < copied["positions first"]
    assert over(case, "positions first", "heads first") > 1.5
    decides("C13", "not tested")


def test_c13_a_compiled_layer_has_no_faster_order():
    """Neither order is faster throughout, and none differs by much."""
    for case in cases(part="layer"):
        for name in ("heads first", "positions first", "positions first, converted"):
            assert 0.85 < over(case, name, case["baseline"]) < 1.2
    (step,) = cases(part="attention", form="decode", queries=1)
    for case in cases(part="attention"):
        if case["case"]["queries"] > 1:  # less than for a step
            ratio = over(case, "positions first", "heads first")
            assert 0.8 < ratio < over(step, "positions first", "heads first")


def test_c33_the_forms_give_the_same_numbers():
    params = init_multi_head(jax.random.key(0), N * H, N)
    x = jax.random.normal(jax.random.key(1), (T, N * H))
    weights = (params.w_q, params.w_k, params.w_v)

    @jax.jit
    def gaps():
        joined = jnp.split(project_heads(x, fuse(params).w_qkv), 3, axis=0)
        loop = [jnp.stack([x @ w[:, head] for head in range(N)]) for w in weights]
        three = [project_heads(x, w) for w in weights]
        return [
            jnp.abs(one - other).max()
            for form in (loop, three)
            for one, other in zip(form, joined, strict=True)
        ]

    assert max(float(gap) for gap in gaps()) < 1e-5


def test_c33_a_processor_does_not_decide():
    """Against three products the loop is much slower with gradients and about as fast forward."""
    loop, three = "loop over heads", "three products"
    for case in cases(part="projection", form="compiled, backward"):
        assert over(case, loop, three) > 1.4
    for case in cases(part="projection", form="compiled"):
        assert over(case, loop, three) < 1.35
        if case["case"]["queries"] > 1:
            assert 0.85 < over(case, loop, three) < 1.1
        products = {row["name"]: row["operations"]["products"] for row in case["rows"]}
        assert products[three] == 3
        assert products[loop] == 3 * case["case"]["heads"]
    found = json.loads(STORED.read_text(encoding="utf-8"))["provenance"]
    assert "cpu" in str(found["device"]).lower()  # and the claim is about a GPU
    decides("C33", "undecided")
