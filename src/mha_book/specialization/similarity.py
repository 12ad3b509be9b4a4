r"""How far two heads attend alike, and which heads form groups.

The divergence of two heads is the mean over rows of the Jensen-Shannon divergence of their rows of
weights, $\operatorname{H}(\tfrac{1}{2}(A^{hi} + A^{h'i})) - \tfrac{1}{2} \operatorname{H}(A^{hi})
- \tfrac{1}{2} \operatorname{H}(A^{h'i})$ with $\operatorname{H}$ the entropy in bits, over the rows
that see two keys or more: 0 where the heads attend alike, 1 where no key has attention from both.
Two heads that attend evenly have 0.

Shapes: ``B`` texts, ``M`` heads of any number of layers, ``T`` queries, ``S`` keys.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from mha_book._checks import as_numbers, check, check_size, checked, widen
from mha_book.specialization.patterns import entropy_terms

__all__ = ["cluster", "jensen_shannon_sums", "silhouette"]


@checked
def jensen_shannon_sums(
    weights: Float[Array, "B M T S"], visible: Bool[Array, "B T S"]
) -> tuple[Float[Array, "M M"], Float[Array, ""]]:
    """Return the Jensen-Shannon divergence of every two heads summed over rows, and their number.

    Both add up over batches of texts; their ratio is the mean divergence. Memory is that of the
    weights: one head is compared with all at a time.

    Args:
        weights: ``(B, M, T, S)``; the heads of several layers joined along axis 1, and uniform
            attention too where the distance from it is wanted.
        visible: ``(B, T, S)``.

    Returns:
        ``(M, M)`` in bits, symmetric with a diagonal of 0, and a scalar.

    References:
        Lin, Divergence measures based on the Shannon entropy, 1991; Clark et al., What does BERT
        look at?, 2019, section 6.

    Example:
        >>> weights = jnp.array([[[[1.0, 0.0]], [[0.0, 1.0]]]])
        >>> sums, rows = jax.jit(jensen_shannon_sums)(weights, jnp.ones((1, 1, 2), bool))
        >>> (sums / rows).round(3).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    counted = visible.sum(-1) > 1  # (B, T)
    rows = jnp.where(counted[:, None, :, None], widen(weights), 0.0)
    own = _bits(rows).sum((0, 2, 3))  # (M,)

    def against_all(one: Array) -> Array:  # (B, T, S) -> (M,)
        return _bits((rows + one[:, None]) / 2).sum((0, 2, 3))

    mixed = jax.lax.map(against_all, jnp.moveaxis(rows, 1, 0))  # (M, M)
    sums = jnp.maximum(mixed - (own[:, None] + own[None, :]) / 2, 0.0)  # rounding is no divergence
    return sums * (1 - jnp.eye(sums.shape[0], dtype=sums.dtype)), counted.sum().astype(sums.dtype)


def _bits(probabilities: Array) -> Array:
    return entropy_terms(probabilities) / math.log(2)


def cluster(distances: Any, num_clusters: int) -> np.ndarray:
    """Group heads by average linkage: join the two nearest groups until few enough are left.

    The distance of two groups is the mean distance of their members. (SciPy's ``linkage``.)

    Args:
        distances: ``(M, M)``, symmetric, 0 or more.
        num_clusters: from 1 to ``M``.

    Returns:
        ``(M,)`` integers: the group of each head; 0 is the largest, of equals the one with the
        first head.

    References:
        Sokal and Michener, A statistical method for evaluating systematic relationships, 1958.

    Example:
        >>> points = np.array([0.0, 0.1, 5.0, 0.2])
        >>> cluster(abs(points[:, None] - points[None, :]), 2).tolist()
        [0, 0, 1, 0]
    """
    between = _check_distances(distances)
    number = len(between)
    check_size(num_clusters, "num_clusters")
    check(1 <= num_clusters <= number, "num_clusters", f"from 1 to {number}", num_clusters)
    if number == 1:
        return np.zeros(1, int)
    joined = linkage(squareform(between, checks=False), "average")
    joined[:, 2] = np.arange(1, number)  # the places of the joins for their heights, all different
    found = fcluster(joined, number - num_clusters, "distance") - 1
    _, first, sizes = np.unique(found, return_index=True, return_counts=True)
    labels: np.ndarray = np.argsort(np.lexsort((first, -sizes)))[found]
    return labels


def silhouette(distances: Any, labels: Any) -> float:
    r"""Return how well groups are set apart: the mean over heads of $(b - a) / \max(a, b)$.

    $a$ is a head's mean distance from the others of its group, $b$ the least of its mean distances
    from another group; a head that is alone counts 0.

    Args:
        distances: ``(M, M)``, symmetric, 0 or more.
        labels: ``(M,)``, of two groups or more.

    Returns:
        A number from -1 to 1; near 0 where the groups are no better than none.

    References:
        Rousseeuw, Silhouettes, 1987.

    Example:
        >>> points = np.array([0.0, 0.1, 5.0, 5.1])
        >>> distances = abs(points[:, None] - points[None, :])
        >>> round(silhouette(distances, np.array([0, 0, 1, 1])), 2)
        0.98
    """
    between = _check_distances(distances)
    labels = np.asarray(labels)
    what = f"axes (M,) = {between.shape[:1]}"
    check(labels.shape == between.shape[:1], "labels", what, f"shape {labels.shape}")
    groups, member = np.unique(labels, return_inverse=True)
    check(len(groups) > 1, "labels", "two groups or more", len(groups))
    own = member[:, None] == np.arange(len(groups))  # (M, groups)
    sums, sizes = between @ own.astype(float), own.sum(0)
    others = sizes[member] - 1
    within = sums[own] / np.maximum(others, 1)
    nearest = np.where(own, np.inf, sums / sizes).min(1)
    greatest = np.maximum(np.maximum(within, nearest), np.finfo(float).tiny)
    return float(np.where(others > 0, (nearest - within) / greatest, 0.0).mean())


def _check_distances(distances: Any) -> np.ndarray:
    array = as_numbers(distances, "distances", "axes (M, M)")
    is_square = array.ndim == 2 and array.shape[0] == array.shape[1] > 0
    check(is_square, "distances", "axes (M, M)", f"shape {array.shape}")
    check(bool(np.isfinite(array).all()), "distances", "finite numbers", "NaN or inf")
    check(bool((array >= 0).all()), "distances", "numbers of 0 or more", array.min())
    fits = np.allclose(array, array.T, atol=1e-5) and not array.diagonal().any()
    check(fits, "distances", "a symmetric matrix with a diagonal of 0", "another")
    return array
