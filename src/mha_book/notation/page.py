"""The displayed equations of a page of the book: the LaTeX that the reader sees, by its label."""

import json
import re
from pathlib import Path

from mha_book._checks import check

__all__ = ["page_equations"]

_FENCED = re.compile(  # of colons only mathematics: other blocks show their text as the page does
    r"^(`{3,}|~{3,}|:{3,}(?=[ \t]*\{math\}))(?![`~:])[ \t]*(\{?[\w-]*\}?)[^\n]*\n(.*?)^\1[ \t]*$",
    re.M | re.S,
)
_OPTION = re.compile(r"^:(\w+):[ \t]*(.*)\n?", re.M)
_CODE = re.compile(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", re.S)
_DOLLARS = re.compile(r"\$\$(.+?)\$\$(?:[ \t]*\(([^()\n]+)\))?", re.S)
_BARE = re.compile(r"^\\begin\{(\w+\*?)\}.*?\\end\{\1\}", re.M | re.S)


def displayed_equations(markdown: str) -> list[tuple[str | None, str]]:
    r"""Return (label or None, LaTeX) of every displayed equation in the text of a page.

    ``$$ … $$ (label)``, ``{math}`` directives with ``:label:``, and bare ``\begin{…}`` blocks,
    which cannot carry a label.
    """
    found: list[tuple[str | None, str]] = []

    def directive(match: re.Match[str]) -> str:
        if match[2] == "{math}":
            label = dict(_OPTION.findall(match[3])).get("label")
            found.append((label, _OPTION.sub("", match[3]).strip()))
        return "\n"

    def dollars(match: re.Match[str]) -> str:
        found.append((match[2], match[1].strip()))
        return "\n"

    text = _DOLLARS.sub(dollars, _CODE.sub("", _FENCED.sub(directive, markdown)))
    return found + [(None, match[0]) for match in _BARE.finditer(text)]


def page_text(path: Path | str) -> str:
    """Return the prose of a page: a Markdown file, or the Markdown cells of a notebook."""
    check(isinstance(path, str | Path), "path", "a path", repr(path))
    text = Path(path).read_text(encoding="utf8")
    return notebook_text(text) if Path(path).suffix == ".ipynb" else text


def notebook_text(notebook: str) -> str:
    """Return the prose of a notebook, of which its JSON is given: the Markdown cells."""
    cells = (cell for cell in json.loads(notebook)["cells"] if cell["cell_type"] == "markdown")
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def page_equations(path: Path | str) -> dict[str, str]:
    """Return label to LaTeX of the equations that a page, a notebook or Markdown file, displays."""
    return {label: latex for label, latex in displayed_equations(page_text(path)) if label}
