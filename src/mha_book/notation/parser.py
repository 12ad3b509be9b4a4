r"""LaTeX read as statements: chains of expressions with ``=`` between.

A statement ends at a comma, a full stop or a semicolon outside brackets, at ``\\``, ``\qquad``
and the end of an environment (aligned, gathered, split). A row that begins with ``=`` goes on
with the chain of the row before.

The parser goes through the tokens once, from left to right: one method reads one thing, goes
forward only, and returns its expression. The depth is bounded, so that nothing a page can hold
exhausts the stack. Implied sums are not its concern: :mod:`mha_book.notation.rules` makes them.
"""

import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import NamedTuple, NoReturn

import mha_book.notation.expression as ex
from mha_book.notation.expression import notation_error

__all__ = ["REASONS", "parse"]


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

_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
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
    """A piece of the source."""

    kind: str
    text: str
    start: int
    end: int

    def __str__(self) -> str:
        return "the end" if self.kind == "end" else f"'{self.text}'"


def tokenize(source: str) -> list[Token]:
    """Return the tokens of the source, without layout, and one for the end."""
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
        start = self.peek().start
        text = _NUMBER.match(self.source, start)[0]  # type: ignore[index]
        while self.peek().kind != "end" and self.peek().start < start + len(text):
            self.take()
        if len(text) > _DIGITS:
            self.fail(f"expected a number of at most {_DIGITS} digits", start)
        return Fraction(text)

    def primes(self) -> str:
        """Read the primes that stand next, if any."""
        count = 0
        while self.accept("'"):
            count += 1
        return "'" * count

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


_ENVIRONMENTS = ("aligned", "gathered", "split", "align", "align*", "equation", "equation*",
    "gather", "gather*")  # fmt: skip
_DEPTH = 20  # of brackets, fractions, roots and written sums inside one another
_POWER = 1000  # the largest: a number to a power of many digits would never be ready
_FRACTIONS = (r"\frac", r"\tfrac", r"\dfrac")
_FUNCTIONS = {rf"\{name}": name for name in ("exp", "log", "tanh", "sin", "cos")} | {r"\ln": "log"}
_CLOSING = {"(": ")", "[": "]"}
_REACH = "put the argument in brackets, for a reader cannot see where it ends"
_HEAD = (
    "a head in parentheses leaves the axis of the features unnamed: "
    "write every axis as an upper index, as in Q^{hia}"
)


@dataclass(frozen=True)
class Statement:
    """A chain ``a = b = c`` as it is written, without implied sums."""

    sides: tuple[ex.Expression, ...]  # at least two expressions
    source: str = field(default="", compare=False)  # the whole LaTeX, into which the spans point
    span: ex.Span = field(default=None, compare=False)  # where in it the statement stands


def parse(latex: str) -> tuple[Statement, ...]:
    r"""Return the statements of a piece of LaTeX.

    Args:
        latex: what stands between the dollars.

    Raises:
        ValueError: what is no statement of the notation; the message has a caret at the place.

    Example:
        >>> (statement,) = parse(r"y^i = \sum_j A^{ij} x^j")
        >>> statement.sides[0].name
        'y'
    """
    return Parser(latex).statements()


