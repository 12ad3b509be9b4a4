"""Errors that show the equation with a caret at the place."""

from mha_book.notation.nodes import Span

__all__ = ["notation_error"]

_WIDTH = 96  # characters of a line that are shown


def notation_error(message: str, source: str, span: Span = None) -> ValueError:
    """Return a ``ValueError`` that shows the line of the source and marks the span with carets.

    Args:
        message: what was found and what was expected.
        source: the whole LaTeX.
        span: from the first character meant to behind the last; None where nothing is known,
            then the first character is marked.

    Example:
        >>> print(notation_error("expected an index, found '2'", "A^{i2}", (4, 5)))
        expected an index, found '2'
          A^{i2}
              ^
    """
    start, end = span or (0, 1)
    start = min(max(start, 0), len(source))
    first = source.rfind("\n", 0, start) + 1
    last = source.find("\n", start)
    line = source[first : last if last >= 0 else len(source)]
    column = start - first
    width = max(1, min(end - start, len(line) - column))
    left = max(0, min(column - _WIDTH // 2, len(line) - _WIDTH))
    shown = line[left : left + _WIDTH]
    width = min(width, max(1, _WIDTH - (column - left)))
    before, after = "…" * (left > 0), "…" * (left + _WIDTH < len(line))
    shown = "".join(c if c.isprintable() else " " for c in shown)
    carets = " " * (len(before) + column - left) + "^" * width
    return ValueError(f"{message}\n  {before}{shown}{after}\n  {carets}")
