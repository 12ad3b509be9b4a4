"""The words of a page's prose, and the numbers that are typed into it, from its source.

The status page shows how many; ``tests/book/test_pages.py`` holds the pages to their budget.

A word is what stands between spaces in the text of a page: displayed equations, code blocks, the
lines of directives and bodies of directives between backticks are left out; a formula in the line
and a number that a cell put there count as one word each. The sentence of a claim comes from the
ledger and is not counted.
"""

import re
from pathlib import Path
from typing import Any

from mha_book_toc import read

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
_COUNTS = {
    "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16, "seventeen": 17, "eighteen": 18,
    "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "eighty": 80, "ninety": 90,
}  # fmt: skip
_COUNT = re.compile(rf"\b(?:{'|'.join(_COUNTS)})\b(?!-)", re.I)
CITED = re.compile(r"[^.\n]*(?:\.\d[^.\n]*)*¶[^.\n]*")


def prose(markdown: str) -> str:
    """Return the text that a reader reads as prose; a formula is ``§``, a glued number ``¤``."""
    text = _COMMENT.sub(" ", markdown)
    text = _BLOCK.sub("\n", text)
    for lines in (_TEX_BLOCK, _DISPLAYED, _FENCE_LINE, _OPTION_LINE, _TARGET):
        text = lines.sub("\n", text)
    text = _GLUE.sub("¤", text)
    text = _MATH.sub("§", text)
    text = _ROLE.sub(lambda role: re.sub(r"\s*<[^>]*>$", "", role[1]), text)
    return _LINK.sub(lambda link: link[1], text)


def words(markdown: str) -> int:
    """Return how many words of prose a text has."""
    return sum(bool(re.search(r"[\w§¤]", piece)) for piece in prose(markdown).split())


def typed_numbers(markdown: str) -> list[str]:
    """Return the numbers in the prose of a text that no cell put there.

    Formulas, code, headings, the numbers of lists, years of the notes' kind (1790 to 2026) and
    sentences that cite a work are left out.
    """
    text = CITED.sub(" ", _CODE.sub(" ", prose(_CITE.sub("¶", markdown))))
    text = re.sub(r"^[ \t]*(?:#.*|\d+\.(?=\s))", "", text, flags=re.M)
    text = _COUNT.sub(lambda word: str(_COUNTS[word[0].lower()]), text)
    found = _NUMBER.findall(text)
    return [number for number in found if not re.fullmatch(r"1[789]\d\d|20[0-3]\d", number)]


def read_typed(root: Path) -> dict[str, dict[Any, str]]:
    """Return the list of typed numbers, page by page, each with what it is."""
    return read(root / "book" / "typed.yml")


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
            source = re.sub("#.*", "", source)  # a comment computes nothing
            code.append(source)
            sections[-1][1].append(source)
            drawn = cell.get("metadata", {}).get("mystnb", {})
            told = [drawn.get("figure", {}).get("caption"), drawn.get("image", {}).get("alt")]
            sections[-1][0].extend(filter(None, told))
            for output in cell["outputs"]:
                data = {"text": output.get("text", ""), **output.get("data", {})}
                sections[-1][1].extend("".join(v) for k, v in data.items() if "text" in k)
        else:
            for number, text in enumerate(re.split(r"^(?=## )", source, flags=re.M)):
                if number:
                    sections.append(([], []))
                sections[-1][0].append(text)
    settings = {value for value in values_in(code) if value == int(value)} | {0.0, 1.0, 2.0}
    loose = []
    for prose_of, shown in sections:
        values = values_in(shown) | {float(number) for number in listed}
        values |= {value * 100 for value in values}
        for number in typed_numbers("\n\n".join(prose_of)):
            if number.count(".") > 1:  # a version
                continue
            value, digits = float(re.sub(r"[,  ]", "", number)), len(number.partition(".")[2])
            if value not in ({round(v, digits) for v in values} if digits else values | settings):
                loose.append(number)
    return loose


def values_in(texts: list[str]) -> set[float]:
    """Return the numbers in texts."""
    pieces = re.findall(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?", "\n".join(texts).replace("_", ""))
    return {float(piece.replace(",", "")) for piece in pieces}
