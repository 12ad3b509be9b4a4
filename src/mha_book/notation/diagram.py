r"""Diagrams of tensor networks: equations drawn, left to right."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from mha_book.notation.arrangement import Edge, Point, arrange
from mha_book.notation.network import network
from mha_book.notation.sides import Sides

try:
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyBboxPatch, PathPatch
    from matplotlib.path import Path
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "matplotlib":
        raise
    message = 'matplotlib is not installed; install it with\n  pip install "mha-book[notation]"'
    raise ModuleNotFoundError(message, name="matplotlib") from None

__all__ = ["draw"]

# Blue, vermilion and green of Okabe and Ito: told apart with every common colour blindness.
_STYLES: dict[str, dict[str, Any]] = {
    "summed": {"color": "#000000", "linestyle": "-"},
    "free": {"color": "#0072B2", "linestyle": "-"},
    "batch": {"color": "#D55E00", "linestyle": (0, (4, 2))},
}
_LEGEND = {
    "summed": "summed over",
    "free": "free",
    "batch": "batch-like: repeated, and free",
}
_FACES = {"tensor": "#DCEBF5", "box": "#FCEBD5"}
_WIDEST = 7.4  # inches
_HALF = 0.3  # the height of a node from its middle


def draw(equations: Sequence[Sides]) -> Figure:
    r"""Draw equations as one tensor network.

    Args:
        equations: in an order in which each tensor is defined before it is used.

    Returns:
        The figure. Round boxes are tensors, angular ones functions; a line is an index, black
        where it is summed over, blue where it is free, dashed where it is batch-like; a dot is
        an index that more than two share.
    """
    graph = network(equations)
    places, edges = arrange(graph)
    xs, ys = zip(*places.values(), *(p for route in edges.values() for p in route), strict=True)
    wide, high = max(xs) - min(xs) + 1.4, max(ys) - min(ys) + 1
    scale = min(0.9, _WIDEST / wide)
    font = plt.rcParams["font.size"] * min(1.0, max(0.9, scale / 0.85))
    with plt.rc_context({"font.size": font}):
        size = max(scale * wide, 4.8), 0.62 * high + 0.4
        figure = plt.figure(figsize=size, layout="constrained")
        ax = figure.add_subplot()
        ax.set_axis_off()
        ax.set_xlim(min(xs) - 0.5, max(xs) + 0.9)
        ax.set_ylim(min(ys) - 0.5, max(ys) + 0.5)
        _draw_edges(ax, graph, edges)
        for node, data in graph.nodes(data=True):
            around = {graph.nodes[other]["kind"] for other in graph[node]}
            _draw_node(ax, data, *places[node], labelled="open" in around)
        _name_results(ax, graph, places)
        _add_legend(figure, {kind for *_, kind in graph.edges(data="kind")})
    plt.close(figure)  # a notebook shows what a cell returns, and would show open figures as well
    return figure


def _add_legend(figure: Figure, kinds: set[str]) -> None:
    handles = [Line2D([], [], label=_LEGEND[k], **_STYLES[k]) for k in _STYLES if k in kinds]
    if len(handles) > 1:
        columns = len(handles)
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)


def _draw_node(ax: Axes, data: dict[str, Any], x: float, y: float, labelled: bool) -> None:
    kind, label = data["kind"], data["label"]
    if kind == "dot":
        ax.plot([x], [y], "o", color="#222222", markersize=4, zorder=3)
        if not labelled:
            ax.text(x, y + 0.1, f"${label}$", va="bottom", ha="center", zorder=4)
    if kind == "open":
        ax.text(x + 0.08, y, f"${label}$", va="center", ha="left", zorder=4)
    if kind == "scalar":
        ax.text(x, y, f"${label}$", va="center", ha="center", fontsize="large", zorder=4)
    if kind in _FACES:
        shape = "round,pad=0,rounding_size=0.18" if kind == "tensor" else "square,pad=0"
        half = 0.3 if kind == "tensor" else 0.46
        place = (x - half, y - _HALF)
        face: dict[str, Any] = {"facecolor": _FACES[kind], "edgecolor": "#444444", "linewidth": 1}
        ax.add_patch(FancyBboxPatch(place, 2 * half, 2 * _HALF, boxstyle=shape, zorder=3, **face))
        ax.text(x, y, f"${label}$", va="center", ha="center", zorder=4)
        if data["value"]:
            above = (x - half, y + _HALF + 0.02)
            small: dict[str, Any] = {"color": "#666666", "fontsize": "small", "zorder": 4}
            ax.text(*above, f"${data['value']}$", va="bottom", ha="left", **small)


def _name_results(ax: Axes, graph: Any, places: dict[int, Point]) -> None:
    """Write the name of each result to the right of its free indices."""
    found: dict[str, list[Point]] = defaultdict(list)
    for node, data in graph.nodes(data=True):
        if data["kind"] == "open" and data["value"]:
            found[data["value"]].append(places[node])
    for name, ends in found.items():
        x, y = max(x for x, _ in ends), sum(y for _, y in ends) / len(ends)
        ax.text(x + 0.4, y, f"${name}$", va="center", ha="left", color="#666666")


def _draw_edges(ax: Axes, graph: Any, edges: dict[Edge, list[Point]]) -> None:
    for (first, second, number), route in edges.items():
        data = graph.edges[first, second, number]
        count = graph.number_of_edges(first, second)
        shift = ((count - 1) / 2 - number) * 0.5
        curve, middle = _curve(route, shift)
        style = {**_STYLES[data["kind"]], "linewidth": 1.5, "fill": False, "zorder": 1}
        ax.add_patch(PathPatch(curve, **style))
        kinds = {graph.nodes[node]["kind"] for node in (first, second)}
        if not kinds & {"dot", "open"}:
            _label_index(ax, data, middle)


def _label_index(ax: Axes, data: dict[str, Any], place: Point) -> None:
    box = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"}
    colour = _STYLES[data["kind"]]["color"]
    ax.text(
        *place, f"${data['index']}$", va="center", ha="center", color=colour, bbox=box, zorder=2
    )


def _curve(route: Sequence[Point], shift: float) -> tuple[Path, Point]:
    """Return a smooth curve through the places, bulging by the shift, and its middle."""
    vertices, codes = [route[0]], [Path.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(route):
        if x0 == x1:  # in one column: a line, bent if it has others to pass
            bend = shift if abs(y1 - y0) < 1.5 else 0.35 + 0.1 * abs(y1 - y0) + shift
            vertices += [(x0 + bend, y0), (x1 + bend, y1), (x1, y1)]
        else:
            middle = (x0 + x1) / 2
            vertices += [(middle, y0 + shift), (middle, y1 + shift), (x1, y1)]
        codes += [Path.CURVE4] * 3
    at = 3 * ((len(route) - 2) // 2)
    weights = (1 / 8, 3 / 8, 3 / 8, 1 / 8)
    four = list(zip(weights, vertices[at : at + 4], strict=True))
    return Path(vertices, codes), (
        sum(w * x for w, (x, _) in four),
        sum(w * y for w, (_, y) in four),
    )
