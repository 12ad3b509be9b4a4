"""What several tests of the notation need: reading, errors, programs, numbers of examples."""

from collections.abc import Callable
from typing import Any

import jax
import pytest

from mha_book.notation.parser import parse
from mha_book.notation.rules import Bound, bind

__all__ = ["bound", "examples", "largest", "marked"]


def bound(latex: str, **options: Any) -> Bound:
    """The one statement of a piece of LaTeX, with every sum a node."""
    (statement,) = parse(latex)
    return bind(statement, **options)


def marked(error: BaseException) -> str:
    """What the carets of an error stand under."""
    *_, line, carets = str(error).split("\n")
    assert set(carets) <= {" ", "^"}
    assert "^" in carets
    return line[carets.index("^") : carets.rindex("^") + 1]


def largest(function: Callable[..., Any], *arguments: Any) -> int:
    """The size of the largest array that a function makes, whatever it calls."""

    def sizes(jaxpr: Any) -> Any:
        for equation in jaxpr.eqns:
            yield from (variable.aval.size for variable in equation.outvars)
            for value in equation.params.values():
                if hasattr(value, "jaxpr"):
                    yield from sizes(value.jaxpr)

    return max(sizes(jax.make_jaxpr(function)(*arguments).jaxpr))


def examples(few: int, many: int) -> pytest.MarkDecorator:
    """Parametrize ``count`` by the number of examples: ``many`` where slow tests run."""
    return pytest.mark.parametrize(
        "count", [few, pytest.param(many, marks=pytest.mark.slow)], ids=["few", "many"]
    )
