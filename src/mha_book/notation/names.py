r"""Names, and the indices above them.

A subscript belongs to the name, an upper group holds the indices; a number in an upper group is
a power. Positions that are computed stand in parentheses: ``X^{i(hH+a)}``.
"""

from dataclasses import dataclass
from fractions import Fraction

from mha_book.notation.expression import Affine, Index
from mha_book.notation.lexer import CAPITAL_GREEK, GREEK, Cursor, Token

__all__ = [
    "Name",
    "read_index",
    "read_indices",
    "read_name",
    "read_number",
    "read_upper",
    "starts_name",
]

ACCENTS = (r"\widetilde", r"\widehat", r"\tilde", r"\hat", r"\bar", r"\overline")
_DIGITS = 30  # of one number
_ORDER = "write the indices in the other order"
_HEAD = (
    "a head in parentheses leaves the axis of the features unnamed: "
    "write every axis as an upper index, as in Q^{hia}"
)


@dataclass(frozen=True)
class Name:
    """A name as it is read, with what stands above it: indices, or a power, or neither."""

    text: str
    indices: tuple[Index, ...] = ()
    power: Fraction | None = None


def starts_name(token: Token) -> bool:
    """Return whether a name can begin with the token."""
    greek = token.text in GREEK or token.text in CAPITAL_GREEK or token.text in ACCENTS
    return token.kind in ("letter", "word") or greek


def read_number(cursor: Cursor) -> Fraction:
    """Read digits that stand together, with or without a point."""
    first = last = cursor.take()
    text = first.text
    while (token := cursor.peek()).start == last.end and (
        token.kind == "digit" or (token.text == "." and "." not in text)
    ):
        follower = cursor.source[token.end : token.end + 1]
        if token.text == "." and not (follower.isascii() and follower.isdigit()):
            break
        last = cursor.take()
        text += last.text
        if len(text) > _DIGITS:
            cursor.fail(f"expected a number of at most {_DIGITS} digits", first, last.end)
    return Fraction(text)


def _read_primes(cursor: Cursor) -> str:
    primes = ""
    while cursor.accept("'"):
        primes += "'"
    return primes


def _is_index(token: Token) -> bool:
    return (token.kind == "letter" and token.text.islower()) or token.text in GREEK


def read_index(cursor: Cursor) -> str:
    """Read one index: a lower-case letter or a Greek one, with its primes."""
    token = cursor.peek()
    if token.text == "T":
        cursor.fail(f"expected an index, found 'T': there is no transpose, {_ORDER}", token)
    if token.kind == "letter" and token.text.isupper():
        cursor.fail(f"expected an index, found {token}: indices are lower-case letters", token)
    if not _is_index(token):
        cursor.refuse("an index, a lower-case letter,")
    return cursor.take().text + _read_primes(cursor)


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
    if not _is_index(cursor.peek()):
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
            value = cursor.take().text
            if cursor.peek().text == "_":
                value += _read_subscript(cursor)
            elif _is_index(token):
                if index is not None:
                    cursor.fail("expected a sum: a position has no product of indices", token)
                index = value + _read_primes(cursor)
                continue
            if factor is not None:
                cursor.fail("expected one factor for each index of a position", token)
            factor = value
        elif factor is None and index is None:
            cursor.refuse("an index, a whole number or a size in a position")
        else:
            return (1 if factor is None else factor), index


def _read_subscript(cursor: Cursor) -> str:
    """Read a subscript, which belongs to the name, and return it as names are stored."""
    cursor.expect("_")
    parts: list[str] = []
    braced = cursor.accept("{")
    while not (braced and parts and cursor.accept("}")):
        token = cursor.peek()
        letter = token.kind in ("letter", "digit") or token.text in GREEK | CAPITAL_GREEK
        if token.kind == "word":
            _check_word(cursor, token)
        elif not letter and not (braced and parts and token.text in (",", "'")):
            cursor.refuse("a letter, a digit or a word in a subscript")
        space = bool(parts) and parts[-1].startswith("\\") and parts[-1][-1].isalpha()
        parts.append(" " * (space and token.kind == "letter") + _plain(cursor.take()))
        if not braced:
            break
    text = "".join(parts)
    return f"_{text}" if len(parts) == 1 and not text.endswith("}") else f"_{{{text}}}"


def _plain(token: Token) -> str:
    return token.text.replace(" ", "")


def _check_word(cursor: Cursor, token: Token) -> None:
    content = token.text.partition("{")[2][:-1]
    if not (content.isascii() and content.replace("-", "").isalnum() and content[0].isalpha()):
        cursor.fail(f"expected a name, found {token}: prose is no part of an equation", token)


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
    if token.kind == "word":
        _check_word(cursor, token)
    text = _plain(cursor.take())
    if text in ACCENTS:
        braced = cursor.accept("{")
        inner = cursor.peek()
        if not starts_name(inner) or inner.text in ACCENTS:
            cursor.refuse("a letter below the accent")
        text = f"{text}{{{_plain(cursor.take())}}}"
        if braced:
            cursor.expect("}", " behind the letter below an accent")
    subscript = primes = ""
    upper: tuple[tuple[Index, ...], Fraction | None] | None = None
    while (token := cursor.peek()).text in ("_", "'", "^"):
        if token.text == "_" and not subscript:
            subscript = _read_subscript(cursor)
        elif token.text == "'" and upper is None and not primes:
            primes = _read_primes(cursor)
        elif token.text == "^" and upper is None:
            upper = read_upper(cursor)
        else:
            where = "primes stand before indices" if token.text == "'" else "a name has one of each"
            cursor.fail(f"found a second group {token}: {where}", token)
    indices, power = upper or ((), None)
    return Name(text + subscript + primes, indices, power)
