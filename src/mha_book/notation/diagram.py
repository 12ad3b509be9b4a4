r"""Diagrams: equations as tensor networks, their nodes arranged in columns, and drawn.

A network is a graph whose nodes are tensors and whose edges are indices. An index that two tensors
share is an edge between them; one that more share is a dot with an edge to each. What is no
contraction (a softmax, a function, a sum of terms) is a box, with the indices of its argument on
one side and its own on the other. A free index ends at an open node.

The nodes lie in columns in the order in which the tensors meet. What meets the result of a box
begins at the box, so that the box's output leads nowhere back. An edge that passes a column has a
place in it. The rows are chosen for few crossings, then for short edges.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from random import Random
from typing import Any, Protocol, runtime_checkable

import mha_book.notation.expression as ex
from mha_book.notation.evaluate import Contraction, own_indices
from mha_book.notation.expression import children, free_indices, is_plain, leaves
from mha_book.notation.latex import render

try:
    import matplotlib.pyplot as plt
    import networkx as nx
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import FancyBboxPatch, PathPatch
    from matplotlib.path import Path
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    if package not in ("matplotlib", "networkx"):
        raise
    message = f'{package} is not installed; install it with\n  pip install "mha-book[notation]"'
    raise ModuleNotFoundError(message, name=package) from None

__all__ = ["network"]


_APART = 1.15  # columns
_STARTS = 16  # arrangements from which the rows are improved
Point = tuple[float, float]
Edge = tuple[int, int, int]

# Blue and vermilion of the book: told apart with every common color blindness.
_STYLES: dict[str, dict[str, Any]] = {
    "summed": {"color": "#000000", "linestyle": "-"},
    "free": {"color": "#0068A8", "linestyle": "-"},
    "passed": {"color": "#808080", "linestyle": "-"},
    "batch": {"color": "#BF4700", "linestyle": (0, (4, 2))},
}
_LEGEND = {"summed": "summed over", "free": "free", "passed": "into a box", "batch": "batch-like"}
_FACES = {"tensor": "#DCEBF5", "box": "#FCEBD5"}
_WIDEST = 7.4  # inches
_FONT = 1.4  # of the figure's own: a phone shows the picture at less than half its size
_HALF = 0.3  # the height of a node from its middle


@runtime_checkable
class _Equation(Protocol):
    """What is drawn of an equation: the tensor that it defines, its indices, and from what."""

    @property
    def target(self) -> ex.Named | None: ...

    @property
    def free(self) -> tuple[str, ...]: ...

    @property
    def computed(self) -> ex.Expression: ...


def draw(equations: Sequence[_Equation]) -> Figure:
    """Draw equations as one tensor network."""
    graph = network(equations)
    places, edges = arrange(graph)
    xs, ys = zip(*places.values(), *(p for route in edges.values() for p in route), strict=True)
    wide, high = max(xs) - min(xs) + 1.4, max(ys) - min(ys) + 1
    scale = min(0.9, _WIDEST / wide)
    font = _FONT * plt.rcParams["font.size"] * min(1.0, max(0.9, scale / 0.85))
    with plt.rc_context({"font.size": font}):
        size = max(scale * wide, 4.8), 0.62 * high + 0.4
        figure = plt.figure(figsize=size, layout="constrained")
        ax = figure.add_subplot()
        ax.set_axis_off()
        ax.set_xlim(min(xs) - 0.5, max(xs) + 0.9)
        ax.set_ylim(min(ys) - 0.5, max(ys) + 0.5)
        grouped = _draw_groups(ax, graph, places)
        _draw_edges(ax, graph, edges)
        for node, data in graph.nodes(data=True):
            around = {graph.nodes[other]["kind"] for other in graph[node]}
            told = {**data, "value": ""} if node in grouped else data
            _draw_node(ax, told, *places[node], labeled="open" in around)
        _name_results(ax, graph, places)
        _add_legend(figure, {_look(graph, *edge) for edge in graph.edges(keys=True)})
    plt.close(figure)  # a notebook shows what a cell returns, and would show open figures as well
    return figure


def network(equations: Sequence[_Equation]) -> nx.MultiGraph:
    """Return the tensor network of equations.

    A tensor that one equation defines and another uses once is drawn as what it is equal to, so
    that the equations of a layer become one network. A named array that is used twice is two
    nodes.

    Args:
        equations: in an order in which each tensor is defined before it is used.

    Returns:
        A ``networkx.MultiGraph``. A node has a ``kind`` (``"tensor"``, ``"box"``, ``"scalar"``,
        ``"dot"`` for an index that more than two share or one alone is summed over, ``"open"``
        for a free index of the result), a ``label`` (LaTeX), a ``column`` (left to right), and a
        ``value``: the tensor that it completes, of an open node the result, or nothing. An edge
        has an ``index`` and a ``kind``: ``"summed"``, ``"free"``, or ``"batch"`` for a repeated
        index that stays.

    Example:
        >>> from mha_book.notation import Equation
        >>> graph = network([Equation(r"Q^{hia} = X^{ib} W_Q^{hba}")])
        >>> [label for _, label in graph.nodes(data="label")]
        ['X', 'W_Q', 'h', 'i', 'a']
        >>> sorted((data["index"], data["kind"]) for *_, data in graph.edges(data=True))
        [('a', 'free'), ('b', 'summed'), ('h', 'free'), ('i', 'free')]
    """
    uses = [
        leaf.name
        for equation in equations
        for leaf in leaves(equation.computed)
        if isinstance(leaf, ex.Tensor)
    ]
    defined = {
        equation.target.name: equation
        for equation in equations
        if isinstance(equation.target, ex.Tensor) and is_plain(equation.target)
    }
    inlined = {name: e for name, e in defined.items() if uses.count(name) == 1}
    builder = _Builder(inlined)
    for equation in equations:
        if equation.target is None or equation.target.name not in inlined:
            scope = {index: builder.wire(index, "free") for index in equation.free}
            for wire in scope.values():
                wire.result = "" if equation.target is None else _label(equation.target)
            builder.contraction(equation.computed, scope)
    return builder.finish()


@dataclass
class _Wire:
    """An index, and the nodes that have it."""

    index: str
    kind: str  # "summed" or "free"
    ends: list[int] = field(default_factory=list)
    result: str | None = None  # of which tensor it is a free index, if it is left open


class _Builder:
    """Adds equations to a graph, one tensor after another."""

    def __init__(self, definitions: Mapping[str, _Equation]) -> None:
        self.graph = nx.MultiGraph()
        self.wires: list[_Wire] = []
        self.definitions = definitions  # of the tensors that are drawn where they are used

    def node(self, kind: str, label: str, column: int) -> int:
        """Add a node and return its number."""
        name: int = self.graph.number_of_nodes()
        self.graph.add_node(name, kind=kind, label=label, column=column, value="")
        return name

    def wire(self, index: str, kind: str) -> _Wire:
        """Begin an index without ends."""
        self.wires.append(_Wire(index, kind))
        return self.wires[-1]

    def contraction(self, expression: ex.Expression, scope: Mapping[str, _Wire]) -> int:
        """Add a contraction whose free indices are given; return its last column."""
        parts = Contraction(expression)
        inner = {**scope, **{index: self.wire(index, "summed") for index in parts.summed}}
        composite = [factor for factor in parts.factors if not self.is_leaf(factor)]
        last = self.beside_each_other(composite, inner)
        for factor in parts.factors:
            if self.is_leaf(factor):
                column = last + 1
                node = self.node("tensor", _label(factor), column)
                for index in own_indices(factor):
                    inner[index].ends.append(node)
                if not composite:
                    last = column
        if composite and len(composite) < len(parts.factors):
            last += 1
        if parts.number != 1 or parts.scalars:
            number = [ex.Number(parts.number)] if parts.number != 1 or not parts.scalars else []
            told = render(ex.Product((*number, *parts.scalars)))
            near = max(self.graph.nodes, default=None)
            scalar = self.node("scalar", told, max(last, 0))
            self.graph.nodes[scalar]["near"] = near
            joins = [inner[index].ends for index in parts.summed]
            beside = next((ends for ends in joins if len(set(ends)) == 2 == len(ends)), None)
            self.graph.nodes[scalar]["beside"] = beside
        return max(last, 0)

    def beside_each_other(
        self, factors: Sequence[ex.Expression], scope: Mapping[str, _Wire]
    ) -> int:
        """Add factors that are no single tensors; return the last column of all.

        What would end before a box among them is moved to begin in the column of that box.
        """
        lasts, boxes, groups = [], [0], []
        for factor in factors:
            first = self.graph.number_of_nodes()
            lasts.append(self.factor(factor, scope))
            groups.append([self.graph.nodes[n] for n in range(first, self.graph.number_of_nodes())])
            if groups[-1] and groups[-1][-1]["kind"] == "box":
                boxes.append(lasts[-1])
        for at, group in enumerate(groups):
            if group and lasts[at] < max(boxes):
                shift = max(boxes) - min(data["column"] for data in group)
                for data in group:
                    data["column"] += shift
                lasts[at] += shift
        return max(lasts, default=-1)

    def is_leaf(self, factor: ex.Expression) -> bool:
        """Whether the factor is one node without anything before it."""
        return not children(factor) and not (
            isinstance(factor, ex.Tensor) and factor.name in self.definitions
        )

    def factor(self, factor: ex.Expression, scope: Mapping[str, _Wire]) -> int:
        """Add what is no single tensor; return its last column."""
        if isinstance(factor, ex.Tensor):
            definition = self.definitions[factor.name]
            own = {
                inside: scope[outside]
                for inside, outside in zip(definition.free, own_indices(factor), strict=True)
            }
            first = self.graph.number_of_nodes()
            column = self.contraction(definition.computed, own)
            self.name(factor.name, column)
            made = [*range(first, self.graph.number_of_nodes())]
            if len(made) > 1 and all(self.graph.nodes[n]["kind"] == "tensor" for n in made):
                self.graph.graph.setdefault("groups", []).append((factor.name, made))
            return column
        arguments = children(factor)
        ends: list[_Wire] = []
        column = 0
        for argument in arguments:
            wires = {index: self.wire(index, "free") for index in free_indices(argument)}
            column = max(column, self.contraction(argument, wires))
            ends += wires.values()
        box = self.node("box", _box(factor), column + 1)
        names = [
            a.name for a in arguments if isinstance(a, ex.Tensor) and a.name in self.definitions
        ]
        if len(names) == len(arguments) == 1:
            self.graph.nodes[box]["takes"] = names[0]
        for wire in ends:
            wire.ends.append(box)
        for index in free_indices(factor):
            scope[index].ends.append(box)
        return column + 1

    def name(self, name: str, column: int) -> None:
        """Note whose value the last node is, if there is one last node."""
        node = self.graph.number_of_nodes() - 1
        data = self.graph.nodes[node]
        if data["kind"] in ("tensor", "box") and data["column"] == column:
            data["value"] = data["value"] or name

    def pull(self) -> None:
        """Move each tensor that meets others to its right alone, as a bias does, next to them."""
        columns = self.graph.nodes(data="column")
        for node, data in self.graph.nodes(data=True):
            met = [end for w in self.wires if node in w.ends for end in w.ends if end != node]
            if data["kind"] == "tensor" and met:
                data["column"] = max(data["column"], min(columns[end] for end in met) - 1)

    def finish(self) -> nx.MultiGraph:
        """Turn the wires into edges."""
        self.pull()
        for _, data in self.graph.nodes(data=True):
            # A number stands by the sum that it multiplies where there is room: by a vertical line.
            if len({self.graph.nodes[end]["column"] for end in data.get("beside") or ()}) > 1:
                data["beside"] = None
        for wire in self.wires:
            columns = [self.graph.nodes[end]["column"] for end in wire.ends]
            ends = list(wire.ends)
            shared = len(ends) + (wire.result is not None) > 2 or len(set(ends)) < len(ends)
            kind = wire.kind
            if kind == "free" and shared:
                kind = "batch"
            if wire.result is not None:
                ends.append(self.node("open", wire.index, 0))
                self.graph.nodes[ends[-1]]["value"] = wire.result
            if shared or len(ends) == 1:
                middle = (min(columns) + max(columns)) / 2
                dot = self.node("dot", wire.index, int(middle))
                self.graph.nodes[dot]["column"] = int(middle) + 0.5
                for end in ends:
                    self.graph.add_edge(dot, end, index=wire.index, kind=kind)
            elif ends:
                self.graph.add_edge(*ends, index=wire.index, kind=kind)
        for part in nx.connected_components(self.graph):
            nodes = [self.graph.nodes[node] for node in part]
            last = max((data["column"] for data in nodes if data["kind"] != "dot"), default=0)
            for data in nodes:
                if data["kind"] == "open":
                    data["column"] = last + 1
        return self.graph


def _label(leaf: ex.Expression) -> str:
    if isinstance(leaf, ex.Derivative):
        return rf"\partial {leaf.upper.name} / \partial {leaf.lower.name}"
    return leaf.name if isinstance(leaf, ex.Tensor) else r"\delta"


def _box(node: ex.Expression) -> str:
    match node:
        case ex.Softmax(_, index):
            return rf"\mathrm{{softmax}}_{{{index}}}"
        case ex.Function(name):
            return rf"\mathrm{{{name}}}"
        case ex.Power(_, exponent):
            return rf"(\cdot)^{{{exponent}}}"
        case ex.Add():
            return "+"
        case ex.Quotient():
            return r"\div"
    raise AssertionError(node)


def arrange(graph: Any) -> tuple[dict[int, Point], dict[Edge, list[Point]]]:
    """Place the nodes of a network in columns."""
    bent, routes = _with_bends(graph)
    height: dict[int, float] = {}
    top = 0.0
    for part in nx.connected_components(bent):
        own = _rows(bent.subgraph(sorted(part)))
        top -= max(own.values()) + 0.6
        height |= {node: top + y for node, y in own.items()}
        top += min(own.values()) - 0.6
    places = {node: (_APART * column, height[node]) for node, column in bent.nodes(data="column")}
    edges = {edge: [places[node] for node in route] for edge, route in routes.items()}
    for node, beside in graph.nodes(data="beside"):
        if beside is not None:
            (x, y0), (_, y1) = (places[end] for end in beside)
            places[node] = (x - 0.42, (y0 + y1) / 2)
    return {node: places[node] for node in graph}, edges


def _with_bends(graph: Any) -> tuple[Any, dict[Edge, list[int]]]:
    """Give an edge that passes columns a bend in each; return the graph and the nodes on edges."""
    columns = sorted({column for _, column in graph.nodes(data="column")})
    rank = {column: at for at, column in enumerate(columns)}
    bent = nx.Graph()
    for node, data in graph.nodes(data=True):
        room = 1.3 if data["kind"] in ("tensor", "box", "scalar") else 0.6
        bent.add_node(node, column=rank[data["column"]], room=room)
    routes = {}
    for first, second, number in graph.edges(keys=True):
        ends = sorted((first, second), key=lambda node: bent.nodes[node]["column"])
        start, stop = (bent.nodes[node]["column"] for node in ends)
        bends = [bent.number_of_nodes() + at for at in range(stop - start - 1)]
        for at, bend in enumerate(bends):
            bent.add_node(bend, column=start + 1 + at, room=0.6)
        routes[first, second, number] = [ends[0], *bends, ends[1]]
        nx.add_path(bent, routes[first, second, number])
    for node, near in graph.nodes(data="near"):
        if near is not None:  # a scalar has no edge, and belongs somewhere
            bent.add_edge(node, near)
    return bent, routes


def _settle(wanted: Sequence[float], rooms: Sequence[float]) -> list[float]:
    """Return the heights nearest to those wanted, from above, that leave each its room."""
    below = [0.0]
    for first, second in pairwise(rooms):
        below.append(below[-1] + (first + second) / 2)
    # Apart from the room, heights must not rise: blocks that would are put at their mean.
    blocks: list[list[float]] = []
    for height, offset in zip(wanted, below, strict=True):
        blocks.append([height + offset])
        while len(blocks) > 1 and _mean(blocks[-2]) < _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    flat = [_mean(block) for block in blocks for _ in block]
    return [height - offset for height, offset in zip(flat, below, strict=True)]


def _crossings(bent: Any, height: dict[int, float]) -> int:
    """Count the pairs of edges between the same columns that cross."""
    lines = []
    for ends in bent.edges:
        left, right = sorted(ends, key=lambda node: bent.nodes[node]["column"])
        if bent.nodes[left]["column"] < bent.nodes[right]["column"]:
            lines.append((bent.nodes[left]["column"], height[left], height[right]))
    return sum(
        one[0] == other[0] and (one[1] - other[1]) * (one[2] - other[2]) < 0
        for one, other in combinations(lines, 2)
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _rows(bent: Any) -> dict[int, float]:
    """Return the height of each node: few crossings first, then short edges."""
    columns: dict[int, list[int]] = defaultdict(list)
    for node, column in bent.nodes(data="column"):
        columns[column].append(node)
    best: dict[int, float] = {}
    least = (len(bent.edges) ** 2, float("inf"))
    for start in range(_STARTS):
        chance = Random(start)  # the same picture each time
        height = {node: chance.uniform(-start, start) - node for node in bent}
        for sweep in range(30):
            for column in sorted(columns, reverse=bool(sweep % 2)):
                near = {node: [height[other] for other in bent[node]] for node in columns[column]}
                wanted = {node: _mean(near[node] or [height[node]]) for node in near}
                order = sorted(near, key=wanted.__getitem__, reverse=True)
                rooms = [bent.nodes[node]["room"] for node in order]
                settled = _settle([wanted[node] for node in order], rooms)
                height.update(zip(order, settled, strict=True))
            length = sum(abs(height[first] - height[second]) for first, second in bent.edges)
            cost = (_crossings(bent, height), round(length, 6))
            if cost < least:
                best, least = dict(height), cost
    return best


def _add_legend(figure: Figure, kinds: set[str]) -> None:
    handles = [Line2D([], [], label=_LEGEND[k], **_STYLES[k]) for k in _STYLES if k in kinds]
    if len(handles) > 1:
        columns = len(handles)
        where: dict[str, Any] = {"loc": "outside lower center", "ncols": columns, "frameon": False}
        figure.legend(handles=handles, fontsize=plt.rcParams["font.size"] * 0.85, **where)


def _draw_node(ax: Axes, data: dict[str, Any], x: float, y: float, labeled: bool) -> None:
    kind, label = data["kind"], data["label"]
    if kind == "dot":
        ax.plot([x], [y], "o", color="#222222", markersize=4, zorder=3)
        if not labeled:
            ax.text(x, y + 0.1, f"${label}$", va="bottom", ha="center", zorder=4)
    if kind == "open":
        ax.text(x + 0.08, y, f"${label}$", va="center", ha="left", zorder=4)
    if kind == "scalar":
        size = "large" if data.get("beside") is None else "medium"
        ax.text(x, y, f"${label}$", va="center", ha="center", fontsize=size, zorder=4)
    if kind in _FACES:
        shape = "round,pad=0,rounding_size=0.18" if kind == "tensor" else "square,pad=0"
        half = 0.34 if kind == "tensor" else 0.66 if r"\mathrm" in label else 0.34
        place = (x - half, y - _HALF)
        face: dict[str, Any] = {"facecolor": _FACES[kind], "edgecolor": "#444444", "linewidth": 1}
        ax.add_patch(FancyBboxPatch(place, 2 * half, 2 * _HALF, boxstyle=shape, zorder=3, **face))
        ax.text(x, y, f"${label}$", va="center", ha="center", zorder=4)
        if data["value"]:
            above = (x + half, y + _HALF + 0.02)
            small: dict[str, Any] = {"color": "#555555", "zorder": 4}
            ax.text(*above, f"${data['value']}$", va="bottom", ha="right", **small)
        if data.get("takes"):
            above = (x - half, y + _HALF + 0.02)
            small = {"color": "#555555", "zorder": 4}
            ax.text(*above, f"${data['takes']}$", va="bottom", ha="left", **small)


def _draw_groups(ax: Axes, graph: Any, places: Mapping[int, Point]) -> set[int]:
    """Frame the tensors that make a named one, with its name; return those framed."""
    framed: set[int] = set()
    for name, nodes in graph.graph.get("groups", []):
        xs, ys = zip(*(places[node] for node in nodes), strict=True)
        left, low = min(xs) - 0.44, min(ys) - _HALF - 0.1
        wide, high = max(xs) - left + 0.44, max(ys) - low + _HALF + 0.1
        inside = {n for n, (x, y) in places.items() if 0 < x - left < wide and 0 < y - low < high}
        if inside != {*nodes}:
            continue
        style: dict[str, Any] = {"facecolor": "none", "edgecolor": "#777777", "linestyle": ":"}
        shape = "round,pad=0,rounding_size=0.2"
        ax.add_patch(FancyBboxPatch((left, low), wide, high, boxstyle=shape, zorder=0, **style))
        # On the left, where the first of the tensors leaves a corner free.
        first, last = min(places[node] for node in nodes), max(places[node] for node in nodes)
        falls = first[1] >= last[1]
        place = (left + 0.12, low + 0.06 if falls else low + high - 0.06)
        edge = "bottom" if falls else "top"
        ax.text(*place, f"${name}$", va=edge, ha="left", color="#555555", zorder=4)
        framed |= {*nodes}
    return framed


def _look(graph: Any, first: int, second: int, number: int) -> str:
    """Return the style of an edge: only what leaves the picture looks free."""
    kind = graph.edges[first, second, number]["kind"]
    kinds = {graph.nodes[node]["kind"] for node in (first, second)}
    return "passed" if kind == "free" and "open" not in kinds else kind


def _name_results(ax: Axes, graph: Any, places: dict[int, Point]) -> None:
    """Write the name of each result to the right of its free indices, bracketed if several."""
    found: dict[str, list[Point]] = defaultdict(list)
    for node, data in graph.nodes(data=True):
        if data["kind"] == "open" and data["value"]:
            found[data["value"]].append(places[node])
    for name, ends in found.items():
        x, y = max(x for x, _ in ends), sum(y for _, y in ends) / len(ends)
        ax.text(x + 0.5, y, f"${name}$", va="center", ha="left", color="#444444")
        if len(ends) > 1:
            low, high = min(y for _, y in ends) - 0.2, max(y for _, y in ends) + 0.2
            bracket = [x + 0.3, x + 0.4, x + 0.4, x + 0.3], [low, low, high, high]
            ax.plot(*bracket, color="#444444", linewidth=1, zorder=1)


def _draw_edges(ax: Axes, graph: Any, edges: dict[Edge, list[Point]]) -> None:
    for (first, second, number), route in edges.items():
        data = graph.edges[first, second, number]
        count = graph.number_of_edges(first, second)
        shift = ((count - 1) / 2 - number) * 0.5
        curve, middle = _curve(route, shift)
        look = _look(graph, first, second, number)
        style = {**_STYLES[look], "linewidth": 1.5, "fill": False, "zorder": 1}
        ax.add_patch(PathPatch(curve, **style))
        kinds = {graph.nodes[node]["kind"] for node in (first, second)}
        if not kinds & {"dot", "open"}:
            box = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"}
            told: dict[str, Any] = {"color": style["color"], "bbox": box, "zorder": 2}
            ax.text(*middle, f"${data['index']}$", va="center", ha="center", **told)


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
