"""The two faces of a derivative whose transpose is written by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.attention.derivatives import with_gradient_by_hand

calls: list[str] = []


def forward(x: jax.Array, n: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return jnp.sin(x) * n, (x, n)


def backward(kept: tuple[jax.Array, jax.Array], d: jax.Array) -> tuple[jax.Array, None]:
    calls.append("by hand")
    return jnp.cos(kept[0]) * kept[1] * d, None


def twin(x: jax.Array, n: jax.Array) -> jax.Array:
    calls.append("twin")
    return jnp.sin(x) * n


function = with_gradient_by_hand(forward, backward, twin)
X, COUNTS = jnp.array([0.3, 1.1, -2.0]), jnp.array([2, 0, 5])


@pytest.fixture(autouse=True)
def _forget() -> None:
    calls.clear()


def total(x: jax.Array) -> jax.Array:
    return jnp.sum(function(x, COUNTS) ** 2)


def plain(x: jax.Array) -> jax.Array:
    return jnp.sum((jnp.sin(x) * COUNTS) ** 2)


@pytest.mark.loose_promotion
@pytest.mark.parametrize("jit", [False, True])
def test_the_reverse_is_the_one_by_hand(jit: bool) -> None:
    gradient = jax.grad(total)
    got = (jax.jit(gradient) if jit else gradient)(X)
    np.testing.assert_allclose(got, jax.grad(plain)(X), rtol=1e-6)
    assert calls == ["by hand"]


@pytest.mark.loose_promotion
def test_forward_mode_asks_neither() -> None:
    got, expected = (jax.jvp(f, (X,), (X,)) for f in (total, plain))
    np.testing.assert_allclose(got, expected, rtol=1e-6)
    assert calls == []


@pytest.mark.loose_promotion
@pytest.mark.parametrize("twice", [jax.hessian, lambda f: jax.jacrev(jax.jacrev(f))])
def test_second_derivatives_are_those_of_the_twin(twice) -> None:
    np.testing.assert_allclose(twice(total)(X), twice(plain)(X), rtol=1e-5, atol=1e-6)
    assert "twin" in calls


@pytest.mark.loose_promotion
@pytest.mark.parametrize("axes", [(0, 0), (0, None), (None, 0)])
def test_mapped_over(axes: tuple) -> None:
    given = (
        jnp.stack([X, 2 * X]) if axes[0] == 0 else X,
        jnp.stack([COUNTS, COUNTS + 1]) if axes[1] == 0 else COUNTS,
    )

    def derived(f):
        return jax.vmap(jax.grad(lambda x, n: jnp.sum(f(x, n) ** 3)), axes)

    expected = derived(lambda x, n: jnp.sin(x) * n)(*given)
    np.testing.assert_allclose(derived(function)(*given), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.loose_promotion
def test_integers_have_no_gradient() -> None:
    gradient = jax.grad(lambda x, n: function(x, n).sum(), (0, 1), allow_int=True)(X, COUNTS)
    assert gradient[1].dtype == jax.dtypes.float0
