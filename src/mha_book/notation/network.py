r"""Equations as tensor networks: a graph whose nodes are tensors and whose edges are indices.

An index that two tensors share is an edge between them; one that more share is a dot with an
edge to each. What is no contraction (a softmax, a function, a sum of terms) is a box, with the
indices of its argument on one side and its own on the other. A free index ends at an open node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mha_book.notation.contraction import flatten
from mha_book.notation.expression import (
    Add,
    Affine,
    Derivative,
    Expression,
    Function,
    Number,
    Power,
    Product,
    Quotient,
    Softmax,
    Tensor,
    children,
    free_indices,
    leaves,
)
from mha_book.notation.latex import render
from mha_book.notation.sides import Sides

try:
    import networkx as nx
except ModuleNotFoundError as error:
    if error.name != "networkx":
        raise
    message = 'networkx is not installed; install it with\n  pip install "mha-book[notation]"'
    raise ModuleNotFoundError(message, name="networkx") from None

__all__ = ["network"]


@dataclass
class _Wire:
    """An index, and the nodes that have it."""

    index: str
    kind: str  # "summed" or "free"
    ends: list[int] = field(default_factory=list)
    result: str | None = None  # of which tensor it is a free index, if it is left open


class _Builder:
    """Adds equations to a graph, one tensor after another."""

    def __init__(self, definitions: Mapping[str, Sides]) -> None:
        self.graph = nx.MultiGraph()
        self.wires: list[_Wire] = []
        self.definitions = definitions  # of the tensors that are drawn where they are used

    def node(self, kind: str, label: str, column: int) -> int:
        """Add a node and return its number."""
        name = self.graph.number_of_nodes()
        self.graph.add_node(name, kind=kind, label=label, column=column, value="")
        return name

    def wire(self, index: str, kind: str) -> _Wire:
        """Begin an index without ends."""
        self.wires.append(_Wire(index, kind))
        return self.wires[-1]

    def contraction(self, expression: Expression, scope: Mapping[str, _Wire]) -> int:
        """Add a contraction whose free indices are given; return its last column."""
        parts = flatten(expression)
        inner = {**scope, **{index: self.wire(index, "summed") for index in parts.summed}}
        composite = [factor for factor in parts.factors if not self.is_leaf(factor)]
        last = max((self.factor(factor, inner) for factor in composite), default=-1)
        for factor in parts.factors:
            if self.is_leaf(factor):
                column = last + 1
                node = self.node("tensor", _label(factor), column)
                for index in free_indices(factor) if _computed(factor) else _own(factor):
                    inner[index].ends.append(node)
                if not composite:
                    last = column
        if composite and len(composite) < len(parts.factors):
            last += 1
        if parts.number != 1 or parts.scalars:
            number = [Number(parts.number)] if parts.number != 1 or not parts.scalars else []
            told = render(Product((*number, *parts.scalars)))
            near = max(self.graph.nodes, default=None)
            scalar = self.node("scalar", told, max(last, 0))
            self.graph.nodes[scalar]["near"] = near
        return max(last, 0)

    def is_leaf(self, factor: Expression) -> bool:
        """Whether the factor is one node without anything before it."""
        return not children(factor) and not (
            isinstance(factor, Tensor) and factor.name in self.definitions
        )

    def factor(self, factor: Expression, scope: Mapping[str, _Wire]) -> int:
        """Add what is no single tensor; return its last column."""
        if isinstance(factor, Tensor):
            definition = self.definitions[factor.name]
            own = {
                inside: scope[outside]
                for inside, outside in zip(definition.free, _own(factor), strict=True)
            }
            column = self.contraction(definition.right, own)
            self.name(factor.name, column)
            return column
        arguments = children(factor)
        ends: list[_Wire] = []
        column = 0
        for argument in arguments:
            wires = {index: self.wire(index, "free") for index in free_indices(argument)}
            column = max(column, self.contraction(argument, wires))
            ends += wires.values()
        box = self.node("box", _box(factor), column + 1)
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

    def finish(self) -> Any:
        """Turn the wires into edges."""
        self.pull()
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


def _computed(leaf: Expression) -> bool:
    return isinstance(leaf, Tensor | Derivative) and any(
        isinstance(index, Affine) for index in leaf.indices
    )


def _own(leaf: Expression) -> tuple[str, ...]:
    if isinstance(leaf, Tensor | Derivative):
        return tuple(index for index in leaf.indices if isinstance(index, str))
    return free_indices(leaf)


def _label(leaf: Expression) -> str:
    if isinstance(leaf, Derivative):
        return rf"\partial {leaf.upper.name} / \partial {leaf.lower.name}"
    return leaf.name if isinstance(leaf, Tensor) else r"\delta"


def _box(node: Expression) -> str:
    match node:
        case Softmax(_, index):
            return rf"\mathrm{{softmax}}_{{{index}}}"
        case Function(name):
            return rf"\mathrm{{{name}}}"
        case Power(_, exponent):
            return rf"(\cdot)^{{{exponent}}}"
        case Add():
            return "+"
        case Quotient():
            return r"\div"
    raise AssertionError(node)


def network(equations: Sequence[Sides]) -> Any:
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
        if isinstance(leaf, Tensor)
    ]
    defined = {
        equation.target.name: equation
        for equation in equations
        if isinstance(equation.target, Tensor) and not _computed(equation.target)
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
