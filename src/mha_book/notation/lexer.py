r"""LaTeX as tokens, and a cursor that reads them once from left to right.

Layout (spaces, ``\left``, ``\,``, ``&``) makes no tokens. The lexer refuses nothing: what a token
may stand for is the parser's to say, so that the first mistake on the page is the one reported.
"""

import re
from fractions import Fraction
from typing import NamedTuple, NoReturn

from mha_book.notation.expression import notation_error

__all__ = ["ACCENTS", "REASONS", "Cursor", "Token", "is_index", "starts_name", "tokenize"]


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


GREEK = _set(
    r"\alpha \beta \gamma \delta \epsilon \varepsilon \zeta \eta \theta \vartheta \iota \kappa "
    r"\ell \lambda \mu \nu \xi \pi \rho \sigma \tau \upsilon \phi \varphi \chi \psi \omega"
)
"""The commands of small Greek letters, and the script l, which may be names and indices."""

CAPITAL_GREEK = _set(r"\Gamma \Delta \Theta \Lambda \Xi \Pi \Sigma \Upsilon \Phi \Psi \Omega")
"""The commands of capital Greek letters, which may be names."""

ACCENTS = (r"\widetilde", r"\widehat", r"\tilde", r"\hat", r"\bar", r"\overline")
"""The commands that put an accent on a name."""

_DIGITS = 30  # of one number

_KNOWN = GREEK.union(CAPITAL_GREEK, ACCENTS) | _set(
    r"\frac \tfrac \dfrac \sqrt \sum \exp \log \ln \tanh \sin \cos \cdot \times \qquad"
)
_LAYOUT = {"\\ "} | _set(
    r"\, \: \; \! \> \quad \left \right \displaystyle \textstyle \limits "
    r"\big \Big \bigg \Bigg \bigl \bigr \Bigl \Bigr \biggl \biggr \Biggl \Biggr"
)

_TOKEN = re.compile(
    r"""
    (?P<space>[\s~&]+)
  | (?P<row>\\\\(?:[ ]*\[[ ]*-?[\d.]+[ ]*[a-z]{2}[ ]*\])?)
  | (?P<word>\\(?:text|mathrm|operatorname)[ ]*\{[^{}]*\})
  | (?P<environment>\\(?:begin|end)[ ]*\{[^{}]*\})
  | (?P<command>\\(?:[A-Za-z]+|.|$))
  | (?P<letter>[A-Za-z])
  | (?P<digit>[0-9])
  | (?P<symbol>.)
    """,
    re.VERBOSE | re.DOTALL,
)

_ORDER = "an equation states a value, no order or membership"
_MATRIX = "a matrix written by rows has no indices: name its entries with upper indices"
_LIST = "a list with dots has no index: let an upper index count its entries"
_ROUND = "rounding and remainders are no part of the notation"
REASONS = {
    r"\in": _ORDER,
    r"\mathbb": "a set of numbers is no tensor: sizes are given with the arrays",
    r"\mathbf": "names are plain letters",
    r"\top": "there is no transpose: write the indices in the other order",
    r"\intercal": "there is no transpose: write the indices in the other order",
    r"\dagger": "there is no transpose: write the indices in the other order",
    r"\softmax": "softmax is written out, as a quotient of exponentials",
    r"\max": "a maximum is no sum over an index",
    r"\min": "a minimum is no sum over an index",
    r"\partial": r"a derivative is a fraction, \frac{\partial A^{i}}{\partial B^{j}}",
    r"\infty": "an infinite value cannot be evaluated",
    r"\{": "braces hold sets, and sets have no value here",
    "|": "absolute values and norms are no part of the notation",
    ";": r"a ';' puts arrays side by side: let an upper index count them",
    "{": r"braces do not show on the page: write \left( and \right)",
}
"""What the notation does not have, and why: the words of the error."""
REASONS |= dict.fromkeys((r"\le", r"\leq", r"\ge", r"\geq", "<", ">", r"\neq", r"\approx"), _ORDER)
REASONS |= dict.fromkeys((r"\dots", r"\ldots", r"\cdots", r"\vdots", r"\ddots"), _LIST)
REASONS |= dict.fromkeys((r"\lfloor", r"\lceil", r"\bmod", r"\mod", r"\gcd"), _ROUND)
REASONS |= dict.fromkeys((r"\lVert", r"\rVert", r"\|", r"\vert", r"\lvert"), REASONS["|"])


class Token(NamedTuple):
    """A piece of the source.

    Args:
        kind: row, word, environment, command, letter, digit, symbol or end.
        text: as the source writes it.
        start: its first character.
        end: behind its last.
    """

    kind: str
    text: str
    start: int
    end: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"'{self.text}'"


