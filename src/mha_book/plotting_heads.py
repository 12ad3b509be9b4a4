"""Figures of all heads of a model at a glance: one small map for each, grouped by kind.

Shapes: ``M`` heads of any number of layers, ``T`` queries, ``S`` keys.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from mha_book.plotting import WEIGHT_COLOURS, _check, _check_weights, plt

__all__ = ["head_atlas"]

_GAP, _LABEL, _HEADER = 0.14, 0.34, 0.72  # in sides of a map: between maps, below one, above a kind


def head_atlas(
    weights: Float[Any, "M T S"],
    titles: Sequence[str],
    groups: Mapping[str, Sequence[int]],
    *,
    columns: int = 10,
    width: float | int = 5.0,
    vmax: float | int = 1.0,
) -> Any:
    """Draw a small map of every head, group under group, with a header over each.

    In each map queries go down and keys across, as in :func:`~mha_book.plotting.attention_map`.

    Args:
        weights: ``(M, T, S)``, numbers from 0 to 1.
        titles: ``M`` short names, written below the maps.
        groups: by header the numbers of its heads, in the order in which they are drawn; a group
            without heads is left out.
        columns: maps side by side.
        width: of the figure, in inches.
        vmax: the weight that gets the darkest colour; greater ones look the same.

    Returns:
        The figure; its height follows from the number of maps.

    Raises:
        ValueError: the weights' rank, dtype or values do not fit, ``titles`` has another length,
            a group names a head that is not there, or ``columns`` is not positive.

    Example:
        >>> maps = np.full((3, 2, 2), 0.5)
        >>> figure = head_atlas(maps, ["0.0", "0.1", "0.2"], {"all": [2, 0, 1]}, columns=2)
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['all (3)', '0.2', '0.0', '0.1']
        >>> plt.close(figure)
    """
    array = _check_weights(weights, "(M, T, S)", vmax)
    number, queries, keys = array.shape
    _check(len(titles) == number, "titles", f"{number} titles, axis M of weights", len(titles))
    _check(isinstance(columns, int) and columns > 0, "columns", "a positive integer", columns)
    named = [head for heads in groups.values() for head in heads]
    inside = all(0 <= head < number for head in named)
    _check(bool(named) and inside, "groups", f"heads from 0 to {number - 1}", named)
    step = 1 + _GAP
    places, top = [], 0.0  # of each map: head, left, top
    headers = []
    for name, heads in groups.items():
        if not len(heads):
            continue
        headers.append((f"{name} ({len(heads)})", top))
        top += _HEADER
        for n, head in enumerate(heads):
            row, column = divmod(n, columns)
            places.append((head, column * step, top + row * (step + _LABEL)))
        top += -(-len(heads) // columns) * (step + _LABEL)
    across = columns * step - _GAP
    figure = plt.figure(figsize=(width, width * top / across), layout="none")
    ax = figure.add_axes((0.01, 0.0, 0.98, 1.0))
    ax.set(xlim=(0, across), ylim=(top, 0))
    ax.set_axis_off()
    points = 72 * width / across  # of one side of a map
    for text, y in headers:
        size = min(10, 0.42 * points)
        ax.text(0, y + _HEADER - 0.12, text, fontsize=size, fontweight="bold", va="bottom")
    small = max(4.0, min(8.0, 0.26 * points))
    # One picture of all maps: hundreds of them would each take their time.
    fine = max(queries, keys)
    canvas = np.full((round(top * fine), round(across * fine)), np.nan)
    for head, left, upper in places:
        y, x = round(upper * fine), round(left * fine)
        rows, cells = np.arange(fine) * queries // fine, np.arange(fine) * keys // fine
        canvas[y : y + fine, x : x + fine] = array[head][rows][:, cells]
        ax.text(left + 0.5, upper + 1.03, titles[head], fontsize=small, ha="center", va="top")
    extent = (0, canvas.shape[1] / fine, canvas.shape[0] / fine, 0)
    ax.imshow(
        canvas,
        extent=extent,
        aspect="auto",
        cmap=WEIGHT_COLOURS,
        vmin=0.0,
        vmax=vmax,
        interpolation="nearest",
    )
    ax.set(xlim=(0, across), ylim=(top, 0))
    return figure
