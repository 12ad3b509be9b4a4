"""The pieces of which names and groups of indices consist."""

from fractions import Fraction

from mha_book.notation.lexer import CAPITAL_GREEK, GREEK, Cursor, Token

__all__ = [
    "ACCENTS",
    "is_index",
    "read_number",
    "read_primes",
    "read_subscript",
    "read_word",
    "starts_name",
]

ACCENTS = (r"\widetilde", r"\widehat", r"\tilde", r"\hat", r"\bar", r"\overline")
"""The commands that put an accent on a name."""

_DIGITS = 30  # of one number


def starts_name(token: Token) -> bool:
    """Return whether a name can begin with the token."""
    greek = token.text in GREEK or token.text in CAPITAL_GREEK or token.text in ACCENTS
    return token.kind in ("letter", "word") or greek


def is_index(token: Token) -> bool:
    """Return whether the token can be an index: a lower-case letter, Latin or Greek."""
    return (token.kind == "letter" and token.text.islower()) or token.text in GREEK


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


def read_primes(cursor: Cursor) -> str:
    """Read the primes that stand next, if any."""
    primes = ""
    while cursor.accept("'"):
        primes += "'"
    return primes


def read_subscript(cursor: Cursor) -> str:
    """Read a subscript, which belongs to the name, and return it as names are stored."""
    cursor.expect("_")
    parts: list[str] = []
    braced = cursor.accept("{")
    while not (braced and parts and cursor.accept("}")):
        token = cursor.peek()
        letter = token.kind in ("letter", "digit") or token.text in GREEK | CAPITAL_GREEK
        if (
            token.kind != "word"
            and not letter
            and not (braced and parts and token.text in (",", "'"))
        ):
            cursor.refuse("a letter, a digit or a word in a subscript")
        space = bool(parts) and parts[-1].startswith("\\") and parts[-1][-1].isalpha()
        parts.append(" " * (space and token.kind == "letter") + read_word(cursor))
        if not braced:
            break
    text = "".join(parts)
    return f"_{text}" if len(parts) == 1 and not text.endswith("}") else f"_{{{text}}}"


def read_word(cursor: Cursor) -> str:
    """Read a name of one letter or one word, as names are stored: without spaces."""
    token = cursor.take()
    if token.kind == "word":
        content = token.text.partition("{")[2][:-1]
        plain = content.replace("-", "")
        if not (content.isascii() and plain.isalnum() and content[0].isalpha()):
            cursor.fail(f"expected a name, found {token}: prose is no part of an equation", token)
    return token.text.replace(" ", "")
