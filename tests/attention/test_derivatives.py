"""The two faces of a derivative whose transpose is written by hand."""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import Mask, attend, padding, segments
from mha_book.attention.derivatives import with_gradient_by_hand

calls: list[str] = []

# Several arguments and results, whose Jacobian is not symmetric.
MIXED = np.array([[2.0, -1.0], [0.5, 3.0], [-4.0, 1.5]])
STILL = np.array([0.5, 2.0])
Wave = tuple[jax.Array, jax.Array, jax.Array]


def plain_wave(wave: Wave, offset: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two results of three arrays in one argument; the last of them and the offset stand still."""
    x, y, factor = wave
    factor, offset = jax.lax.stop_gradient((factor, offset))
    return MIXED @ (jnp.sin(x) * jnp.exp(y) * factor) + offset, x**2 * y


def wave_backward(wave: Wave, d: tuple[jax.Array, jax.Array]) -> tuple[Any, None]:
    x, y, factor = wave
    inner = MIXED.T @ d[0] * factor * jnp.exp(y)
    return (inner * jnp.cos(x) + 2 * x * y * d[1], inner * jnp.sin(x) + x**2 * d[1], None), None


def wave_reference(wave: Wave, offset: jax.Array) -> tuple[jax.Array, jax.Array]:
    calls.append("reference")
    return plain_wave(wave, offset)


by_hand = with_gradient_by_hand(
    lambda wave, offset: (plain_wave(wave, offset), wave), wave_backward, wave_reference
)


@pytest.fixture
def wave() -> Iterator[Wave]:
    with jax.enable_x64(True):
        yield jnp.array([0.3, 1.1]), jnp.array([-0.7, 0.2]), jnp.asarray(STILL)


def close(got: Any, expected: Any) -> None:
    jax.tree.map(
        lambda g, e: np.testing.assert_allclose(g, e, rtol=1e-12, atol=1e-12), got, expected
    )


def loss_of(function: Callable[..., Any]) -> Callable[[Wave], jax.Array]:
    def loss(wave: Wave) -> jax.Array:
        u, w = function(wave, jnp.ones(3))
        return jnp.sum(u**2) + jnp.sum(w**3)

    return loss


def test_each_part_has_its_own_gradient_and_none_is_zero(wave: Wave) -> None:
    offset, d = jnp.array([1.0, 2.0, 3.0]), (jnp.array([1.0, -2.0, 0.5]), jnp.array([0.7, 3.0]))
    got, expected = (jax.vjp(f, wave, offset)[1](d) for f in (by_hand, plain_wave))
    close(got, expected)
    assert not got[0][2].any()
    assert not got[1].any()


def test_transposed_twice_it_is_the_derivative(wave: Wave) -> None:
    """Forward again: the pullback is linear, and its own pullback is the forward derivative."""
    offset, d = jnp.ones(3), (jnp.ones(3), jnp.ones(2))
    _, pull = jax.vjp(lambda wave: by_hand(wave, offset), wave)
    (again,) = jax.vjp(pull, d)[1]((wave,))
    close(again, jax.jvp(lambda wave: plain_wave(wave, offset), (wave,), (wave,))[1])


@pytest.mark.parametrize(
    "twice",
    [jax.hessian, lambda f: jax.jacrev(jax.jacrev(f)), lambda f: jax.jacfwd(jax.jacfwd(f))],
    ids=["forward over reverse", "reverse over reverse", "forward over forward"],
)
def test_second_derivatives_are_those_of_the_reference(
    wave: Wave, twice: Callable[..., Any]
) -> None:
    calls.clear()
    close(*(jax.jit(twice(loss_of(f)))(wave) for f in (by_hand, plain_wave)))
    assert calls


def test_a_gradient_has_the_dtype_of_its_argument() -> None:
    square = with_gradient_by_hand(
        lambda x: (x * x, x), lambda x, d: (2.0 * x.astype("float32") * d.astype("float32"),),
        lambda x: x * x,
    )  # fmt: skip
    gradient = jax.grad(lambda x: square(x).sum())(jnp.array([1.0, 3.0], "bfloat16"))
    assert gradient.dtype == jnp.bfloat16
    assert gradient.tolist() == [2.0, 6.0]


@pytest.fixture
def _only_new_objects() -> Iterator[None]:
    """Leave all older objects out of each search for tracers, of which JAX makes dozens."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_only_new_objects")
@pytest.mark.parametrize("name", ["blockwise", "splash", "manual", "recompute", "decode"])
def test_nothing_of_a_trace_leaks(name: str) -> None:
    """Neither while JAX looks for leaks, nor afterwards, in what it keeps with its programs."""

    def loss(x: jax.Array, mask: Mask) -> jax.Array:
        return attend(x, x, x, mask=mask, is_causal=True, implementation=name).sum()

    def mapped(x: jax.Array, mask: Mask) -> jax.Array:
        return jax.vmap(loss, (0, None))(x, mask).sum()

    x = jnp.ones((2, 1300 if name == "blockwise" else 150, 8))
    mask = segments(jnp.arange(x.shape[1]) // 7) & padding(jnp.array(130))
    with jax.checking_leaks():
        jax.eval_shape(jax.grad(loss), x, mask)
        jax.eval_shape(lambda x: jax.jvp(lambda x: loss(x, mask), (x,), (x,)), x)
        jax.eval_shape(jax.grad(mapped), x[None], mask)
    jax.eval_shape(jax.grad(loss), x[1:], mask)
    gc.collect()
    # The type itself: asking a deprecated proxy of another library for its class warns.
    assert not [one for one in gc.get_objects() if issubclass(type(one), jax.core.Tracer)]
