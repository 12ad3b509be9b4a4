"""The divergence of heads, and groups of them, on heads whose groups are known."""

import numpy as np
import pytest

from mha_book.specialization import similarity

rng = np.random.default_rng(11)


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
