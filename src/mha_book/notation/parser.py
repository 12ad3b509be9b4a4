r"""LaTeX read as statements: chains of expressions with ``=`` between.

A statement ends at a comma, a full stop or a semicolon outside brackets, at ``\\``, ``\qquad``
and the end of an environment (aligned, gathered, split). A row that begins with ``=`` goes on
with the chain of the row before.

The parser goes through the tokens once, from left to right. Implied sums are not its concern:
:mod:`mha_book.notation.rules` makes them.
"""

from dataclasses import dataclass, field

from mha_book.notation.lexer import Token
from mha_book.notation.nodes import Expression, Span
from mha_book.notation.terms import Terms

__all__ = ["Parser", "Statement", "parse"]

_ENVIRONMENTS = ("aligned", "gathered", "split", "align", "align*", "equation", "equation*",
    "gather", "gather*")  # fmt: skip


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


class Parser(Terms):
    """Reads statements. Its ``visited`` counts the tokens looked at."""

    def statements(self) -> tuple[Statement, ...]:
        """Read everything."""
        chains: list[list[Expression]] = []
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

    def _chain(self, sides: list[Expression]) -> None:
        while self.accept("="):
            sides.append(self.expression())
        if not self._at_end():
            self.refuse("an operator, a factor or the end of the equation")

    def _at_end(self) -> bool:
        token = self.peek()
        ends = token.text in (",", ".", ";", r"\qquad") or token.text.startswith(r"\end")
        return ends or token.kind in ("row", "end")
