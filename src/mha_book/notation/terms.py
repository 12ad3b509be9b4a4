r"""Reading expressions: terms, products, factors.

One method reads one thing, goes forward only, and returns its expression. The depth is bounded,
so that nothing a page can hold exhausts the stack.
"""

from dataclasses import replace
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
    Sum,
    Tensor,
)
from mha_book.notation.indices import read_indices, read_sum_indices
from mha_book.notation.lexer import Cursor, Token
from mha_book.notation.names import read_name, read_upper
from mha_book.notation.pieces import read_number, starts_name

__all__ = ["Terms"]

_DEPTH = 20  # of brackets, fractions, roots and written sums inside one another
_FRACTIONS = (r"\frac", r"\tfrac", r"\dfrac")
_FUNCTIONS = {rf"\{name}": name for name in ("exp", "log", "tanh", "sin", "cos")} | {r"\ln": "log"}
_CLOSING = {"(": ")", "[": "]"}
_REACH = "put the argument in brackets, for a reader cannot see where it ends"


class Terms(Cursor):
    """A cursor that reads expressions."""

    def __init__(self, source: str):
        super().__init__(source)
        self._depth = 0

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
                self.fail(r"expected \cdot before a number that is no first factor", token)
            factor, is_open = self._factor()
            factors.append(factor)
            if is_open:
                self._ends_product(f"what does {token} reach? {_REACH}", token)
            operator = self.accept(r"\cdot", r"\times")
        result = factors[0] if len(factors) == 1 else Product(tuple(factors), (start, self.end))
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

    def _factor(self) -> tuple[Expression, bool]:
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
        argument: Expression
        if after.text in _CLOSING:
            argument = self._bracket()
            self._no_script(f"the value of {token}")
        elif after.text == r"\sum":
            argument = self._sum()
        else:
            argument = self._atom("an argument in brackets")
        function = Function(_FUNCTIONS[token.text], argument, (token.start, self.end))
        return function, after.text not in _CLOSING

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
        _, exponent = read_upper(self)
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
            self.refuse(r"a tensor behind \partial")
        start = self.peek()
        tensor = self._tensor()
        if not isinstance(tensor, Tensor):
            self.fail("a derivative is of a tensor by a tensor, without powers", start, self.end)
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
        indices = read_sum_indices(self)
        if len(set(indices)) < len(indices):
            self.fail("a sum names each index once", start, self.end)
        self._deeper(+1)
        body = self._product()
        self._deeper(-1)
        return Sum(indices, body, True, (start.start, self.end))
