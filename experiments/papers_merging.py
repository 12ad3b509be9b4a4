"""Heads turned before they are merged, and heads as combinations of fewer ones.

What ``experiments.papers`` does to the parameters of a layer. Each change keeps all shapes, so that
one compiled program reads every variant: merged heads are copies of one another.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from mha_book.multihead.parameters import MultiHeadParams


def turns(x: np.ndarray, groups: int, *, by_pairs: bool, rounds: int = 5) -> np.ndarray:
    r"""Return a rotation for each head that brings the heads of a group close to their mean.

    Procrustes: for the mean $M$ of the turned heads of a group, $\hat R = U V^\top$ of
    $X^\top M = U S V^\top$ minimizes $\lVert X R - M \rVert$; the mean is then taken again.
    """
    size, width = len(x) // groups, x.shape[-1]
    found = np.tile(np.eye(width), (len(x), 1, 1))
    for first in range(0, len(x), size):
        members = range(first, first + size)
        for _ in range(rounds):
            target = np.mean([x[h] @ found[h] for h in members], axis=0)
            for h in members:
                if by_pairs:
                    angle = np.angle((np.conj(_pairs(x[h])) * _pairs(target)).sum(0))
                    found[h] = _by_angles(angle)
                else:
                    left, _, right = np.linalg.svd(x[h].T @ target)
                    found[h] = left @ right
    return found


def random_turns(count: int, width: int, seed: int, *, by_pairs: bool) -> np.ndarray:
    """Return rotations as in :func:`turns`, drawn at random."""
    rng = np.random.default_rng(seed)
    if by_pairs:
        return np.stack([_by_angles(a) for a in rng.uniform(0, 2 * np.pi, (count, width // 2))])
    return np.linalg.qr(rng.normal(size=(count, width, width)))[0]


def _pairs(x: np.ndarray) -> np.ndarray:
    return x[..., 0::2] + 1j * x[..., 1::2]


def _by_angles(angle: np.ndarray) -> np.ndarray:
    found = np.zeros((2 * len(angle), 2 * len(angle)))
    even = 2 * np.arange(len(angle))
    found[even, even] = found[even + 1, even + 1] = np.cos(angle)
    found[even, even + 1], found[even + 1, even] = np.sin(angle), -np.sin(angle)
    return found


def turned(params: MultiHeadParams, of_keys: np.ndarray, of_values: np.ndarray) -> MultiHeadParams:
    """Return a layer that computes the same, its keys and values turned, ``(K, H, H)`` each."""
    times = params.w_q.shape[1] // params.w_k.shape[1]
    of_queries, of_outputs = (np.repeat(x, times, axis=0) for x in (of_keys, of_values))

    def apply(weight: Any, turn: np.ndarray) -> Any:
        turn = jnp.asarray(turn, jnp.float32)
        return None if weight is None else jnp.einsum("...nh,nhg->...ng", weight, turn)

    return params._replace(
        w_q=apply(params.w_q, of_queries), b_q=apply(params.b_q, of_queries),
        w_k=apply(params.w_k, of_keys), b_k=apply(params.b_k, of_keys),
        w_v=apply(params.w_v, of_values), b_v=apply(params.b_v, of_values),
        w_o=jnp.einsum("nhd,nhg->ngd", params.w_o, jnp.asarray(of_outputs, jnp.float32)),
    )  # fmt: skip


def _of_keys_and_values(params, change) -> MultiHeadParams:
    """Change keys, then values, each ``(D + 1, K, H)`` with the bias as the last row."""
    found = {}
    for letter in "kv":
        weight, bias = (getattr(params, f"{kind}_{letter}") for kind in "wb")
        rows = weight if bias is None else jnp.concatenate([weight, bias[None]])
        new = jnp.asarray(change(np.asarray(rows, np.float64)), jnp.float32)
        found |= {f"w_{letter}": new[: len(weight)]}
        found |= {} if bias is None else {f"b_{letter}": new[-1]}
    return params._replace(**found)


def merged(params: MultiHeadParams, groups: int) -> MultiHeadParams:
    """Return a layer whose keys and values are the mean of their group, a copy for each head."""

    def mean(rows: np.ndarray) -> np.ndarray:
        size = rows.shape[1] // groups
        means = rows.reshape(len(rows), groups, size, -1).mean(2)
        return np.repeat(means, size, axis=1)

    return _of_keys_and_values(params, mean)


def of_few(params, heads, *, over_features=False) -> tuple[MultiHeadParams, float]:
    """Return a layer whose keys and values come from fewer heads, and the share of squares kept."""
    shares = []

    def cut(rows: np.ndarray) -> np.ndarray:
        flat = rows.reshape(len(rows), -1) if over_features else rows.transpose(1, 0, 2)
        rank = heads * rows.shape[-1] if over_features else heads
        left, size, right = np.linalg.svd(flat.reshape(len(flat), -1), full_matrices=False)
        shares.append((size[:rank] ** 2).sum() / (size**2).sum())
        near = (left[:, :rank] * size[:rank]) @ right[:rank]
        if over_features:
            return near.reshape(rows.shape)
        return near.reshape(rows.shape[1], len(rows), -1).transpose(1, 0, 2)

    return _of_keys_and_values(params, cut), float(np.mean(shares))
