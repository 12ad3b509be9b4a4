"""The atlas of heads: every map in its place, under the header of its group."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from mha_book.plotting import head_atlas


def test_every_head_once_in_the_order_given():
    maps = np.arange(5)[:, None, None] * np.ones((5, 3, 3)) / 10
    figure = head_atlas(maps, list("abcde"), {"one": [4], "none": [], "two": [0, 2, 1]}, columns=2)
    ax = figure.axes[0]
    texts = [text.get_text() for text in ax.texts]
    assert texts == ["one (1)", "two (3)", "e", "a", "c", "b"]
    image = ax.images[0].get_array()
    spots = {text.get_text(): text.get_position() for text in ax.texts}
    for name, value in zip("eacb", (0.4, 0.0, 0.2, 0.1), strict=True):
        x, y = spots[name]
        assert image[round((y - 0.5) * 3), int(x * 3)] == pytest.approx(value)
    plt.close(figure)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"titles": ["a"]}, "titles: expected 2"),
        ({"groups": {"x": [2]}}, "groups: expected heads from 0 to 1"),
        ({"groups": {}}, "groups"),
        ({"columns": 0}, "columns: expected a positive integer"),
    ],
)
def test_what_does_not_fit(given, message):
    options = {"titles": ["a", "b"], "groups": {"x": [0, 1]}} | given
    with pytest.raises(ValueError, match=message):
        head_atlas(np.full((2, 3, 3), 0.5), **options)
