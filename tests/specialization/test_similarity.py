"""The divergence of heads, and groups of them, on heads whose groups are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.specialization import similarity

pytestmark = pytest.mark.unoptimized
T = 7
rng = np.random.default_rng(11)


def test_divergence_of_known_heads_and_of_loops():
    pairs = jnp.asarray(np.tril(np.ones((1, T, T), bool)))
    one_hot = np.eye(T)[np.arange(T)]
    even = np.tril(np.ones((T, T))) / np.arange(1, T + 1)[:, None]
    random = np.tril(rng.uniform(size=(T, T)) ** 3)
    random /= random.sum(-1, keepdims=True)
    heads = jnp.asarray(np.stack([one_hot, even, random, even])[None], jnp.float32)
    sums, rows = jax.jit(similarity.jensen_shannon_sums)(heads, pairs)
    found = np.asarray(sums) / float(rows)

    def entropy(p):
        return -(p[p > 0] * np.log2(p[p > 0])).sum()

    def divergence(a, b):
        return np.mean(
            [
                entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
                for p, q in zip(a, b, strict=True)
            ]
        )

    for i, j in np.ndindex(4, 4):
        a, b = (np.asarray(heads[0, n], np.float64)[1:] for n in (i, j))
        assert found[i, j] == pytest.approx(divergence(a, b), abs=2e-6)
    assert found[1, 3] == 0
    assert (np.diag(found) == 0).all()


def test_groups_that_are_there_are_found():
    place = np.repeat([0.0, 10.0, 30.0], [2, 5, 3]) + rng.uniform(size=10)
    shuffled = rng.permutation(10)
    distances = abs(place[shuffled][:, None] - place[shuffled][None])
    labels = similarity.cluster(distances, 3)
    truth = np.repeat([2, 0, 1], [2, 5, 3])[shuffled]  # the largest group is number 0
    assert labels.tolist() == truth.tolist()
    near = np.array([0.0, 10.0, 10.1, 10.2, 30.0, 30.1])  # one, three and two, in this order
    assert similarity.cluster(abs(near[:, None] - near), 3).tolist() == [2, 0, 0, 0, 1, 1]
    assert similarity.silhouette(distances, labels) > 0.9
    assert similarity.silhouette(distances, rng.permutation(labels)) < 0.5
    assert sorted(similarity.cluster(distances, 10)) == list(range(10))
    assert similarity.silhouette(np.array([[0.0, 2], [2, 0]]), np.array([0, 1])) == 0


def test_distances_and_labels_that_are_none(no_type_checks):
    below = np.array([[0.0, -1.0], [-1.0, 0.0]])
    for call in (similarity.cluster, similarity.silhouette):
        with pytest.raises(ValueError, match="distances: expected numbers of 0 or more"):
            call(below, 2 if call is similarity.cluster else [0, 1])
    assert similarity.silhouette(-below, [0, 1]) == 0  # lists are arrays
    assert similarity.cluster(np.zeros((3, 3)), 2).tolist().count(0) == 2  # all are equally near
