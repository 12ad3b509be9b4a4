"""Compiled for TPUs, not run: each implementation, the layer, and what they hold on the chip."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import pytest

from benchmarks.harness import compiled
from mha_book import attend, causal, segments

pytestmark = [pytest.mark.needs_libtpu, pytest.mark.optimized]

T, N, K, H = 1024, 4, 2, 64
SCORES = N * T * T * 4  # bytes of all scores in float32
QUERY, KEY = ((N, T, H), "bfloat16"), ((K, T, H), "bfloat16")
SPLASH = "splash_mha_fwd_no_residuals"
BACKWARD = {"splash_mha_fwd_residuals", "splash_mha_dq_no_residuals", "splash_mha_dkv_no_residuals"}


def gradients(function: Callable[..., jax.Array]) -> Callable[..., Any]:
    """The backward pass alone, of the cotangent that stands last."""
    return lambda *x: jax.vjp(function, *x[:-1])[1](x[-1])


def causally(name: str | None) -> Callable[..., jax.Array]:
    return functools.partial(attend, is_causal=True, implementation=name)


@pytest.mark.parametrize("target", ["v5e", "v6e"])
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_choice_is_splash_attention_and_holds_no_scores(target: str, direction: str) -> None:
    """Not from this machine's platform: from the one that `compile_for` names."""
    forward = direction == "forward"
    function = causally(None) if forward else gradients(causally(None))
    program = compiled.compile_for(
        function, QUERY, KEY, KEY, *([] if forward else [QUERY]), target=target
    )
    assert set(compiled.kernels(program)) == ({SPLASH} if forward else BACKWARD)
    assert compiled.memory(program).temporaries < SCORES / 16
    assert " while(" not in program.as_text()
    for line in program.as_text().splitlines():
        if "tpu_custom_call" in line:  # grouped heads read the keys where they lie
            operands = line.split("operand_layout_constraints=")[1]
            assert operands.count(f"bf16[{K},{T},{H}]") == 2


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_packed_sequences_and_a_soft_cap_reach_the_kernel(direction: str) -> None:
    """No scores are stored, one way or the other."""

    def call(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array) -> jax.Array:
        return attend(q, k, v, mask=causal() & segments(ids), logit_softcap=30.0)

    def pulled(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array, d: jax.Array) -> Any:
        return jax.vjp(lambda *x: call(*x, ids), q, k, v)[1](d)

    batched = [((2, *shape), dtype) for shape, dtype in (QUERY, KEY, KEY, QUERY)]
    given = [*batched[:3], ((2, T), "int32")]
    forward = direction == "forward"
    program = compiled.compile_for(call if forward else pulled, *given, *batched[3 + forward :])
    assert all("segmented" in name for name in compiled.kernels(program))
    assert len(compiled.kernels(program)) == (1 if forward else 3)
    assert compiled.memory(program).temporaries < SCORES / 8
