"""The displayed equations of a page of the book: the LaTeX that the reader sees, by its label."""

import json
import re
from pathlib import Path

__all__ = ["displayed_equations", "page_equations", "page_text"]

_FENCE = re.compile(r"^(`{3,}|~{3,})[ \t]*(\{?[\w-]*\}?)[^\n]*\n(.*?)^\1[ \t]*$", re.M | re.S)
_COLON_MATH = re.compile(r"^(:{3,})[ \t]*\{math\}[^\n]*\n(.*?)^\1[ \t]*$", re.M | re.S)
_OPTION = re.compile(r"^:(\w+):[ \t]*(.*)\n?", re.M)
_CODE = re.compile(r"(`+)(?!`).+?(?<!`)\1(?!`)", re.S)
_DOLLARS = re.compile(r"\$\$(.+?)\$\$(?:[ \t]*\(([^()\n]+)\))?", re.S)
_BARE = re.compile(r"^\\begin\{(\w+\*?)\}.*?\\end\{\1\}", re.M | re.S)


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

    text = _COLON_MATH.sub(lambda m: directive(m[2]), markdown)
    text = _FENCE.sub(lambda m: directive(m[3]) if m[2] == "{math}" else "\n", text)
    text = _CODE.sub("", text)

    def dollars(match: re.Match[str]) -> str:
        found.append((match[2], match[1].strip()))
        return "\n"

    text = _DOLLARS.sub(dollars, text)
    found += [(None, match[0]) for match in _BARE.finditer(text)]
    return found


def page_text(path: Path | str) -> str:
    """Return the prose of a page: a Markdown file, or the Markdown cells of a notebook."""
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
