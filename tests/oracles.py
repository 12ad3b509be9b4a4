"""Attention and its gradients by loops in float64: what everything else is compared with.

numpy alone (JAX takes trees apart, and holds what is drawn), and nothing of the package: each row
is computed from the pairs it may see and from no other, so that what a mask hides never enters. The
gradients are written out by hand; ``test_reference.py`` holds them to finite differences.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

__all__ = [
    "Gradients",
    "attention",
    "attention_gradients",
    "close",
    "draw",
    "finite_difference",
    "layer",
    "visible_pairs",
]


class Gradients(NamedTuple):
    """The gradients of ``sum(output * d_output) + sum(lse * d_lse)``, each of its operand's shape.

    ``bias`` has the full shape of the scores: sum it over the axes that were broadcast.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    bias: np.ndarray
    scale: float


def draw(*shape: int, seed: int = 0, dtype: str = "float32") -> jax.Array:
    """Draw normal numbers: others for another shape or seed."""
    return jnp.asarray(np.random.default_rng([seed, *shape]).standard_normal(shape), dtype)


def visible_pairs(
    rule: Callable[[tuple[int, ...], int, int, int], bool], shape: tuple[int, ...]
) -> np.ndarray:
    """Ask a rule for every pair of scores ``(…, N, T, S)``, one by one, whether it may be seen."""
    visible = np.zeros(shape, bool)
    for place in np.ndindex(*shape):
        *batch, n, i, j = place
        visible[place] = rule(tuple(batch), n, i, j)
    return visible