class Parser(Cursor):
    """Reads statements: one method for each thing that the grammar has."""

    def __init__(self, source: str):
        super().__init__(source)
        self._depth = 0

    def statements(self) -> tuple[Statement, ...]:
        """Read everything."""
        chains: list[list[ex.Expression]] = []
        spans: list[tuple[int, int]] = []
        environments: list[Token] = []
        while (token := self.peek()).kind != "end":
            if token.kind == "environment":
                self._environment(environments)
            elif token.kind == "row" or token.text == r"\qquad":
                self.take()
            elif token.text == "=" and chains:
                self._chain(chains[-1])
                spans[-1] = (spans[-1][0], self.end)
                self.accept(",", ".", ";")
            else:
                chains.append([self.expression()])
                if self.peek().text != "=":
                    self.refuse("'='" if self._at_end() else "'=', an operator or a factor")
                self._chain(chains[-1])
                spans.append((token.start, self.end))
                self.accept(",", ".", ";")
        if environments:
            self.fail("the environment is not ended", environments[-1])
        if not chains:
            self.fail("expected an equation, found nothing", token)
        pairs = zip(chains, spans, strict=True)
        return tuple(Statement(tuple(sides), self.source, span) for sides, span in pairs)

    def _environment(self, stack: list[Token]) -> None:
        token = self.peek()
        name = token.text.partition("{")[2][:-1].strip()
        if token.text.startswith(r"\begin"):
            if name not in _ENVIRONMENTS:
                self.refuse("an equation")
            stack.append(self.take())
        elif stack and stack[-1].text.partition("{")[2][:-1].strip() == name:
            stack.pop()
            self.take()
        else:
            self.fail(f"{token} ends no environment that is open", token)

    def _chain(self, sides: list[ex.Expression]) -> None:
        while self.accept("="):
            sides.append(self.expression())
        if not self._at_end():
            self.refuse("an operator, a factor or the end of the equation")

    def _at_end(self) -> bool:
        token = self.peek()
        ends = token.text in (",", ".", ";", r"\qquad") or token.text.startswith(r"\end")
        return ends or token.kind in ("row", "end")

    # Expressions: terms, products, factors.

    def _deeper(self, step: int) -> None:
        self._depth += step
        if self._depth > _DEPTH:
            self.fail(f"expected at most {_DEPTH} levels of brackets and sums", self.peek())

    def expression(self) -> ex.Expression:
        """Read terms with ``+`` and ``-`` between."""
        self._deeper(+1)
        start = self.peek().start
        terms = [self._negative(self._product()) if self.accept("-") else self._product()]
        while operator := self.accept("+", "-"):
            term = self._product()
            terms.append(self._negative(term) if operator.text == "-" else term)
        self._deeper(-1)
        return terms[0] if len(terms) == 1 else ex.Add(tuple(terms), (start, self.end))

    def _negative(self, term: ex.Expression) -> ex.Expression:
        match term:
            case ex.Number(value):
                return replace(term, value=-value)
            case ex.Product((ex.Number(value), *others)):
                return replace(term, factors=(ex.Number(-value), *others))
            case ex.Product(factors):
                return replace(term, factors=(ex.Number(Fraction(-1)), *factors))
        return ex.Product((ex.Number(Fraction(-1)), term), term.span)

    def _product(self) -> ex.Expression:
        start = self.peek().start
        factors: list[ex.Expression] = []
        operator: Token | None = None
        while operator or not factors or self._starts_factor():
            token = self.peek()
            if token.kind == "digit" and factors and not operator:
                self.fail(r"expected \cdot before a number that is no first factor", token)
            factor, is_open = self._factor()
            factors.append(factor)
            if is_open:
                self._ends_product(f"what does {token} reach? {_REACH}", token)
            operator = self.accept(r"\cdot", r"\times")
        result = factors[0] if len(factors) == 1 else ex.Product(tuple(factors), (start, self.end))
        if slash := self.accept("/"):
            divisor = self._atom("one factor behind '/'")
            self._ends_product(r"what does '/' reach? write \frac or brackets", slash)
            result = self._quotient(result, divisor, start)
        return result

    def _ends_product(self, message: str, token: Token) -> None:
        if self._starts_factor() or self.peek().text in ("/", "^", r"\cdot", r"\times"):
            self.fail(f"ambiguous: {message}", token)

    def _starts_factor(self) -> bool:
        token = self.peek()
        return (
            starts_name(token)
            or token.kind == "digit"
            or token.text in ("(", "[", r"\sum", r"\sqrt", *_FRACTIONS)
            or token.text in _FUNCTIONS
        )

    def _factor(self) -> tuple[ex.Expression, bool]:
        """Read a factor; return also whether it is a function that no bracket ends."""
        token = self.peek()
        if token.text == r"\sum":
            return self._sum(), False
        if token.text not in _FUNCTIONS:
            return self._atom("a factor"), False
        self.take()
        after = self.peek()
        if after.text in ("^", "_"):
            self.fail(f"{token} takes no index and no power: bracket its value", after)
        argument: ex.Expression
        if after.text in _CLOSING:
            argument = self._bracket()
            self._no_script(f"the value of {token}")
        elif after.text == r"\sum":
            argument = self._sum()
        else:
            argument = self._atom("an argument in brackets")
        function = ex.Function(_FUNCTIONS[token.text], argument, (token.start, self.end))
        return function, after.text not in _CLOSING

    def _no_script(self, what: str) -> None:
        if self.peek().text in ("^", "_", "'"):
            self.fail(f"bracket {what} before a power; indices belong to names", self.peek())

    def _atom(self, expected: str) -> ex.Expression:
        token = self.peek()
        if token.text == r"\delta":
            return self._delta()
        if starts_name(token):
            return self._tensor()
        if token.kind == "digit":
            return self._power(ex.Number(self.number(), (token.start, self.end)), token.start)
        if token.text in _CLOSING:
            return self._power(self._bracket(), token.start)
        if token.text in _FRACTIONS:
            return self._fraction()
        if token.text == r"\sqrt":
            self.take()
            argument = self._group()
            self._no_script("a root")
            return ex.Function("sqrt", argument, (token.start, self.end))
        self.refuse(expected)

    def _power(self, base: ex.Expression, start: int) -> ex.Expression:
        if self.peek().text != "^":
            self._no_script("it")
            return base
        place = self.peek()
        _, exponent = self._upper()
        if exponent is None:
            self.fail("expected a power above a bracket: indices belong to names", place, self.end)
        self._no_script("a power")
        return ex.Power(base, exponent, (start, self.end))

    def _bracket(self) -> ex.Expression:
        opening = self.take()
        inner = self.expression()
        closing = _CLOSING[opening.text]
        if self.peek().text == ",":
            self.fail("a list has no index: let an upper index count its entries", self.peek())
        if self.peek().text != closing:
            self.refuse(f"an operator, a factor or '{closing}'")
        self.take()
        return inner

    def _group(self) -> ex.Expression:
        """Read an argument of a command: in braces, or a single letter or digit."""
        token = self.peek()
        if self.accept("{"):
            inner = self.expression()
            if self.peek().text != "}":
                self.refuse("an operator, a factor or '}'")
            self.take()
            return inner
        if token.kind == "digit":
            return ex.Number(Fraction(self.take().text), (token.start, self.end))
        if token.kind == "letter" or (token.kind == "command" and starts_name(token)):
            name = self.take().text
            return ex.Tensor(name, (), (token.start, self.end))
        self.refuse("an argument in braces")

    def _fraction(self) -> ex.Expression:
        start = self.take()
        if self.peek().text == "{" and self.peek(1).text == r"\partial":
            upper, lower = self._partial(), self._partial()
            result: ex.Expression = ex.Derivative(upper, lower, (start.start, self.end))
        else:
            numerator = self._group()
            result = self._quotient(numerator, self._group(), start.start)
        self._no_script("a fraction")
        return result

    def _quotient(self, upper: ex.Expression, lower: ex.Expression, start: int) -> ex.Expression:
        if isinstance(lower, ex.Number) and not lower.value:
            self.fail("a division by zero", start)
        if isinstance(upper, ex.Number) and isinstance(lower, ex.Number):
            return ex.Number(upper.value / lower.value, (start, self.end))
        return ex.Quotient(upper, lower, (start, self.end))

    def _partial(self) -> ex.Tensor:
        self.expect("{", " before a partial derivative")
        self.expect(r"\partial", " in a derivative")
        if not starts_name(self.peek()):
            self.refuse(r"a tensor behind \partial")
        start = self.peek()
        tensor = self._tensor()
        if not isinstance(tensor, ex.Tensor):
            self.fail("a derivative is of a tensor by a tensor, without powers", start, self.end)
        self.expect("}", " behind the tensor of a derivative")
        return tensor

    def _tensor(self) -> ex.Tensor | ex.Power:
        token = self.peek()
        name, indices, power = self._name()
        tensor = ex.Tensor(name, indices, (token.start, self.end))
        if token.kind == "word" and not indices and self.peek().text in _CLOSING:
            word = token.text.partition("{")[2][:-1]
            how = "a quotient of exponentials" if word.lower() == "softmax" else "its formula"
            self.fail(rf"{word} is no function of the notation: write out {how}", token)
        if power is None:
            return tensor
        return ex.Power(replace(tensor, indices=()), power, (token.start, self.end))

    def _delta(self) -> ex.Delta:
        start = self.take()
        indices: list[ex.Index] = []
        while self.accept("^", "_"):
            indices.extend(self._indices())
        if len(indices) != 2 or not all(isinstance(index, str) for index in indices):
            self.fail("expected a delta with two indices", start, self.end)
        return ex.Delta(str(indices[0]), str(indices[1]), (start.start, self.end))

    def _sum(self) -> ex.Sum:
        start = self.take()
        self.expect("_", r" behind \sum: a sum names its index")
        indices = self._sum_indices()
        if len(set(indices)) < len(indices):
            self.fail("a sum names each index once", start, self.end)
        self._deeper(+1)
        body = self._product()
        self._deeper(-1)
        return ex.Sum(indices, body, True, (start.start, self.end))

    # Names, and the groups of indices above a name and below a sum.

    def _index(self) -> str:
        """Read one index: a lower-case letter or a Greek one, with its primes."""
        token = self.peek()
        if token.text == "T":
            self.fail("expected an index, found 'T': " + REASONS[r"\top"], token)
        if token.kind == "letter" and token.text.isupper():
            self.fail(f"expected an index, found {token}: indices are lower-case letters", token)
        if token.kind == "word":
            self.fail(
                f"expected an index, found {token}: a word is part of a name, below it", token
            )
        if not is_index(token):
            self.refuse("an index (a lower-case letter)")
        return self.take().text + self.primes()

    def _indices(self) -> tuple[ex.Index, ...]:
        """Read the indices of an upper group, with or without braces, behind the ``^``."""
        if not self.accept("{"):
            if self.peek().text == "(":
                self.fail(f"expected an index, found '(': {_HEAD}", self.peek())
            return (self._bare_index(),)
        found: list[ex.Index] = []
        braces = 1
        alone = commas = 0  # entries since the last comma; commas so far
        bare: Token | None = None  # a sign outside parentheses: it needs commas around
        while braces:
            token = self.peek()
            if token.text == "{":
                self.take()
                braces += 1
            elif token.text == "}":
                self.take()
                braces -= 1
            elif token.text == "," and found:
                self.take()
                alone, commas = 0, commas + 1
            elif token.text in ("+", "-") and alone == 1 and isinstance(found[-1], str):
                bare = bare or token
                found[-1] = self._affine(found[-1])
            elif token.text == "(":
                start = self.take()
                found.append(self._affine())
                self.expect(")", " at the end of a computed position")
                if _is_single(found[-1]):
                    self.fail(f"expected a sum in the parentheses: {_HEAD}", start, self.end)
                alone += 1
            else:
                found.append(self._index())
                alone += 1
        if bare and not commas:
            self.fail("a computed position stands in parentheses or between commas", bare)
        if not found:
            self.fail("expected an index, found an empty group", self.end - 1)
        return tuple(found)

    def _bare_index(self) -> str:
        """An index without braces takes no primes: LaTeX would set two upper groups."""
        if not is_index(self.peek()):
            return self._index()
        return self.take().text

    def _affine(self, first: str | None = None) -> ex.Affine:
        """Read a sum of indices with factors; its first index may have been read already."""
        terms: dict[str, int | str] = {} if first is None else {first: 1}
        offset: int | str = 0
        start = self.peek()
        sign = 1
        if self.accept("-"):
            sign = -1
        elif first is not None:
            self.expect("+")
        while True:
            token = self.peek()
            factor, index = self._affine_term()
            if isinstance(factor, str) and sign < 0:
                self.fail("expected a sum: a named size is not subtracted here", token, self.end)
            value = factor if isinstance(factor, str) else sign * factor
            if index is not None:
                if index in terms:
                    self.fail(f"the index {index} stands twice in a position", token, self.end)
                terms[index] = value
            elif isinstance(value, int) and isinstance(offset, int):
                offset += value
            elif offset == 0:
                offset = value
            else:
                self.fail("expected one number or one named size", token, self.end)
            if not (operator := self.accept("+", "-")):
                break
            sign = -1 if operator.text == "-" else 1
        if not terms:
            message = "a fixed position is no index"
            if first is None and isinstance(offset, int):
                message = f"{message}: {_HEAD}"
            self.fail(message, start, self.end)
        return ex.Affine(tuple((k, i) for i, k in terms.items()), offset)

    def _affine_term(self) -> tuple[int | str, str | None]:
        factor: int | str | None = None
        index: str | None = None
        while True:
            token = self.peek()
            value: int | str
            if token.kind == "digit" and factor is None:
                number = self.number()
                if number.denominator != 1:
                    self.fail("expected a whole number in a position", token, self.end)
                factor = number.numerator
            elif starts_name(token) and token.text not in ACCENTS:
                value = self.word()
                if self.peek().text == "_":
                    value += self.subscript()
                elif is_index(token):
                    if index is not None:
                        self.fail("expected a sum: a position has no product of indices", token)
                    index = value + self.primes()
                    continue
                if factor is not None:
                    self.fail("expected one factor for each index of a position", token)
                factor = value
            elif factor is None and index is None:
                self.refuse("an index, a whole number or a size in a position")
            else:
                return (1 if factor is None else factor), index

    def _sum_indices(self) -> tuple[str, ...]:
        r"""Read what stands below a sum, and above: ``_j``, ``_{i,j}``, ``_{j=1}^{T}``."""
        if not self.accept("{"):
            return (self._bare_index(),)
        indices = [self._index()]
        while self.peek().text not in ("}", "="):
            self.accept(",")
            indices.append(self._index())
        if self.accept("="):
            if len(indices) > 1:
                self.fail("bounds belong to a sum over one index", self.peek())
            self._bounds()
            return tuple(indices)
        self.expect("}")
        if self.peek().text == "^":
            self.fail("expected a lower bound as well: j=1 or j=0", self.peek())
        return tuple(indices)

    def _bounds(self) -> None:
        """Read bounds from the lower one on: a whole axis, 1 to N or 0 to N-1."""
        lower = self.take()
        if lower.text not in ("0", "1"):
            self.fail(f"expected a sum from 0 or from 1, found {lower}", lower)
        self.expect("}", " behind the lower bound")
        self.expect("^", " and the upper bound")
        braced = self.accept("{")
        upper = self.peek()
        if not starts_name(upper) or upper.text in ACCENTS:
            self.refuse("the name of a size as the upper bound")
        self.word()
        before_end = False
        if braced:
            if self.peek().text == "_":
                self.subscript()
            before_end = bool(self.accept("-") and self.expect("1", " behind the minus"))
        if before_end != (lower.text == "0"):
            self.fail("a sum runs over a whole axis: from 1 to N, or from 0 to N-1", upper)
        if braced:
            self.expect("}", " behind the upper bound")

    def _exponent(self) -> Fraction:
        """Read a number in an upper group: an integer, a decimal, or a quotient of integers."""
        sign = -1 if self.accept("-") else 1
        start = self.peek()
        if start.kind != "digit":
            if start.text == "T":
                self._index()
            self.refuse("a number as the power")
        value = self.number()
        if self.accept("/"):
            token = self.peek()
            if token.kind != "digit":
                self.refuse("a number")
            divisor = self.number()
            if not divisor:
                self.fail("a power divided by zero", token)
            value /= divisor
        if value > _POWER:
            self.fail(f"expected a power of at most {_POWER}", start, self.end)
        self.expect("}", " behind a power: a computed position would stand in parentheses")
        return sign * value

    def _upper(self) -> tuple[tuple[ex.Index, ...], Fraction | None]:
        """Read an upper group from its ``^`` on: the indices, or a power."""
        self.expect("^")
        token = self.peek()
        if token.kind == "digit":
            return (), Fraction(self.take().text)
        if token.text == "{":
            inner = self.peek(1)
            if inner.kind == "digit" or inner.text == "-":
                self.take()
                return (), self._exponent()
        return self._indices(), None

    def _name(self) -> tuple[str, tuple[ex.Index, ...], Fraction | None]:
        r"""Read a name with its subscript, primes, and what stands above: ``W_Q^{hba}``."""
        token = self.peek()
        if not starts_name(token):
            self.refuse("a name")
        text = self.word()
        if text in ACCENTS:
            braced = self.accept("{")
            inner = self.peek()
            if not starts_name(inner) or inner.text in ACCENTS:
                self.refuse("a letter below the accent")
            text = f"{text}{{{self.word()}}}"
            if braced:
                self.expect("}", " behind the letter below an accent")
        subscript = primes = ""
        upper: tuple[tuple[ex.Index, ...], Fraction | None] | None = None
        while (token := self.peek()).text in ("_", "'", "^"):
            if token.text == "_" and not subscript:
                subscript = self.subscript()
            elif token.text == "'" and upper is None and not primes:
                primes = self.primes()
            elif token.text == "^" and upper is None:
                upper = self._upper()
            else:
                why = "primes stand before indices" if token.text == "'" else "bracket it"
                self.fail(f"expected one group of each kind, found {token}: {why}", token)
        indices, power = upper or ((), None)
        return text + subscript + primes, indices, power


def _is_single(index: ex.Index) -> bool:
    if not isinstance(index, ex.Affine):
        return True
    return index.offset == 0 and [factor for factor, _ in index.terms] == [1]
