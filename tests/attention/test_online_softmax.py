"""The softmax whose scores come in pieces."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.attention.online_softmax import SoftmaxState, finalize, init, merge, update

pytestmark = pytest.mark.unoptimized
ROWS, KEYS, WIDTH = 5, 13, 3


def operands(seed: int = 0, spread: float = 1.0) -> tuple[jax.Array, jax.Array]:
    rng = np.random.default_rng(seed)
    scores = spread * rng.standard_normal((ROWS, KEYS))
    return jnp.asarray(scores, jnp.float32), jnp.asarray(rng.random((KEYS, WIDTH)), jnp.float32)


def over(pieces: list[tuple[int, int]], scores: jax.Array, values: jax.Array) -> SoftmaxState:
    known = init((ROWS, WIDTH), jnp.float32)
    for first, last in pieces:
        known = update(known, scores[:, first:last], values[first:last])
    return known


def test_two_scores_by_hand() -> None:
    # The scores log 3 and 0 weigh 3 : 1; the largest comes last, so that the first fades.
    known = init((1, 1), jnp.float32)
    known = update(known, jnp.zeros((1, 1)), jnp.full((1, 1), 4.0))
    assert [float(x[0, 0]) for x in known] == [0.0, 1.0, 4.0]
    known = update(known, jnp.full((1, 1), math.log(3.0)), jnp.full((1, 1), 8.0))
    output, lse = finalize(known)
    np.testing.assert_allclose(output, [[7.0]], rtol=1e-6)
    np.testing.assert_allclose(lse, [math.log(4.0)], rtol=1e-6)


@pytest.mark.parametrize("pieces", [[(0, 13)], [(0, 5), (5, 13)], [(i, i + 1) for i in range(13)],
                                    [(7, 13), (0, 2), (2, 7)]])  # fmt: skip
@pytest.mark.parametrize("spread", [1.0, 80.0])
def test_pieces_do_not_matter(pieces: list[tuple[int, int]], spread: float) -> None:
    scores, values = operands(spread=spread)
    output, lse = finalize(over(pieces, scores, values))
    exact = np.asarray(scores, np.float64)
    exponentials = np.exp(exact - exact.max(-1, keepdims=True))
    weights = exponentials / exponentials.sum(-1, keepdims=True)
    np.testing.assert_allclose(output, weights @ np.asarray(values), rtol=0, atol=1e-6)
    expected = exact.max(-1) + np.log(exponentials.sum(-1))
    np.testing.assert_allclose(lse, expected, rtol=1e-6, atol=1e-6)


def test_parts_merge_in_any_order() -> None:
    scores, values = operands(1, 5.0)
    parts = [over([piece], scores, values) for piece in ((0, 4), (4, 9), (9, 13))]
    expected, expected_lse = finalize(over([(0, 13)], scores, values))
    none = init((ROWS, WIDTH), jnp.float32)
    a, b, c = parts
    for merged in (
        merge(merge(a, b), c),
        merge(a, merge(b, c)),
        merge(merge(c, none), merge(b, a)),
    ):
        output, lse = finalize(merged)
        np.testing.assert_allclose(output, expected, atol=1e-6)
        np.testing.assert_allclose(lse, expected_lse, atol=2e-6)


def test_an_empty_piece_changes_nothing() -> None:
    scores, values = operands(3)
    none, some = init((ROWS, WIDTH), jnp.float32), over([(0, 5)], scores, values)
    for known in (none, some):
        found, pull = jax.vjp(lambda known: update(known, scores[:, :0], values[:0]), known)
        jax.tree.map(np.testing.assert_array_equal, found, known)
        jax.tree.map(np.testing.assert_array_equal, pull(some)[0], some)
