r"""How far two heads attend alike, and which heads form groups.

The divergence of two heads is the mean over rows of the Jensen-Shannon divergence of their rows of
weights, $\operatorname{H}(\tfrac{1}{2}(A^{hi} + A^{h'i})) - \tfrac{1}{2} \operatorname{H}(A^{hi})
- \tfrac{1}{2} \operatorname{H}(A^{h'i})$ with $\operatorname{H}$ the entropy in bits, over the rows
that see two keys or more: 0 where the heads attend alike, 1 where no key has attention from both.
Two heads that attend evenly have 0.

Shapes: ``B`` texts, ``M`` heads of any number of layers, ``T`` queries, ``S`` keys.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from mha_book._checks import check, check_floating, check_size
from mha_book.specialization.patterns import check_pairs

__all__ = ["cluster", "jensen_shannon_sums", "silhouette"]


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

    Raises:
        ValueError: the axes do not fit.

    References:
        Lin, Divergence measures based on the Shannon entropy, 1991; Clark et al., What does BERT
        look at?, 2019, section 6.

    Example:
        >>> weights = jnp.array([[[[1.0, 0.0]], [[0.0, 1.0]]]])
        >>> sums, rows = jax.jit(jensen_shannon_sums)(weights, jnp.ones((1, 1, 2), bool))
        >>> (sums / rows).round(3).tolist()
        [[0.0, 1.0], [1.0, 0.0]]
    """
    check_floating(weights, "weights")
    check_pairs(visible)
    shape = (visible.shape[0], "M", *visible.shape[1:])
    fits = weights.ndim == 4 and (weights.shape[0], *weights.shape[2:]) == visible.shape
    check(fits, "weights", f"axes (B, M, T, S) = {shape}", f"shape {weights.shape}")
    counted = visible.sum(-1) > 1  # (B, T)
    rows = jnp.where(counted[:, None, :, None], weights.astype(jnp.float32), 0.0)
    own = _bits(rows).sum((0, 2, 3))  # (M,)

    def against_all(one: Array) -> Array:  # (B, T, S) -> (M,)
        return _bits((rows + one[:, None]) / 2).sum((0, 2, 3))

    mixed = jax.lax.map(against_all, jnp.moveaxis(rows, 1, 0))  # (M, M)
    sums = jnp.maximum(mixed - (own[:, None] + own[None, :]) / 2, 0.0)  # rounding is no divergence
    return sums * (1 - jnp.eye(sums.shape[0], dtype=sums.dtype)), counted.sum().astype(jnp.float32)


def _bits(probabilities: Array) -> Array:
    safe = jnp.where(probabilities > 0, probabilities, 1.0)
    return -probabilities * jnp.log(safe) / math.log(2)


def cluster(distances: np.ndarray, num_clusters: int) -> np.ndarray:
    """Group heads by average linkage: join the two nearest groups until few enough are left.

    The distance of two groups is the mean distance of their members. Plain NumPy, for hundreds of
    heads; of equal distances the first counts.

    Args:
        distances: ``(M, M)``, symmetric.
        num_clusters: from 1 to ``M``.

    Returns:
        ``(M,)`` integers: the group of each head; 0 is the largest, of equals the one with the
        first head.

    Raises:
        ValueError: ``distances`` is no symmetric matrix of finite numbers, or ``num_clusters`` does
            not fit.

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
    members = [[head] for head in range(number)]
    np.fill_diagonal(between, np.inf)
    for _ in range(number - num_clusters):
        a, b = sorted(divmod(int(between.argmin()), len(between)))
        sizes = len(members[a]), len(members[b])
        joined = (sizes[0] * between[a] + sizes[1] * between[b]) / sum(sizes)
        joined[a] = np.inf
        between[a], between[:, a] = joined, joined
        between = np.delete(np.delete(between, b, 0), b, 1)
        members[a] += members.pop(b)
    labels = np.empty(number, int)
    order = sorted(range(num_clusters), key=lambda c: (-len(members[c]), min(members[c])))
    for label, c in enumerate(order):
        labels[members[c]] = label
    return labels


def silhouette(distances: np.ndarray, labels: np.ndarray) -> float:
    r"""Return how well groups are set apart: the mean over heads of $(b - a) / \max(a, b)$.

    $a$ is a head's mean distance from the others of its group, $b$ the least of its mean distances
    from another group; a head that is alone counts 0.

    Args:
        distances: ``(M, M)``, symmetric.
        labels: ``(M,)``, of two groups or more.

    Returns:
        A number from -1 to 1; near 0 where the groups are no better than none.

    Raises:
        ValueError: ``distances`` or ``labels`` do not fit.

    References:
        Rousseeuw, Silhouettes, 1987.

    Example:
        >>> points = np.array([0.0, 0.1, 5.0, 5.1])
        >>> distances = abs(points[:, None] - points[None, :])
        >>> round(silhouette(distances, np.array([0, 0, 1, 1])), 2)
        0.98
    """
    between = _check_distances(distances)
    check(np.shape(labels) == between.shape[:1], "labels", f"axes (M,) = {between.shape[:1]}",
          np.shape(labels))  # fmt: skip
    groups, sizes = np.unique(labels, return_counts=True)
    check(len(groups) > 1, "labels", "two groups or more", len(groups))
    member = labels[None, :] == groups[:, None]  # (groups, M)
    sums = between @ member.T.astype(float)  # (M, groups)
    own = member.T
    others = sizes[member.argmax(0)] - 1
    within = sums[own] / np.maximum(others, 1)
    nearest = np.where(own, np.inf, sums / sizes).min(1)
    greatest = np.maximum(np.maximum(within, nearest), np.finfo(float).tiny)
    return float(np.where(others > 0, (nearest - within) / greatest, 0.0).mean())


def _check_distances(distances: np.ndarray) -> np.ndarray:
    try:
        array = np.array(distances, float)
    except (TypeError, ValueError):
        check(False, "distances", "numbers, axes (M, M)", repr(distances))
    is_square = array.ndim == 2 and array.shape[0] == array.shape[1] > 0
    check(is_square, "distances", "axes (M, M)", f"shape {array.shape}")
    fits = bool(np.isfinite(array).all()) and np.allclose(array, array.T, atol=1e-5)
    check(fits, "distances", "finite and symmetric", "another")
    return array
