r"""LaTeX read as statements: chains of expressions with ``=`` between.

A statement ends at a comma, a full stop or a semicolon outside brackets, at ``\\``, ``\qquad``
and the end of an environment (aligned, gathered, split). A row that begins with ``=`` goes on
with the chain of the row before.

The parser goes through the tokens once, from left to right. Implied sums are not its concern:
:mod:`mha_book.notation.rules` makes them.
"""

from dataclasses import dataclass, field, replace
from fractions import Fraction

from mha_book.notation.expression import (
    Add,
    Delta,
    Derivative,
    Expression,
    Function,
    Index,
    Number,
    Power,
    Product,
    Quotient,
    Span,
    Sum,
    Tensor,
)
from mha_book.notation.lexer import Cursor, Token
from mha_book.notation.names import (
    read_index,
    read_indices,
    read_name,
    read_number,
    read_upper,
    starts_name,
)

__all__ = ["Parser", "Statement", "parse"]

_DEPTH = 20  # of brackets, fractions, roots and written sums inside one another
_FRACTIONS = (r"\frac", r"\tfrac", r"\dfrac")
_FUNCTIONS = {rf"\{name}": name for name in ("exp", "log", "tanh", "sin", "cos")} | {r"\ln": "log"}
_ENVIRONMENTS = ("aligned", "gathered", "split", "align", "align*", "equation", "equation*",
    "gather", "gather*", "alignedat")  # fmt: skip
_CLOSING = {"(": ")", "[": "]"}
_REACH = "put the argument in brackets, for a reader cannot see where it ends"