def _sum_groups(array: np.ndarray, group: int) -> np.ndarray:
    *batch, num_heads, length, width = array.shape
    return array.reshape(*batch, num_heads // group, group, length, width).sum(axis=-3)


def _wide(*arrays: np.ndarray | None) -> list[np.ndarray | None]:
    return [None if array is None else np.asarray(array, np.float64) for array in arrays]


def _row(
    query: np.ndarray, keys: np.ndarray, bias: np.ndarray, scale: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """The products, the weights and the log-sum-exp of one query and the keys it sees."""
    products = np.array([sum(a * b for a, b in zip(query, key, strict=True)) for key in keys])
    scores = scale * products + bias
    maximum = scores.max()
    exponentials = np.exp(scores - maximum)
    total = exponentials.sum()
    return products, exponentials / total, maximum + math.log(total)


def _prepared(
    query: Any, key: Any, value: Any, visible: Any = True, bias: Any = None, scale: Any = None
) -> tuple[Any, ...]:
    """Operands in float64, a key/value head for each query head; mask, bias, scale and group."""
    query, key, value, bias = _wide(query, key, value, bias)
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    shape, group = (*query.shape[:-1], key.shape[-2]), query.shape[-3] // key.shape[-3]
    bias = np.broadcast_to(0.0 if bias is None else bias, shape)
    visible = np.broadcast_to(visible, shape) & (bias > -np.inf)
    keys, values = (np.repeat(x, group, axis=-3) for x in (key, value))
    return query, keys, values, visible, bias, scale, group


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    visible: np.ndarray | bool = True,
    bias: np.ndarray | None = None,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return output ``(…, N, T, C)``, log-sum-exp ``(…, N, T)`` and weights ``(…, N, T, S)``.

    Operands are heads first and have at least three axes; ``visible`` and ``bias`` broadcast to
    ``(…, N, T, S)``.
    """
    given = _prepared(query, key, value, visible, bias, scale)
    query, key, value, visible, bias, scale, _ = given
    output = np.zeros((*query.shape[:-1], value.shape[-1]))
    lse = np.full(query.shape[:-1], -np.inf)
    weights = np.zeros(visible.shape)
    for row in np.ndindex(*query.shape[:-1]):
        head, seen = row[:-1], np.flatnonzero(visible[row])
        if seen.size:
            _, probabilities, lse[row] = _row(query[row], key[head][seen], bias[row][seen], scale)
            weights[row][seen] = probabilities
            for j, probability in zip(seen, probabilities, strict=True):
                output[row] += probability * value[head][j]
    return output, lse, weights


def attention_gradients(
    *operands: Any, d_output: np.ndarray, d_lse: np.ndarray | None = None, **structure: Any
) -> Gradients:
    """Return the gradients of :func:`attention`, called alike, for output and log-sum-exp.

    With weights ``p``, ``dp_j = d_output · v_j`` and ``ds_j = p_j (dp_j - sum(p dp) + d_lse)``
    for each query; the keys and values of a group get the sum over its query heads.
    """
    query, key, value, visible, bias, scale, group = _prepared(*operands, **structure)
    d_output, d_lse = _wide(d_output, d_lse)
    d_query, d_key, d_value = np.zeros(query.shape), np.zeros(key.shape), np.zeros(value.shape)
    d_bias, d_scale = np.zeros(visible.shape), 0.0
    for row in np.ndindex(*query.shape[:-1]):
        head, seen = row[:-1], np.flatnonzero(visible[row])
        if not seen.size:
            continue
        products, p, _ = _row(query[row], key[head][seen], bias[row][seen], scale)
        d_p = np.array([np.dot(d_output[row], value[head][j]) for j in seen])
        d_scores = p * (d_p - np.dot(p, d_p))
        if d_lse is not None:
            d_scores = d_scores + p * d_lse[row]
        for j, weight, d_score, product in zip(seen, p, d_scores, products, strict=True):
            d_query[row] += scale * d_score * key[head][j]
            d_key[head][j] += scale * d_score * query[row]
            d_value[head][j] += weight * d_output[row]
            d_bias[row][j] = d_score
            d_scale += d_score * product
    return Gradients(
        d_query, _sum_groups(d_key, group), _sum_groups(d_value, group), d_bias, d_scale
    )


def finite_difference(
    function: Callable[[np.ndarray], float], x: np.ndarray, step: float = 1e-5
) -> np.ndarray:
    """Return the gradient of a scalar function by central differences, scaled to each entry."""
    x = np.array(x, np.float64)
    gradient = np.zeros(x.shape)
    for place in np.ndindex(*x.shape):
        h = step * max(1.0, abs(x[place]))
        above, below = x.copy(), x.copy()
        above[place] += h
        below[place] -= h
        gradient[place] = (function(above) - function(below)) / (above[place] - below[place])
    return gradient


def close(got: Any, expected: Any, tolerance: float = 1e-12) -> None:
    """Hold each array of two trees within a part of its largest entry (of 1 where that is less)."""
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    for mine, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.shape(mine) == np.shape(other)
        mine, other = (np.asarray(x).astype(np.float64) for x in (mine, other))
        size = max(1.0, np.abs(other).max(initial=0.0))
        np.testing.assert_allclose(mine / size, other / size, rtol=0, atol=tolerance)


def layer(params, query, key=None, value=None, *, visible=True, bias=None, scale=None, gates=None):
    """Return what a multi-head layer gives, head by head, by matrices cut out as blocks.

    ``params`` has the fields of ``MultiHeadParams``; the inputs are ``(…, T, D)``.
    """
    key = query if key is None else key
    value = key if value is None else value

    def project(x, weight, bias):
        heads = []
        for h in range(weight.shape[1]):
            head = np.asarray(x, np.float64) @ np.asarray(weight[:, h], np.float64)
            heads.append(head if bias is None else head + np.asarray(bias[h], np.float64))
        return np.stack(heads, axis=-3)

    q = project(query, params.w_q, params.b_q)
    k = project(key, params.w_k, params.b_k)
    v = project(value, params.w_v, params.b_v)
    heads, _, _ = attention(q, k, v, visible, bias, scale)
    output = 0.0
    for h in range(heads.shape[-3]):
        gate = 1.0 if gates is None else float(gates[h])
        output = output + gate * heads[..., h, :, :] @ np.asarray(params.w_o[h], np.float64)
    return output if params.b_o is None else output + np.asarray(params.b_o, np.float64)
