"""Where an index stands: in an expression, and in the source."""

import re
from typing import NoReturn

from mha_book.notation.errors import notation_error
from mha_book.notation.expression import (
    Affine,
    Delta,
    Derivative,
    Expression,
    Sum,
    Tensor,
    children,
)
from mha_book.notation.nodes import Span

__all__ = ["fail_at", "index_span", "written_indices"]

_PIECE = re.compile(r"\\[A-Za-z]+'*|[A-Za-z]'*")


def written_indices(node: Expression) -> tuple[str, ...]:
    """Return the indices that a node itself writes, each as often as it stands there."""
    if isinstance(node, Tensor | Derivative):
        groups = (i.indices if isinstance(i, Affine) else (i,) for i in node.indices)
        return tuple(index for group in groups for index in group)
    if isinstance(node, Delta):
        return node.first, node.second
    return node.indices if isinstance(node, Sum) else ()


def index_span(source: str, node: Expression, index: str) -> Span:
    """Return where an index first stands in the source of an expression.

    Where it does not, or nothing is known, the span of the expression itself is returned.
    """
    if isinstance(node, Derivative):
        parts = [part for part in (node.upper, node.lower) if index in written_indices(part)]
        return index_span(source, parts[0], index) if parts else node.span
    if index in written_indices(node) and node.span:
        start, end = node.span
        if isinstance(node, Tensor):
            start = max(start, source.find("^", start, end))
        for piece in _PIECE.finditer(source, start, end):
            if piece.group() == index:
                return piece.span()
    for child in children(node):
        span = index_span(source, child, index)
        if span != child.span:
            return span
    return node.span


def fail_at(source: str, message: str, node: Expression, index: str | None = None) -> NoReturn:
    """Raise an error with the caret under an expression, or under an index in it."""
    span = node.span if index is None else index_span(source, node, index)
    raise notation_error(message, source, span)
