r"""Names, and the indices above them.

A subscript belongs to the name, an upper group holds the indices; a number in an upper group is
a power. Positions that are computed stand in parentheses: ``X^{i(hH+a)}``.
"""

from dataclasses import dataclass
from fractions import Fraction

from mha_book.notation.expression import Index
from mha_book.notation.indices import read_index, read_indices
from mha_book.notation.lexer import Cursor
from mha_book.notation.pieces import (
    ACCENTS,
    read_number,
    read_primes,
    read_subscript,
    read_word,
    starts_name,
)

__all__ = ["Name", "read_name", "read_upper"]


@dataclass(frozen=True)
class Name:
    """A name as it is read, with what stands above it: indices, or a power, or neither."""

    text: str
    indices: tuple[Index, ...] = ()
    power: Fraction | None = None


def _read_power(cursor: Cursor) -> Fraction:
    """Read a number in an upper group: an integer, a decimal, or a quotient of integers."""
    sign = -1 if cursor.accept("-") else 1
    if cursor.peek().kind != "digit":
        if cursor.peek().text == "T":
            read_index(cursor)
        cursor.refuse("a number as the power")
    value = read_number(cursor)
    if cursor.accept("/"):
        token = cursor.peek()
        if token.kind != "digit":
            cursor.refuse("a number")
        divisor = read_number(cursor)
        if not divisor:
            cursor.fail("a power divided by zero", token)
        value /= divisor
    cursor.expect("}", " behind a power: a computed position would stand in parentheses")
    return sign * value


def read_upper(cursor: Cursor) -> tuple[tuple[Index, ...], Fraction | None]:
    """Read an upper group from its ``^`` on: the indices, or a power."""
    cursor.expect("^")
    token = cursor.peek()
    if token.kind == "digit":
        return (), Fraction(cursor.take().text)
    if token.text == "{":
        inner = cursor.peek(1)
        if inner.kind == "digit" or inner.text == "-":
            cursor.take()
            return (), _read_power(cursor)
    return read_indices(cursor), None


def read_name(cursor: Cursor) -> Name:
    r"""Read a name with its subscript, primes, and what stands above: ``W_Q^{hba}``."""
    token = cursor.peek()
    if not starts_name(token):
        cursor.refuse("a name")
    text = read_word(cursor)
    if text in ACCENTS:
        braced = cursor.accept("{")
        inner = cursor.peek()
        if not starts_name(inner) or inner.text in ACCENTS:
            cursor.refuse("a letter below the accent")
        text = f"{text}{{{read_word(cursor)}}}"
        if braced:
            cursor.expect("}", " behind the letter below an accent")
    subscript = primes = ""
    upper: tuple[tuple[Index, ...], Fraction | None] | None = None
    while (token := cursor.peek()).text in ("_", "'", "^"):
        if token.text == "_" and not subscript:
            subscript = read_subscript(cursor)
        elif token.text == "'" and upper is None and not primes:
            primes = read_primes(cursor)
        elif token.text == "^" and upper is None:
            upper = read_upper(cursor)
        else:
            why = "primes stand before indices" if token.text == "'" else "bracket it"
            cursor.fail(f"expected one group of each kind, found {token}: {why}", token)
    indices, power = upper or ((), None)
    return Name(text + subscript + primes, indices, power)
