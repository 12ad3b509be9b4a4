r"""Where the nodes of a tensor network lie when it is drawn.

The nodes lie in columns in the order in which the tensors meet, and an edge that passes a column
has a place in it. The rows are chosen for few crossings, then for short edges.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import combinations, pairwise
from random import Random
from typing import Any

from mha_book.notation.network import nx

__all__ = ["arrange"]

_APART = 1.15  # columns
_STARTS = 16  # arrangements from which the rows are improved
Point = tuple[float, float]
Edge = tuple[int, int, int]


def _with_bends(graph: Any) -> tuple[Any, dict[Edge, list[int]]]:
    """Give an edge that passes columns a bend in each; return the graph and the nodes on edges."""
    columns = sorted({column for _, column in graph.nodes(data="column")})
    rank = {column: at for at, column in enumerate(columns)}
    bent = nx.Graph()
    for node, data in graph.nodes(data=True):
        room = 1.0 if data["kind"] in ("tensor", "box", "scalar") else 0.6
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


def arrange(graph: Any) -> tuple[dict[int, Point], dict[Edge, list[Point]]]:
    """Place the nodes of a network in columns.

    Args:
        graph: what :func:`~mha_book.notation.network.network` returns.

    Returns:
        The place of each node, and of each edge the places that it passes, from its left end to
        its right. Boxes above one another are 1 apart or more.
    """
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
    return {node: places[node] for node in graph}, edges


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
