"""What a page asks of its reader, counted from its source: words, figures, code, printed lines.

The status page shows a part of it; ``tests/book/test_pages.py`` holds the pages to their budget.

A word is what stands between spaces in the text of a page: displayed equations, code blocks, the
lines of directives and bodies of directives between backticks are left out; a formula in the line
and a number that a cell put there count as one word each. The sentence of a claim comes from the
ledger and is not counted.
"""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from mha_book_toc import numbered_pages

WORDS, SCREENS = 3000, 25.0  # of a page, at most
OPEN_LINES = 25  # of one cell; what has to be longer is folded or is a file of the package


class Counts(NamedTuple):
    """The counts of one page."""

    words: int  # of prose
    longest: int  # lines of the longest cell that is not folded
    longest_cell: str  # its id
    booleans: int  # printed lines that give nothing but True or False
    set_up_folded: bool | None  # whether the first code cell is folded; None where there is none


_BLOCK = re.compile(r"^[ \t]*(`{3,}|~{3,}).*?^[ \t]*\1[ \t]*$", re.M | re.S)
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_TEX_BLOCK = re.compile(r"^\\begin\{(\w+\*?)\}.*?\\end\{\1\}", re.M | re.S)
_DISPLAYED = re.compile(r"\$\$.+?\$\$(?:[ \t]*\([^()\n]+\))?", re.S)
_FENCE_LINE = re.compile(r"^[ \t]*:{3,}.*$", re.M)
_OPTION_LINE = re.compile(r"^[ \t]*:[\w-]+:.*$", re.M)
_TARGET = re.compile(r"^\([\w-]+\)=[ \t]*$", re.M)
_MATH = re.compile(r"(?<![\\$])\$[^$\n]+(?:\n[^$\n]+)?\$")
_GLUE = re.compile(r"\{glue:\w*\}`[^`]*`")
_ROLE = re.compile(r"\{[\w:-]+\}`([^`]*)`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_NUMBER = re.compile(r"(?<![\w.-])\d+(?:[.,  ]\d+)*(?![\w-])")
_CODE = re.compile(r"(`+)(.+?)\1", re.S)
_CITE = re.compile(r"\{cite[\w:]*\}`[^`]*`")
_CITED = re.compile(r"[^.\n]*(?:\.\d[^.\n]*)*¶[^.\n]*")
_BOOLEAN = re.compile(r"(?:^|[\s:=(\[,])(?:True|False)[\s.,;)\]]*$")


def prose(markdown: str) -> str:
    """Return the text that a reader reads as prose; a formula is ``§``, a glued number ``¤``."""
    text = _COMMENT.sub(" ", markdown)
    text = _BLOCK.sub("\n", text)
    for lines in (_TEX_BLOCK, _DISPLAYED, _FENCE_LINE, _OPTION_LINE, _TARGET):
        text = lines.sub("\n", text)
    text = _GLUE.sub("¤", text)
    text = _MATH.sub("§", text)
    text = _ROLE.sub(lambda role: re.sub(r"\s*<[^>]*>$", "", role[1]), text)
    text = _LINK.sub(lambda link: link[1], text)
    return text


def words(markdown: str) -> int:
    """Return how many words of prose a text has."""
    return sum(bool(re.search(r"[\w§¤]", piece)) for piece in prose(markdown).split())


def typed_numbers(markdown: str) -> list[str]:
    """Return the numbers in the prose of a text that no cell put there.

    Formulas, code, headings, the numbers of lists, years of the notes' kind (1790 to 2026) and
    sentences that cite a work are left out.
    """
    text = _CITED.sub(" ", _CODE.sub(" ", prose(_CITE.sub("¶", markdown))))
    text = re.sub(r"^[ \t]*(?:#.*|\d+\.(?=\s))", "", text, flags=re.M)
    found = _NUMBER.findall(text)
    return [number for number in found if not re.fullmatch(r"1[789]\d\d|20[0-3]\d", number)]


def read_typed(root: Path) -> dict[str, dict[Any, str]]:
    """Return the list of typed numbers, page by page, each with what it is."""
    return yaml.safe_load((root / "book" / "typed.yml").read_text(encoding="utf8"))


def loose_numbers(cells: list[dict[str, Any]], listed: dict[Any, str]) -> list[str]:
    """Return the typed numbers of a page that no cell of their section has and no line explains.

    A cell has a number that is in its code, where the reader sees what it is, or in what it
    printed, drew into a table or glued, which is computed again; also rounded to the decimals of
    the prose, or in percent. A whole number may also be in the code of another section, as the
    settings of an experiment are.
    """
    sections: list[tuple[list[str], list[str]]] = [([], [])]  # prose; what cells have
    code = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            code.append(source)
            sections[-1][1].append(source)
            for output in cell["outputs"]:
                data = output.get("data", {}).items()
                sections[-1][1].append("".join(output.get("text", "")))
                sections[-1][1].extend("".join(v) for k, v in data if "text" in k)
        else:
            for number, text in enumerate(re.split(r"^(?=## )", source, flags=re.M)):
                if number:
                    sections.append(([], []))
                sections[-1][0].append(text)
    settings = {value for value in _values(code) if value == int(value)} | {0.0, 1.0, 2.0}
    loose = []
    for prose_of, shown in sections:
        values = _values(shown) | {float(number) for number in listed}
        values |= {value * 100 for value in values}
        for number in typed_numbers("\n\n".join(prose_of)):
            if number.count(".") > 1:  # a version
                continue
            value, digits = float(re.sub(r"[,  ]", "", number)), len(number.partition(".")[2])
            if value not in ({round(v, digits) for v in values} if digits else values | settings):
                loose.append(number)
    return loose


def _values(texts: list[str]) -> set[float]:
    pieces = re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?", "\n".join(texts).replace("_", ""))
    return {float(piece.replace(",", "")) for piece in pieces}


def _printed(cell: dict[str, Any]) -> list[str]:
    """Return the lines that a cell prints in sight."""
    lines: list[str] = []
    if {"hide-output", "hide-cell", "remove-output", "remove-cell"} & _tags(cell):
        return lines
    for output in cell["outputs"]:
        data = output.get("data", {})
        if output.get("name") == "stdout":
            lines += "".join(output["text"]).splitlines()
        elif output["output_type"] == "execute_result" and not any("image/" in x for x in data):
            lines += "".join(data.get("text/plain", "")).splitlines()
    return lines


def _tags(cell: dict[str, Any]) -> set[str]:
    return {*cell["metadata"].get("tags", ())}


def _folded(cell: dict[str, Any]) -> bool:
    """Whether the code of a cell is out of sight."""
    return any(tag.startswith(("hide-", "remove-")) for tag in _tags(cell))


def count_page(path: Path) -> Counts:
    """Count a notebook."""
    cells = json.loads(path.read_text(encoding="utf8"))["cells"]
    text = "\n\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    sources = {c.get("id", ""): "".join(c["source"]) for c in code if not _folded(c)}
    lengths = {name: sum(map(bool, text.split("\n"))) for name, text in sources.items()}
    longest = max(lengths, key=lambda name: lengths[name], default="")
    return Counts(
        words=words(text),
        longest=lengths.get(longest, 0),
        longest_cell=longest,
        booleans=sum(bool(_BOOLEAN.search(line)) for cell in code for line in _printed(cell)),
        set_up_folded=next((_folded(c) for c in code if "remove-cell" not in _tags(c)), None),
    )


def budgeted_pages(root: Path) -> list[str]:
    """Return the pages that keep the budget: the introduction and every chapter."""
    return [page for _, page in numbered_pages(root)]


def budget_problems(counts: Counts) -> list[str]:
    """Return in what a page is over its budget; one line each."""
    words, longest, cell, booleans, folded = counts
    problems = {
        f"{words} words of prose, at most {WORDS}": words > WORDS,
        f"{booleans} printed lines are True or False: print what teaches": booleans,
        f"the open cell {cell} has {longest} lines, at most {OPEN_LINES}": longest > OPEN_LINES,
        "the first code cell, the set-up, is not folded (tag it hide-input)": folded is False,
    }
    return [problem for problem, is_one in problems.items() if is_one]