@dataclass(frozen=True)
class Statement:
    """A chain ``a = b = c`` as it is written, without implied sums.

    Attributes:
        sides: at least two expressions.
        source: the whole LaTeX, into which the spans point.
        span: where in it the statement stands.
    """

    sides: tuple[Expression, ...]
    source: str = field(default="", compare=False)
    span: Span = field(default=None, compare=False)


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
    """Reads statements; each method reads one thing and returns its expression."""

    def __init__(self, source: str):
        super().__init__(source)
        self._depth = 0

    def statements(self) -> tuple[Statement, ...]:
        """Read everything."""
        found: list[Statement] = []
        open_environments: list[Token] = []
        while (token := self.peek()).kind != "end":
            if token.kind == "environment":
                self._environment(open_environments)
            elif token.kind == "row" or token.text == r"\qquad":
                self.take()
            elif token.text == "=" and found:
                found[-1] = self._chain(token.start, found[-1])
            else:
                found.append(self._chain(token.start))
        if open_environments:
            self.fail("the environment is not ended", open_environments[-1])
        if not found:
            self.fail("expected an equation, found nothing", token)
        return tuple(found)

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

    def _chain(self, start: int, before: Statement | None = None) -> Statement:
        sides = list(before.sides) if before else [self.expression()]
        if before is None and self.peek().text != "=":
            self.refuse("'='" if self._at_end() else "'=', an operator or a factor")
        while self.accept("="):
            sides.append(self.expression())
        if not self._at_end():
            self.refuse("an operator, a factor or the end of the equation")
        span = (before.span[0] if before and before.span else start, self.end)
        self.accept(",", ".", ";")
        return Statement(tuple(sides), self.source, span)

    def _at_end(self) -> bool:
        token = self.peek()
        ends = token.text in (",", ".", ";", r"\qquad") or token.text.startswith(r"\end")
        return ends or token.kind in ("row", "end")

    def _deeper(self, step: int) -> None:
        self._depth += step
        if self._depth > _DEPTH:
            self.fail(f"expected at most {_DEPTH} levels of brackets and sums", self.peek())

    def expression(self) -> Expression:
        """Read terms with ``+`` and ``-`` between."""
        self._deeper(+1)
        start = self.peek().start
        terms = [self._negative(self._product()) if self.accept("-") else self._product()]
        while operator := self.accept("+", "-"):
            term = self._product()
            terms.append(self._negative(term) if operator.text == "-" else term)
        self._deeper(-1)
        return terms[0] if len(terms) == 1 else Add(tuple(terms), (start, self.end))

    def _negative(self, term: Expression) -> Expression:
        match term:
            case Number(value):
                return replace(term, value=-value)
            case Product((Number(value), *others)):
                return replace(term, factors=(Number(-value), *others))
            case Product(factors):
                return replace(term, factors=(Number(Fraction(-1)), *factors))
        return Product((Number(Fraction(-1)), term), term.span)

    def _product(self) -> Expression:
        start = self.peek().start
        factors: list[Expression] = []
        operator: Token | None = None
        while operator or not factors or self._starts_factor():
            token = self.peek()
            if token.kind == "digit" and factors and not operator:
                self.fail(rf"expected \cdot before a number that is no first factor", token)
            factors.append(self._factor())
            if token.text in _FUNCTIONS and not self._closed:
                self._ends_product(f"what does {token} reach? {_REACH}", token)
            operator = self.accept(r"\cdot", r"\times")
        result = factors[0] if len(factors) == 1 else Product(tuple(factors), (start, self.end))
        if slash := self.accept("/"):
            divisor = self._atom("one factor behind '/'")
            self._ends_product(rf"what does '/' reach? write \frac or brackets", slash)
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

    def _factor(self) -> Expression:
        token = self.peek()
        if token.text == r"\sum":
            return self._sum()
        if token.text not in _FUNCTIONS:
            return self._atom("a factor")
        self.take()
        self._closed = self.peek().text in _CLOSING
        if self.peek().text in ("^", "_"):
            self.fail(f"{token} takes no index and no power: bracket its value", self.peek())
        if self.peek().text == r"\sum":
            argument = self._sum()
            closed = False
        else:
            closed = self._closed
            argument = self._bracket() if closed else self._atom("an argument in brackets")
        self._closed = closed
        if closed:
            self._no_script(f"the value of {token}")
        return Function(_FUNCTIONS[token.text], argument, (token.start, self.end))

    def _no_script(self, what: str) -> None:
        if self.peek().text in ("^", "_", "'"):
            self.fail(f"bracket {what} before a power; indices belong to names", self.peek())

    def _atom(self, expected: str) -> Expression:
        token = self.peek()
        if token.text == r"\delta":
            return self._delta()
        if starts_name(token):
            return self._tensor()
        if token.kind == "digit":
            return self._power(Number(read_number(self), (token.start, self.end)), token.start)
        if token.text in _CLOSING:
            return self._power(self._bracket(), token.start)
        if token.text in _FRACTIONS:
            return self._fraction()
        if token.text == r"\sqrt":
            self.take()
            argument = self._group()
            self._no_script("a root")
            return Function("sqrt", argument, (token.start, self.end))
        self.refuse(expected)

    def _power(self, base: Expression, start: int) -> Expression:
        if self.peek().text != "^":
            self._no_script("it")
            return base
        place = self.peek()
        indices, exponent = read_upper(self)
        if exponent is None:
            self.fail("expected a power above a bracket: indices belong to names", place, self.end)
        self._no_script("a power")
        return Power(base, exponent, (start, self.end))

    def _bracket(self) -> Expression:
        opening = self.take()
        inner = self.expression()
        closing = _CLOSING[opening.text]
        if self.peek().text == ",":
            self.fail("a list has no index: let an upper index count its entries", self.peek())
        if self.peek().text != closing:
            self.refuse(f"an operator, a factor or '{closing}'")
        self.take()
        return inner

    def _group(self) -> Expression:
        """Read an argument of a command: in braces, or a single letter or digit."""
        token = self.peek()
        if self.accept("{"):
            inner = self.expression()
            if self.peek().text != "}":
                self.refuse("an operator, a factor or '}'")
            self.take()
            return inner
        if token.kind == "digit":
            return Number(Fraction(self.take().text), (token.start, self.end))
        if token.kind == "letter" or (token.kind == "command" and starts_name(token)):
            name = self.take().text
            return Tensor(name, (), (token.start, self.end))
        self.refuse("an argument in braces")

    def _fraction(self) -> Expression:
        start = self.take()
        if self.peek().text == "{" and self.peek(1).text == r"\partial":
            upper, lower = self._partial(), self._partial()
            result: Expression = Derivative(upper, lower, (start.start, self.end))
        else:
            numerator = self._group()
            result = self._quotient(numerator, self._group(), start.start)
        self._no_script("a fraction")
        return result

    def _quotient(self, upper: Expression, lower: Expression, start: int) -> Expression:
        if isinstance(lower, Number) and not lower.value:
            self.fail("a division by zero", start)
        if isinstance(upper, Number) and isinstance(lower, Number):
            return Number(upper.value / lower.value, (start, self.end))
        return Quotient(upper, lower, (start, self.end))

    def _partial(self) -> Tensor:
        self.expect("{", " before a partial derivative")
        self.expect(r"\partial", " in a derivative")
        if not starts_name(self.peek()):
            self.refuse("a tensor behind \\partial")
        tensor = self._tensor()
        if not isinstance(tensor, Tensor):
            self.fail("a derivative is of a tensor by a tensor, without powers", tensor.span[0])
        self.expect("}", " behind the tensor of a derivative")
        return tensor

    def _tensor(self) -> Tensor | Power:
        token = self.peek()
        name = read_name(self)
        tensor = Tensor(name.text, name.indices, (token.start, self.end))
        if token.kind == "word" and not name.indices and self.peek().text in _CLOSING:
            word = token.text.partition("{")[2][:-1]
            how = "a quotient of exponentials" if word.lower() == "softmax" else "its formula"
            self.fail(rf"{word} is no function of the notation: write out {how}", token)
        if name.power is None:
            return tensor
        return Power(replace(tensor, indices=()), name.power, (token.start, self.end))

    def _delta(self) -> Delta:
        start = self.take()
        indices: list[Index] = []
        while self.accept("^", "_"):
            indices.extend(read_indices(self))
        if len(indices) != 2 or not all(isinstance(index, str) for index in indices):
            self.fail("expected a delta with two indices", start, self.end)
        return Delta(str(indices[0]), str(indices[1]), (start.start, self.end))

    def _sum(self) -> Sum:
        start = self.take()
        self.expect("_", r" behind \sum: a sum names its index")
        indices = [read_index(self)] if not self.accept("{") else self._sum_indices()
        if len(set(indices)) < len(indices):
            self.fail("a sum names each index once", start, self.end)
        self._deeper(+1)
        body = self._product()
        self._deeper(-1)
        return Sum(tuple(indices), body, True, (start.start, self.end))

    def _sum_indices(self) -> list[str]:
        indices = [read_index(self)]
        while self.peek().text not in ("}", "="):
            self.accept(",")
            indices.append(read_index(self))
        if not self.accept("="):
            self.expect("}")
            if self.peek().text == "^":
                self.fail("expected a lower bound as well: j=1 or j=0", self.peek())
            return indices
        lower = self.peek()
        if len(indices) > 1 or lower.text not in ("0", "1"):
            self.fail("expected one index that begins at 0 or at 1", lower)
        self.take()
        self.expect("}", " behind the lower bound")
        self.expect("^", " and the upper bound")
        braced = self.accept("{")
        upper = self.peek()
        if not starts_name(upper):
            self.refuse("the name of a size as the upper bound")
        if not braced:
            self.take()
            complete = lower.text == "1"
        else:
            name = read_name(self)
            minus = self.accept("-")
            one = minus and self.accept("1")
            complete = (lower.text == "1") != bool(one) and bool(minus) == bool(one)
            complete = complete and not name.indices and name.power is None
            if complete:
                self.expect("}", " behind the upper bound")
        if not complete:
            self.fail("a sum runs over a whole axis: from 1 to N, or from 0 to N-1", upper)
        return indices