def tokenize(source: str) -> list[Token]:
    r"""Return the tokens of the source, without layout, and one for the end.

    Example:
        >>> [token.text for token in tokenize(r"\left( x^{i}, \right)")]
        ['(', 'x', '^', '{', 'i', '}', ',', ')', '']
    """
    found = [
        Token(str(match.lastgroup), match.group(), *match.span())
        for match in _TOKEN.finditer(source)
        if match.lastgroup != "space" and match.group() not in _LAYOUT
    ]
    return [*found, Token("end", "", len(source), len(source))]


def starts_name(token: Token) -> bool:
    """Return whether a name can begin with the token."""
    greek = token.text in GREEK or token.text in CAPITAL_GREEK or token.text in ACCENTS
    return token.kind in ("letter", "word") or greek


def is_index(token: Token) -> bool:
    """Return whether the token can be an index: a lower-case letter, Latin or Greek."""
    return (token.kind == "letter" and token.text.islower()) or token.text in GREEK


class Cursor:
    """Reads the tokens of ``source`` from left to right and never goes back."""

    def __init__(self, source: str):
        self.source = source
        self._tokens = tokenize(source)
        self._next = 0

    def peek(self, ahead: int = 0) -> Token:
        """Return the next token, or one further ahead, and stay."""
        return self._tokens[min(self._next + ahead, len(self._tokens) - 1)]

    def take(self) -> Token:
        """Return the next token and go on to the one behind it."""
        token = self.peek()
        if token.kind != "end":
            self._next += 1
        return token

    def accept(self, *texts: str) -> Token | None:
        """Take the next token if it is one of these."""
        return self.take() if self.peek().text in texts else None

    def expect(self, text: str, why: str = "") -> Token:
        """Take the next token, which has to be this one."""
        return self.accept(text) or self.refuse(f"'{text}'{why}")

    @property
    def end(self) -> int:
        """Where the last token taken ends."""
        return self._tokens[self._next - 1].end if self._next else 0

    def fail(self, message: str, start: Token | int, end: int | None = None) -> NoReturn:
        """Raise an error with carets under a token, or from one character to another."""
        if isinstance(start, Token):
            raise notation_error(message, self.source, (start.start, end or start.end))
        raise notation_error(message, self.source, (start, self.end if end is None else end))

    def refuse(self, expected: str) -> NoReturn:
        """Raise the error that the next token is not what has to stand here."""
        token = self.peek()
        reason = REASONS.get(token.text, "")
        if token.kind == "environment" and token.text.startswith(r"\begin"):
            name = token.text.partition("{")[2].rstrip("}")
            reason = "cases are no part of the notation" if name == "cases" else ""
            reason = _MATRIX if name.endswith(("matrix", "array")) else reason
        if not reason and token.kind == "command" and token.text not in _KNOWN:
            reason = f"the command {token.text} is unknown"
        self.fail(f"expected {expected}, found {token}" + f": {reason}" * bool(reason), token)

    def number(self) -> Fraction:
        """Read digits that stand together, with or without a point."""
        first = last = self.take()
        text = first.text
        while (token := self.peek()).start == last.end and (
            token.kind == "digit" or (token.text == "." and "." not in text)
        ):
            follower = self.source[token.end : token.end + 1]
            if token.text == "." and not (follower.isascii() and follower.isdigit()):
                break
            last = self.take()
            text += last.text
            if len(text) > _DIGITS:
                self.fail(f"expected a number of at most {_DIGITS} digits", first, last.end)
        return Fraction(text)

    def primes(self) -> str:
        """Read the primes that stand next, if any."""
        primes = ""
        while self.accept("'"):
            primes += "'"
        return primes

    def subscript(self) -> str:
        """Read a subscript, which belongs to the name, and return it as names are stored."""
        self.expect("_")
        parts: list[str] = []
        braced = self.accept("{")
        while not (braced and parts and self.accept("}")):
            token = self.peek()
            letter = token.kind in ("letter", "digit") or token.text in GREEK | CAPITAL_GREEK
            if (
                token.kind != "word"
                and not letter
                and not (braced and parts and token.text in (",", "'"))
            ):
                self.refuse("a letter, a digit or a word in a subscript")
            space = bool(parts) and parts[-1].startswith("\\") and parts[-1][-1].isalpha()
            parts.append(" " * (space and token.kind == "letter") + self.word())
            if not braced:
                break
        text = "".join(parts)
        return f"_{text}" if len(parts) == 1 and not text.endswith("}") else f"_{{{text}}}"

    def word(self) -> str:
        """Read a name of one letter or one word, as names are stored: without spaces."""
        token = self.take()
        if token.kind == "word":
            content = token.text.partition("{")[2][:-1]
            plain = content.replace("-", "")
            if not (content.isascii() and plain.isalnum() and content[0].isalpha()):
                self.fail(f"expected a name, found {token}: prose is no part of an equation", token)
        return token.text.replace(" ", "")
