r"""Groups of indices: above a name, and below a sum.

Positions that are computed stand in parentheses or between commas: ``X^{i(hH+a)}``,
``A^{i,i+k}``.
"""

from mha_book.notation.expression import Affine, Index
from mha_book.notation.lexer import REASONS, Cursor, Token
from mha_book.notation.pieces import (
    ACCENTS,
    is_index,
    read_number,
    read_primes,
    read_subscript,
    read_word,
    starts_name,
)

__all__ = ["read_index", "read_indices", "read_sum_indices"]

_HEAD = (
    "a head in parentheses leaves the axis of the features unnamed: "
    "write every axis as an upper index, as in Q^{hia}"
)


def read_index(cursor: Cursor) -> str:
    """Read one index: a lower-case letter or a Greek one, with its primes."""
    token = cursor.peek()
    if token.text == "T":
        cursor.fail("expected an index, found 'T': " + REASONS[r"\top"], token)
    if token.kind == "letter" and token.text.isupper():
        cursor.fail(f"expected an index, found {token}: indices are lower-case letters", token)
    if token.kind == "word":
        cursor.fail(f"expected an index, found {token}: a word is part of a name, below it", token)
    if not is_index(token):
        cursor.refuse("an index, a lower-case letter,")
    return cursor.take().text + read_primes(cursor)


def read_indices(cursor: Cursor) -> tuple[Index, ...]:
    """Read the indices of an upper group, with or without braces, behind the ``^``."""
    if not cursor.accept("{"):
        if cursor.peek().text == "(":
            cursor.fail(f"expected an index, found '(': {_HEAD}", cursor.peek())
        return (_read_bare(cursor),)
    found: list[Index] = []
    braces = 1
    alone = commas = 0  # entries since the last comma; commas so far
    bare: Token | None = None  # a sign outside parentheses: it needs commas around
    while braces:
        token = cursor.peek()
        if token.text == "{":
            cursor.take()
            braces += 1
        elif token.text == "}":
            cursor.take()
            braces -= 1
        elif token.text == "," and found:
            cursor.take()
            alone, commas = 0, commas + 1
        elif token.text in ("+", "-") and alone == 1 and isinstance(found[-1], str):
            bare = bare or token
            found[-1] = _read_affine(cursor, found[-1])
        elif token.text == "(":
            start = cursor.take()
            found.append(_read_affine(cursor))
            cursor.expect(")", " at the end of a computed position")
            if _is_plain(found[-1]):
                cursor.fail(f"expected a sum in the parentheses: {_HEAD}", start, cursor.end)
            alone += 1
        else:
            found.append(read_index(cursor))
            alone += 1
    if bare and not commas:
        cursor.fail("a computed position stands in parentheses or between commas", bare)
    if not found:
        cursor.fail("expected an index, found an empty group", cursor.end - 1)
    return tuple(found)


def _read_bare(cursor: Cursor) -> str:
    """An index without braces takes no primes: LaTeX would set two upper groups."""
    if not is_index(cursor.peek()):
        return read_index(cursor)
    return cursor.take().text


def _is_plain(index: Index) -> bool:
    if not isinstance(index, Affine):
        return True
    return index.offset == 0 and [factor for factor, _ in index.terms] == [1]


def _read_affine(cursor: Cursor, first: str | None = None) -> Affine:
    """Read a sum of indices with factors; its first index may have been read already."""
    terms: dict[str, int | str] = {} if first is None else {first: 1}
    offset: int | str = 0
    start = cursor.peek()
    sign = 1
    if cursor.accept("-"):
        sign = -1
    elif first is not None:
        cursor.expect("+")
    while True:
        token = cursor.peek()
        factor, index = _read_affine_term(cursor)
        if isinstance(factor, str) and sign < 0:
            cursor.fail("expected a sum: a named size is not subtracted here", token, cursor.end)
        value = factor if isinstance(factor, str) else sign * factor
        if index is not None:
            if index in terms:
                cursor.fail(f"the index {index} stands twice in a position", token, cursor.end)
            terms[index] = value
        elif isinstance(value, int) and isinstance(offset, int):
            offset += value
        elif offset == 0:
            offset = value
        else:
            cursor.fail("expected one number or one named size", token, cursor.end)
        if not (operator := cursor.accept("+", "-")):
            break
        sign = -1 if operator.text == "-" else 1
    if not terms:
        message = "a fixed position is no index"
        if first is None and isinstance(offset, int):
            message = f"{message}: {_HEAD}"
        cursor.fail(message, start, cursor.end)
    return Affine(tuple((k, i) for i, k in terms.items()), offset)


def _read_affine_term(cursor: Cursor) -> tuple[int | str, str | None]:
    factor: int | str | None = None
    index: str | None = None
    while True:
        token = cursor.peek()
        value: int | str
        if token.kind == "digit" and factor is None:
            number = read_number(cursor)
            if number.denominator != 1:
                cursor.fail("expected a whole number in a position", token, cursor.end)
            factor = number.numerator
        elif starts_name(token) and token.text not in ACCENTS:
            value = read_word(cursor)
            if cursor.peek().text == "_":
                value += read_subscript(cursor)
            elif is_index(token):
                if index is not None:
                    cursor.fail("expected a sum: a position has no product of indices", token)
                index = value + read_primes(cursor)
                continue
            if factor is not None:
                cursor.fail("expected one factor for each index of a position", token)
            factor = value
        elif factor is None and index is None:
            cursor.refuse("an index, a whole number or a size in a position")
        else:
            return (1 if factor is None else factor), index


def read_sum_indices(cursor: Cursor) -> tuple[str, ...]:
    r"""Read what stands below a sum, and above: ``_j``, ``_{i,j}``, ``_{j=1}^{T}``."""
    if not cursor.accept("{"):
        return (_read_bare(cursor),)
    indices = [read_index(cursor)]
    while cursor.peek().text not in ("}", "="):
        cursor.accept(",")
        indices.append(read_index(cursor))
    if cursor.accept("="):
        if len(indices) > 1:
            cursor.fail("bounds belong to a sum over one index", cursor.peek())
        _read_bounds(cursor)
        return tuple(indices)
    cursor.expect("}")
    if cursor.peek().text == "^":
        cursor.fail("expected a lower bound as well: j=1 or j=0", cursor.peek())
    return tuple(indices)


def _read_bounds(cursor: Cursor) -> None:
    """Read bounds from the lower one on: a whole axis, 1 to N or 0 to N-1."""
    lower = cursor.take()
    if lower.text not in ("0", "1"):
        cursor.fail(f"expected a sum from 0 or from 1, found {lower}", lower)
    cursor.expect("}", " behind the lower bound")
    cursor.expect("^", " and the upper bound")
    braced = cursor.accept("{")
    upper = cursor.peek()
    if not starts_name(upper) or upper.text in ACCENTS:
        cursor.refuse("the name of a size as the upper bound")
    read_word(cursor)
    before_end = False
    if braced:
        if cursor.peek().text == "_":
            read_subscript(cursor)
        before_end = bool(cursor.accept("-") and cursor.expect("1", " behind the minus"))
    if before_end != (lower.text == "0"):
        cursor.fail("a sum runs over a whole axis: from 1 to N, or from 0 to N-1", upper)
    if braced:
        cursor.expect("}", " behind the upper bound")
