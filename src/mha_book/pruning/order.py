"""In which order heads go: from the least important, ranked once or again after each removal.

An order is an array ``(R, 2)`` of layer and head, the first to go first. With ``group_size`` the
neighbours that share a key/value head go together, ranked by the sum of their importance.

Shapes: ``L`` layers, ``N`` heads, ``R`` heads to remove.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mha_book._checks import as_numbers, check, check_function, check_integers, check_size

__all__ = ["head_mask", "iterative_removal_order", "removal_order"]


def removal_order(importance: Any, group_size: int = 1) -> np.ndarray:
    """Return all heads from the least to the most important.

    It is the importance that is sorted. To sort pairs of number and importance, as
    ``sorted(enumerate(importance))`` does, sorts by number: the heads would go in the order in
    which they stand in the model.

    Args:
        importance: ``(L, N)``.
        group_size: how many neighbours go together; 1 for each head on its own.

    Returns:
        ``(L·N, 2)`` integers; equally important heads in the order of the model.

    Example:
        >>> removal_order(np.array([[0.3, 0.1], [0.2, 0.9]])).tolist()
        [[0, 1], [1, 0], [0, 0], [1, 1]]
        >>> removal_order(np.array([[0.3, 0.1], [0.2, 0.9]]), group_size=2).tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    scores = as_numbers(importance, "importance", "axes (L, N)")
    check(scores.ndim == 2, "importance", "axes (L, N)", f"shape {scores.shape}")
    check(bool(np.isfinite(scores).all()), "importance", "finite numbers", "NaN or inf")
    groups = _groups(scores.shape, group_size)
    return groups[np.argsort(scores.reshape(-1, group_size).sum(1), kind="stable")].reshape(-1, 2)


def iterative_removal_order(
    score: Callable[[Float[Array, "L N"]], Array],
    shape: tuple[int, int],
    num_removed: int,
    *,
    per_round: int = 1,
    group_size: int = 1,
) -> np.ndarray:
    """Return an order in which the heads that are left are scored again after each round.

    What a head is worth depends on the others: of two that do the same, neither is missed alone.

    Args:
        score: from gates ``(L, N)``, 0 for the heads that are gone, to the importance ``(L, N)``
            of the model with these gates.
        shape: ``(L, N)``.
        num_removed: ``R``, how many heads are to go, a multiple of ``group_size``.
        per_round: how many go before the others are scored again, a multiple of ``group_size``.
        group_size: how many neighbours go together.

    Returns:
        ``(R, 2)`` integers.

    References:
        Michel et al., Are sixteen heads really better than one?, 2019, section 4.

    Example:
        >>> alike = lambda gates: jnp.where(gates.sum() > 1, jnp.array([[0.0, 0.1]]), 9.0)
        >>> iterative_removal_order(alike, (1, 2), 1).tolist()
        [[0, 0]]
    """
    check_function(score, "score", "from gates (L, N) to the importance of the heads")
    _check_sizes(shape)
    groups = _groups(shape, group_size)
    for count, name, least in ((num_removed, "num_removed", 0), (per_round, "per_round", 1)):
        what = f"a multiple of {group_size} up to the {groups.size // 2} heads"
        check_size(count, name, least, what)
        check(count <= groups.size // 2 and count % group_size == 0, name, what, count)
    order = np.zeros((0, 2), int)
    while len(order) < num_removed:
        keep = head_mask(order, len(order), shape)
        scored = score(jnp.asarray(keep, jnp.float32))
        importance = as_numbers(scored, "score", f"axes (L, N) = {shape}")
        check(importance.shape == tuple(shape), "score", f"axes (L, N) = {shape}", importance.shape)
        ranked = removal_order(importance, group_size)
        ranked = ranked[keep[ranked[:, 0], ranked[:, 1]]]
        order = np.concatenate([order, ranked[: min(per_round, num_removed - len(order))]])
    return order


def head_mask(order: Any, num_removed: int, shape: tuple[int, int]) -> np.ndarray:
    """Return the mask of the heads that are left after the first of an order are gone.

    Args:
        order: ``(R, 2)``, as :func:`removal_order` gives it.
        num_removed: how many of them go.
        shape: ``(L, N)``.

    Returns:
        ``(L, N)`` booleans, True for what stays. As numbers they are gates; for the smaller model
        give them to :func:`~mha_book.pruning.removal.prune_model`.

    Example:
        >>> head_mask(np.array([[0, 1], [1, 0]]), 1, (2, 2)).tolist()
        [[True, False], [True, True]]
    """
    _check_sizes(shape)
    listed = np.asarray(order)
    if listed.size == 0:
        listed = np.zeros((0, 2), int)
    check_integers(listed, "order")
    inside = listed.ndim == 2 and listed.shape[1] == 2
    inside = inside and bool(((listed >= 0) & (listed < np.asarray(shape))).all())
    what = f"axes (R, 2), numbers from 0 and below {tuple(shape)}"
    check(inside, "order", what, f"{listed.ravel()[:2].tolist()}, …, shape {listed.shape}")
    heads, times = np.unique(listed, axis=0, return_counts=True)
    check(bool((times < 2).all()), "order", "each head once", f"{heads[times > 1].tolist()} again")
    what = f"from 0 to {len(listed)}, an integer"
    check_size(num_removed, "num_removed", 0, what)
    check(num_removed <= len(listed), "num_removed", what, num_removed)
    keep = np.ones(shape, bool)
    keep[tuple(listed[:num_removed].T)] = False
    return keep


def _check_sizes(shape: tuple[int, int]) -> None:
    check(isinstance(shape, tuple) and len(shape) == 2, "shape", "sizes (L, N)", repr(shape))
    for size in shape:
        check_size(size, "shape", 0, "sizes (L, N)")


def _groups(shape: tuple[int, ...], group_size: int) -> np.ndarray:
    """Return the heads of each group, ``(L·N / group_size, group_size, 2)``."""
    what = f"a positive divisor of N = {shape[1]}"
    check(isinstance(group_size, int), "group_size", what, repr(group_size))
    check(group_size > 0 and shape[1] % group_size == 0, "group_size", what, group_size)
    return np.moveaxis(np.indices(shape), 0, -1).reshape(-1, group_size, 2)
