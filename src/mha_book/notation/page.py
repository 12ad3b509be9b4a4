"""The displayed equations of a page of the book: the LaTeX that the reader sees, by its label."""

import json
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from mha_book._checks import check

__all__ = ["displayed_equations", "page_equations", "page_text"]

_FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*(\{?[\w-]*\}?)")
_COLON_MATH = re.compile(r"(:{3,})[ \t]*\{math\}")
_CLOSING = re.compile(r"(`{3,}|~{3,}|:{3,})[ \t]*")
_OPTION = re.compile(r"^:(\w+):[ \t]*(.*)\n?", re.M)
_TICKS = re.compile(r"`+")
_DOLLARS = re.compile(r"\$\$(.+?)\$\$(?:[ \t]*\(([^()\n]+)\))?", re.S)
_BEGIN = re.compile(r"^\\begin\{(\w+\*?)\}", re.M)
_END = re.compile(r"\\end\{(\w+\*?)\}")


def displayed_equations(markdown: str) -> list[tuple[str | None, str]]:
    r"""Return (label or None, LaTeX) of every displayed equation in the text of a page.

    ``$$ … $$ (label)``, ``{math}`` directives with ``:label:``, and bare ``\begin{…}`` blocks,
    which cannot carry a label.

    Example:
        >>> displayed_equations("A row of $$ y^i = A^{ij} x^j $$ (product) is a sum.")
        [('product', 'y^i = A^{ij} x^j')]
    """
    found = []

    def directive(body: str) -> str:
        options = dict(_OPTION.findall(body))
        found.append((options.get("label"), _OPTION.sub("", body).strip()))
        return "\n"

    text = _without_blocks(markdown, _COLON_MATH, lambda _, body: directive(body))
    text = _without_blocks(
        text, _FENCE, lambda m, body: directive(body) if m[2] == "{math}" else "\n"
    )
    text = _without_code(text)

    def dollars(match: re.Match[str]) -> str:
        found.append((match[2], match[1].strip()))
        return "\n"

    text = _DOLLARS.sub(dollars, text)
    found += [(None, block) for block in _bare_blocks(text)]
    return found


# Each looks for the end of what opens in a list made beforehand: a page of many openings without
# an end takes as long as any other.


def _without_blocks(
    text: str, opening: re.Pattern[str], replace: Callable[[re.Match[str], str], str]
) -> str:
    """Return the text with what stands between fences replaced."""
    lines = text.split("\n")
    closings = defaultdict[str, list[int]](list)
    for number, line in enumerate(lines):
        if closing := _CLOSING.fullmatch(line):
            closings[closing[1]].append(number)
    kept, at = [], 0
    while at < len(lines):
        match = opening.match(lines[at])
        end = _after(closings[match[1]], at) if match else None
        if match is None or end is None:
            kept.append(lines[at])
            at += 1
        else:
            kept.append(replace(match, "".join(f"{line}\n" for line in lines[at + 1 : end])))
            at = end + 1
    return "\n".join(kept)


def _without_code(text: str) -> str:
    """Return the text without what stands between runs of equally many backticks."""
    places = defaultdict[int, list[int]](list)
    for run in _TICKS.finditer(text):
        places[len(run[0])].append(run.start())
    kept, at = [], 0
    for run in _TICKS.finditer(text):
        width = len(run[0])
        end = _after(places[width], run.start()) if run.start() >= at else None
        if end is not None:
            kept.append(text[at : run.start()])
            at = end + width
    return "".join([*kept, text[at:]])


def _bare_blocks(text: str) -> list[str]:
    r"""Return every ``\begin{…}`` at the beginning of a line with all to its ``\end{…}``."""
    ends = defaultdict[str, list[int]](list)
    for match in _END.finditer(text):
        ends[match[1]].append(match.start())
    blocks, at = [], 0
    for match in _BEGIN.finditer(text):
        end = _after(ends[match[1]], match.start()) if match.start() >= at else None
        if end is not None:
            at = end + len(f"\\end{{{match[1]}}}")
            blocks.append(text[match.start() : at])
    return blocks


def _after(places: list[int], place: int) -> int | None:
    """Return the first of the ordered places behind one."""
    number = bisect_right(places, place)
    return places[number] if number < len(places) else None


def page_text(path: Path | str) -> str:
    """Return the prose of a page: a Markdown file, or the Markdown cells of a notebook."""
    check(isinstance(path, str | Path), "path", "a path", repr(path))
    text = Path(path).read_text(encoding="utf8")
    if Path(path).suffix != ".ipynb":
        return text
    cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def page_equations(path: Path | str) -> dict[str, str]:
    """Return the LaTeX of every labelled equation that a page displays.

    Args:
        path: a notebook, or a Markdown file.

    Returns:
        Label to LaTeX, in the order of the page.

    Raises:
        OSError: the page cannot be read.
    """
    return {label: latex for label, latex in displayed_equations(page_text(path)) if label}
