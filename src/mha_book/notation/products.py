r"""The product of two tensors, summed over indices that they share, as one product of matrices.

Each tensor is laid out as a (batch of) matrices whose rows and columns are groups of indices: those
that stay and those that are summed. The group with the tensor's last index counts the columns, so
that entries which lie side by side in memory stay side by side, and a tensor is laid out alike
wherever it is used: compiled together, a forward and a backward pass then share its copy.
"""

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import jax
import jax.numpy as jnp

__all__ = ["contract"]


class _Matrix(NamedTuple):
    """A tensor as matrices: the array, and which of its axes is summed over."""

    array: jax.Array
    summed: int


def contract(
    first: tuple[jax.Array, Sequence[str]],
    second: tuple[jax.Array, Sequence[str]],
    result: Sequence[str],
) -> jax.Array:
    r"""Return the product of two tensors, summed over the indices that the result lacks.

    Args:
        first: an array and the index of each of its axes, no index twice.
        second: likewise; it shares at least one index with the first that is summed over.
        result: indices, each in one of the tensors; what the result lacks, both have.

    Returns:
        The array with the axes of ``result``.

    Example:
        >>> x, w = jnp.ones((3, 5)), jnp.ones((2, 5, 7))
        >>> contract((x, "ib"), (w, "hba"), "hia").shape
        (2, 3, 7)
    """
    if result and result[-1] in first[1] and result[-1] not in second[1]:
        first, second = second, first  # the last index of the result comes from the second
    sizes = {
        i: n for array, axes in (first, second) for i, n in zip(axes, array.shape, strict=True)
    }
    batch = [i for i in result if i in first[1] and i in second[1]]
    summed = [i for i in first[1] if i not in result]
    rows = [i for i in result if i in first[1] and i not in batch]
    columns = [i for i in result if i in second[1] and i not in batch]
    left = _matrix(*first, batch, rows, summed, sizes)
    right = _matrix(*second, batch, columns, summed, sizes)
    every = tuple(range(len(batch)))
    dimensions = (((left.summed,), (right.summed,)), (every, every))
    found = (*batch, *rows, *columns)
    product = jax.lax.dot_general(left.array, right.array, dimensions)
    product = jnp.reshape(product, [sizes[i] for i in found])
    return jnp.transpose(product, [found.index(i) for i in result])


def _matrix(
    array: jax.Array,
    axes: Sequence[str],
    batch: Sequence[str],
    kept: Sequence[str],
    summed: Sequence[str],
    sizes: dict[str, int],
) -> _Matrix:
    """Lay a tensor out; without indices that stay, as vectors."""
    groups = [summed, kept] if axes[-1] in kept else [kept, summed]
    groups = [group for group in groups if group]
    order = [axes.index(i) for i in (*batch, *(i for group in groups for i in group))]
    shape = [*(sizes[i] for i in batch), *(prod(sizes[i] for i in group) for group in groups)]
    return _Matrix(
        jnp.reshape(jnp.transpose(array, order), shape), len(batch) + groups.index(summed)
    )
