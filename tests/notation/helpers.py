"""What several tests of the notation need: reading, errors, numbers of examples."""

from collections.abc import Callable
from typing import Any

import pytest

from mha_book.notation.parser import parse
from mha_book.notation.rules import Bound, bind

__all__ = ["bound", "examples", "marked", "refused"]


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


def refused(read: Callable[[str], Any], latex: str, place: str, reason: str) -> None:
    """Assert that a text is refused for a reason, and what the carets stand under."""
    with pytest.raises(ValueError, match=reason) as caught:
        read(latex)
    assert marked(caught.value) == place


def examples(few: int, many: int) -> pytest.MarkDecorator:
    """Parametrize ``count`` by the number of examples: ``many`` where slow tests run."""
    return pytest.mark.parametrize(
        "count", [few, pytest.param(many, marks=pytest.mark.slow)], ids=["few", "many"]
    )
