"""The layer's gradients by hand against automatic differentiation and finite differences."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from mha_book import MultiHeadParams, causal, fuse, multi_head_attention, padding
from mha_book.multihead.dropout import Dropout
from mha_book.multihead.gradient import combine_outputs_vjp, multi_head_attention_vjp
from mha_book.rope import rotary_angles
from tests import oracles
from tests.oracles import close

pytestmark = pytest.mark.usefixtures("float64")

# Distinct primes, except that N = 2 K; the width of rotated heads is even, and 2 the even prime.
B, N, K, T, S, H, C, D, D_K, D_V = 3, 10, 5, 7, 11, 2, 23, 13, 17, 19

draw = functools.partial(oracles.draw, dtype="float64")


def params_of(key_width: int = D, value_width: int = D, value_dim: int = C) -> MultiHeadParams:
    return MultiHeadParams(
        w_q=draw(D, N, H, seed=1) / 4,
        w_k=draw(key_width, K, H, seed=2) / 4,
        w_v=draw(value_width, K, value_dim, seed=3) / 4,
        w_o=draw(N, value_dim, D, seed=4) / 16,
        b_q=draw(N, H, seed=5),
        b_k=draw(K, H, seed=6),
        b_v=draw(K, value_dim, seed=7),
        b_o=draw(D, seed=8),
    )


# --- the pieces ---------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (2, B)])
def test_output_projection(batch: tuple[int, ...]) -> None:
    """Against the sum over indices, O^{hic} dY^{id}."""
    heads, w_o, d_output = draw(*batch, N, T, C), draw(N, C, D), draw(*batch, T, D)
    d_heads, d_w_o, d_b_o = combine_outputs_vjp(heads, w_o, d_output)
    close(d_w_o, jnp.einsum("...hic,...id->hcd", heads, d_output))
    close(d_heads, jnp.einsum("...id,hcd->...hic", d_output, w_o))
    close(d_b_o, d_output.reshape(-1, D).sum(0))


# --- the layer ----------------------------------------------------------------------------------

SELF = (params_of, (T, D))
SHARED = (functools.partial(params_of, D_K, D_K), (T, D), (S, D_K))  # the key is the value too
CROSS = (functools.partial(params_of, D_K, D_V), (T, D), (S, D_K), (S, D_V))
FUSED = (lambda: fuse(params_of(value_dim=H)), (T, D))
FUSED_SHARED = (lambda: fuse(params_of(value_dim=H)), (T, D), (S, D))
NO_BIASES = (lambda: params_of()._replace(b_q=None, b_k=None, b_v=None, b_o=None), (T, D))
NO_BIASES_FUSED = (
    lambda: fuse(NO_BIASES[0]()._replace(w_v=draw(D, K, H), w_o=draw(N, H, D))),
    (T, D),
)

LENGTHS = padding(jnp.array([T - 2, 0, T]))
EVERYWHERE = Dropout(weights=0.2, heads=0.3, output=0.4)


def options(**given: Any) -> dict[str, Any]:
    return given


CASES: dict[str, tuple[tuple, dict[str, Any]]] = {
    "self, causal, late": (SELF, options(mask=causal(2))),
    "self, no biases": (NO_BIASES, options(is_causal=True)),
    "shared": (SHARED, {}),
    "cross, padded": (CROSS, options(mask=padding(jnp.array([S - 2, 0, S])))),
    "fused, shared": (FUSED_SHARED, {}),
    "fused, no biases": (NO_BIASES_FUSED, {}),
    "all, self": (
        SELF,
        options(mask=LENGTHS, is_causal=True, dropout=EVERYWHERE,
                angles=rotary_angles(jnp.arange(T), H)),
    ),
    "all, cross": (CROSS, options(mask=padding(jnp.array([S - 2, 0, S])), dropout=EVERYWHERE)),
    "all, fused": (
        FUSED,
        options(is_causal=True, dropout=EVERYWHERE, angles=rotary_angles(jnp.arange(T), H)),
    ),
}  # fmt: skip
WITH_ALL = ("all, self", "all, cross", "all, fused")  # gates and a bias of the scores too


def case_of(name: str) -> tuple[dict[str, Any], dict[str, Any], jax.Array]:
    """What to differentiate by, what is constant, and the cotangent."""
    (params, *shapes), constants = CASES[name]
    inputs = [draw(B, *shape, seed=9 + n) for n, shape in enumerate(shapes)]
    operands = {"params": params(), **dict(zip(("query", "key", "value"), inputs, strict=False))}
    if name in WITH_ALL:
        key_length = shapes[-1][0]
        operands |= {"gates": draw(N, seed=13), "bias": draw(1, N, T, key_length, seed=14)}
    if "dropout" in constants:
        constants = {**constants, "rng_key": jax.random.key(17)}
    return operands, constants, draw(B, T, D, seed=15)


def hand_gradients(name: str, implementation: str = "manual") -> Any:
    operands, constants, d_output = case_of(name)

    def run(operands: dict[str, Any], d_output: jax.Array) -> Any:
        call = functools.partial(multi_head_attention_vjp, implementation=implementation)
        output, pull = call(**operands, **constants)
        found = pull(d_output)._asdict()
        assert {k for k, v in found.items() if v is not None} == set(operands)
        return output, {k: found[k] for k in operands}

    return jax.jit(run)(operands, d_output)


@pytest.mark.parametrize(  # what differs is attention alone, which has tests of its own
    "name, implementation", [*((name, "manual") for name in CASES), ("all, self", "recompute")]
)
def test_equals_automatic_differentiation(name: str, implementation: str) -> None:
    operands, constants, d_output = case_of(name)

    def run(operands: dict[str, Any], d_output: jax.Array) -> Any:
        output, pull = jax.vjp(lambda x: multi_head_attention(**x, **constants), operands)
        return output, pull(d_output)[0]

    close(hand_gradients(name, implementation), jax.jit(run)(operands, d_output))
