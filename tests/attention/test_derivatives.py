"""The two faces of a derivative whose transpose is written by hand."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.attention.derivatives import with_gradient_by_hand

pytestmark = pytest.mark.unoptimized

calls: list[str] = []


def forward(x: jax.Array, n: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """Add n times: a loop whose end the data know, which JAX cannot differentiate backwards."""
    most = jnp.max(n)
    _, total = jax.lax.while_loop(
        lambda state: state[0] < most,
        lambda state: (state[0] + 1, state[1] + jnp.where(state[0] < n, jnp.sin(x), 0.0)),
        (jnp.zeros_like(most), jnp.zeros_like(x)),
    )
    return total, (x, n)


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
@pytest.mark.parametrize(
    "twice",
    [
        jax.hessian,
        lambda f: jax.jacrev(jax.jacrev(f)),
        lambda f: jax.jacrev(jax.jacfwd(f)),
        lambda f: jax.jacfwd(jax.jacfwd(f)),
    ],
    ids=["forward over reverse", "reverse over reverse", "reverse over forward", "forward twice"],
)
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


# --- several arguments and results, whose Jacobian is not symmetric ------------------------------

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


def wave_twin(wave: Wave, offset: jax.Array) -> tuple[jax.Array, jax.Array]:
    calls.append("twin")
    return plain_wave(wave, offset)


by_hand = with_gradient_by_hand(
    lambda wave, offset: (plain_wave(wave, offset), wave), wave_backward, wave_twin
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


@pytest.mark.parametrize("used", [0, 1])
def test_of_two_results_one_may_be_unused(wave: Wave, used: int) -> None:
    gradients = (
        jax.grad(lambda wave, f=f: jnp.sum(f(wave, jnp.ones(3))[used] ** 2))(wave)
        for f in (by_hand, plain_wave)
    )
    close(*gradients)


def test_transposed_twice_it_is_the_derivative(wave: Wave) -> None:
    """Forward again: the pullback is linear, and its own pullback is the forward derivative."""
    offset, d = jnp.ones(3), (jnp.ones(3), jnp.ones(2))
    _, pull = jax.vjp(lambda wave: by_hand(wave, offset), wave)
    (again,) = jax.vjp(pull, d)[1]((wave,))
    close(again, jax.jvp(lambda wave: plain_wave(wave, offset), (wave,), (wave,))[1])


def test_the_pullback_is_its_own_derivative(wave: Wave) -> None:
    """Where the cotangent alone moves, nothing is differentiated, and the twin is not asked."""
    d, moved = (jnp.ones(3), jnp.ones(2)), (jnp.array([1.0, -2.0, 0.5]), jnp.array([0.7, 3.0]))
    _, pull = jax.vjp(lambda wave: by_hand(wave, jnp.ones(3)), wave)
    close(jax.jvp(pull, (d,), (moved,)), (pull(d), pull(moved)))
    assert calls == []


@pytest.mark.parametrize(
    "twice",
    [jax.hessian, lambda f: jax.jacrev(jax.jacrev(f)), lambda f: jax.jacfwd(jax.jacfwd(f))],
    ids=["forward over reverse", "reverse over reverse", "forward over forward"],
)
def test_second_derivatives_of_a_jacobian_that_is_not_symmetric(
    wave: Wave, twice: Callable[..., Any]
) -> None:
    close(*(jax.jit(twice(loss_of(f)))(wave) for f in (by_hand, plain_wave)))


@pytest.mark.parametrize(
    ("axis", "moving"), [(0, (True, False, False)), (1, (True, True, True))], ids=["one", "all"]
)
@pytest.mark.parametrize(
    "derived",
    [jax.jacfwd, jax.grad, jax.hessian, lambda f: jax.jacrev(jax.jacrev(f))],
    ids=["forward", "reverse", "forward over reverse", "reverse over reverse"],
)
def test_derivatives_of_a_map_and_maps_of_derivatives(
    wave: Wave, axis: int, moving: tuple[bool, ...], derived: Callable[..., Any]
) -> None:
    axes = tuple(axis if moves else None for moves in moving)
    several = tuple(
        jnp.stack([x, 2 * x, -x], axis) if moves else x
        for x, moves in zip(wave, moving, strict=True)
    )
    got, expected = [], []
    for f, found in ((by_hand, got), (plain_wave, expected)):
        mapped = jax.vmap(loss_of(f), (axes,))
        found.append(jax.jit(derived(lambda x, mapped=mapped: jnp.sum(mapped(x))))(several))
        found.append(jax.jit(jax.vmap(derived(loss_of(f)), (axes,)))(several))
    close(got, expected)


def test_a_gradient_has_the_dtype_of_its_argument() -> None:
    square = with_gradient_by_hand(
        lambda x: (x * x, x), lambda x, d: (2.0 * x.astype("float32") * d.astype("float32"),),
        lambda x: x * x,
    )  # fmt: skip
    gradient = jax.grad(lambda x: square(x).sum())(jnp.array([1.0, 3.0], "bfloat16"))
    assert gradient.dtype == jnp.bfloat16
    assert gradient.tolist() == [2.0, 6.0]
