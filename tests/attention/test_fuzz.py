"""Masks that nobody wrote: any tree of them, in ``attend``, against plain rules and loops."""

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import Mask, array_mask, attend, causal, padding, sliding_window
from mha_book.attention.dispatch import IMPLEMENTATIONS
from mha_book.masks import segments
from tests import oracles
from tests.attention.contract.cases import Rule

pytestmark = pytest.mark.usefixtures("no_type_checks")

B, N, K, T, S, H = 2, 4, 2, 3, 7, 3


class Drawn(NamedTuple):
    """A mask, and whether in batch entry ``b`` head ``n`` query ``i`` may see key ``j``."""

    mask: Mask
    rule: Rule


def draw_mask(draw: random.Random, depth: int = 3) -> Drawn:
    """Draw a tree of masks: leaves of every kind under ``&``, ``|`` and ``~``."""
    kind = draw.choice(["leaf", "leaf", "and", "and", "or", "not"]) if depth else "leaf"
    if kind == "leaf":
        return draw.choice(LEAVES)(draw)
    one = draw_mask(draw, depth - 1)
    if kind == "not":
        return Drawn(~one.mask, lambda *x: not one.rule(*x))
    other = draw_mask(draw, depth - 1)
    if kind == "and":
        return Drawn(one.mask & other.mask, lambda *x: one.rule(*x) and other.rule(*x))
    return Drawn(one.mask | other.mask, lambda *x: one.rule(*x) or other.rule(*x))


def _offset(draw: random.Random) -> tuple[Any, np.ndarray]:
    one = draw.randint(-T - 2, S + 2)
    each = np.array([draw.randint(-T - 2, S + 2) for _ in range(B)], np.int32)
    forms = (one, np.int64(one), jnp.asarray(one), jnp.asarray(each))
    form = draw.randrange(4)
    return forms[form], each if form == 3 else np.full(B, one)


def _causal(draw: random.Random) -> Drawn:
    offset, each = _offset(draw)
    return Drawn(causal(offset), lambda b, n, i, j: bool(j <= i + each[b]))


def _window(draw: random.Random) -> Drawn:
    window, right = draw.choice((None, 1, 2, np.int32(4))), draw.choice((None, 0, 1, np.int32(3)))
    offset, each = _offset(draw)

    def rule(b: tuple[int, ...], n: int, i: int, j: int) -> bool:
        ahead = j - i - each[b]
        return bool((window is None or ahead > -window) and (right is None or ahead <= right))

    return Drawn(sliding_window(window, right, offset), rule)


def _lengths(draw: random.Random) -> Drawn:
    dtype = draw.choice(("int8", "int32", "uint8", "uint32"))
    keys, queries = (np.array([draw.randint(0, n) for _ in range(B)], dtype) for n in (S, T))
    mask = padding(jnp.asarray(keys), jnp.asarray(queries))
    return Drawn(mask, lambda b, n, i, j: bool(j < keys[b] and i < queries[b]))


def _segments(draw: random.Random) -> Drawn:
    queries, keys = (np.array([[draw.randrange(3) for _ in range(n)] for _ in range(B)])
                     for n in (T, S))  # fmt: skip
    mask = segments(jnp.asarray(queries), jnp.asarray(keys))
    return Drawn(mask, lambda b, n, i, j: bool(queries[b][i] == keys[b][j]))


def _array(draw: random.Random) -> Drawn:
    axes = tuple(draw.choice((1, size)) for size in (B, N, T, S))
    given = np.random.default_rng(draw.randrange(2**32)).random(axes) < draw.random()
    full = np.broadcast_to(given, (B, N, T, S))
    return Drawn(array_mask(jnp.asarray(given)), lambda b, n, i, j: bool(full[*b, n, i, j]))


LEAVES: list[Callable[[random.Random], Drawn]] = [_causal, _window, _lengths, _segments, _array]


@pytest.mark.parametrize(
    "number", [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 60))]
)
def test_every_implementation_that_serves_attends_by_the_rule(number: int) -> None:
    drawn, rng = draw_mask(random.Random(number)), np.random.default_rng(number)
    shapes = (B, N, T, H), (B, K, S, H), (B, K, S, H)
    x = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    visible = oracles.visible_pairs(drawn.rule, (B, N, T, S))
    expected, _, _ = oracles.attention(*x, visible)
    served = 0
    for name in IMPLEMENTATIONS:
        try:
            got = attend(*map(jnp.asarray, x), mask=drawn.mask, implementation=name)
        except NotImplementedError:
            continue
        served += 1
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5, err_msg=name)
    assert served >= 5
