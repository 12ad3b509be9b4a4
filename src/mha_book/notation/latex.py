r"""Expressions as LaTeX.

What :func:`render` writes, the parser reads back as the same expression, where nothing in it is
implied. A :class:`~mha_book.notation.expression.Softmax` is written as the quotient that it is,
and an implied sum without its sign where the rules put it back at the same place.
"""

from collections.abc import Sequence
from fractions import Fraction

import mha_book.notation.expression as ex
from mha_book.notation.expression import free_indices, rebuild, rename
from mha_book.notation.parser import parse
from mha_book.notation.rules import bind, recognize_softmax

__all__: list[str] = []


def render(expression: ex.Expression) -> str:
    """Return the LaTeX of an expression; implied sums stay implied."""
    return _terms(expression)


def render_equation(sides: Sequence[ex.Expression]) -> str:
    """Return the LaTeX of an equation; the index rules read the same equation from it.

    Sums that the rules would put elsewhere are written out.
    """
    short = " = ".join(map(render, sides))
    try:
        (statement,) = parse(short)
        free = free_indices(sides[0])
        bound = bind(statement, broadcast=free)
    except ValueError:
        same = False
    else:
        plain = [recognize_softmax(_plain(side)) for side in sides]
        same = plain == [_plain(side) for side in bound.sides]
    return short if same else " = ".join(render(_write_sums(side)) for side in sides)


def _plain(node: ex.Expression) -> ex.Expression:
    """Return the expression with all sums as if implied, and one for each index."""
    node = rebuild(node, _plain)
    if not isinstance(node, ex.Sum):
        return node
    inner = node.body
    indices = node.indices
    while isinstance(inner, ex.Sum):
        indices, inner = indices + inner.indices, inner.body
    return ex.Sum(tuple(sorted(indices)), inner)


def _write_sums(node: ex.Expression) -> ex.Expression:
    node = rebuild(node, _write_sums)
    return ex.Sum(node.indices, node.body, True, node.span) if isinstance(node, ex.Sum) else node


def render_indices(indices: Sequence[ex.Index]) -> str:
    """Return the indices as they stand in an upper group, without the group."""
    text = ""
    for index in indices:
        piece = _affine(index) if isinstance(index, ex.Affine) else index
        text += " " * (_ends_command(text) and piece[0].isalpha()) + piece
    return text


def _ends_command(text: str) -> bool:
    """Whether a letter behind the text would belong to its last command."""
    return text[text.rfind("\\") + 1 :].isalpha() and "\\" in text


def _affine(index: ex.Affine) -> str:
    if index.offset == 0 and [factor for factor, _ in index.terms] == [1]:
        return index.terms[0][1]
    pieces: list[str] = []
    for factor, name in index.terms:
        if isinstance(factor, str):
            space = " " * (_ends_command(name) and factor[0].isalpha())
            pieces.append(f"+{name}{space}{factor}")
        else:
            size = "" if abs(factor) == 1 else str(abs(factor))
            pieces.append(f"{'-' if factor < 0 else '+'}{size}{name}")
    if index.offset != 0:
        offset = index.offset
        pieces.append(f"+{offset}" if isinstance(offset, str) else f"{offset:+d}")
    return f"({''.join(pieces).removeprefix('+')})"


def _number(value: Fraction) -> str:
    """Return a number that is not negative."""
    if value.denominator == 1:
        return str(value.numerator)
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def _terms(node: ex.Expression) -> str:
    """An expression as it may stand between brackets."""
    if not isinstance(node, ex.Add):
        negative, text = _term(node)
        return f"-{text}" if negative else text
    text = ""
    for term in node.terms:
        negative, piece = (False, _bracket(term)) if isinstance(term, ex.Add) else _term(term)
        sign = "-" if negative else "+"
        text += f" {sign} {piece}" if text else f"{sign}{piece}".removeprefix("+")
    return text


def _bracket(node: ex.Expression) -> str:
    return rf"\left({_terms(node)}\right)"


def _term(node: ex.Expression) -> tuple[bool, str]:
    """Return whether a minus stands before the term, and the term behind it."""
    match node:
        case ex.Number(value):
            return value < 0, _number(abs(value))
        case ex.Sum(_, ex.Product() as body, False):
            return _term(body)
        case ex.Product((ex.Number(value), *others)) if value < 0:
            bare = len(others) == 1 and isinstance(others[0], ex.Product)  # -(a b) would be -a b
            if value == -1 and others and not bare and not isinstance(others[0], ex.Number):
                return True, _factors(others)
            return True, _factors([ex.Number(-value), *others])
        case ex.Product(factors):
            return False, _factors(factors)
    return False, _factor(node, last=True)


def _factors(factors: Sequence[ex.Expression]) -> str:
    text = ""
    for number, factor in enumerate(factors):
        piece = _factor(factor, last=number == len(factors) - 1)
        if text:
            call = _is_word(factors[number - 1]) and piece.startswith(r"\left(")
            dot = piece[0].isdigit() or call
            text += rf" \cdot {piece}" if dot else f" {piece}"
        else:
            text = piece
    return text


def _is_word(node: ex.Expression) -> bool:
    """Whether a bracket behind it would read as its argument."""
    words = (r"\text", r"\mathrm", r"\operatorname")
    return isinstance(node, ex.Tensor) and not node.indices and node.name.startswith(words)


def _factor(node: ex.Expression, *, last: bool) -> str:
    """A factor of a product; the last may be open to the right."""
    match node:
        case ex.Number(value):
            return _number(value) if value >= 0 else _bracket(node)
        case ex.Tensor(name, indices):
            return name + _upper(render_indices(indices)) if indices else name
        case ex.Derivative(upper, lower):
            above, below = _factor(upper, last=True), _factor(lower, last=True)
            return rf"\frac{{\partial {above}}}{{\partial {below}}}"
        case ex.Delta(first, second):
            return rf"\delta{_upper(render_indices((first, second)))}"
        case ex.Quotient(numerator, denominator):
            return rf"\frac{{{_terms(numerator)}}}{{{_terms(_write_sums(denominator))}}}"
        case ex.Power(base, exponent):
            base = _write_sums(base)
            simple = isinstance(base, ex.Tensor) and not base.indices and not _is_word(base)
            text = _factor(base, last=True) if simple else _bracket(base)
            return f"{text}^{{{exponent}}}"
        case ex.Function("sqrt", argument):
            return rf"\sqrt{{{_terms(_write_sums(argument))}}}"
        case ex.Function(name, argument):
            argument = _write_sums(argument)
            short = last and isinstance(argument, ex.Tensor | ex.Sum)
            inner = " " + _factor(argument, last=True) if short else _bracket(argument)
            return rf"\{name}{inner}"
        case ex.Softmax(argument, index, bound):
            total = ex.Sum((bound,), ex.Function("exp", rename(argument, {index: bound})), True)
            return _factor(ex.Quotient(ex.Function("exp", argument), total), last=True)
        case ex.Sum(indices, body, True):
            if not last:
                return _bracket(node)
            negative, text = (True, "") if isinstance(body, ex.Add) else _term(body)
            return rf"\sum_{{{render_indices(indices)}}} {_bracket(body) if negative else text}"
        case ex.Sum(_, body):
            return _factor(body, last=last)
    return _bracket(node)


def _upper(text: str) -> str:
    return f"^{text}" if len(text) == 1 else f"^{{{text}}}"
