"""The language of the pages: an acronym says what it stands for; spelling is `make lint`'s."""

import functools
import json
import re
from pathlib import Path

import codespell_lib
import pytest

from mha_book.notation.page import page_text
from tests.book.extensions import ROOT, finding, pages

PAGES = sorted([*ROOT.glob("book/*.ipynb"), *ROOT.glob("book/*.md")])
# Names that nobody reads as an abbreviation: of models, makers, programs, a token; and words.
NAMES = {
    "API", "BERT", "CLS", "CPU", "GPT", "GPU", "HLO", "JAX", "NTK", "NVIDIA", "QR", "SEP", "SXM",
    "TPU", "XLA",
}  # fmt: skip
UNITS = {"GB", "MB", "KB", "TB"}
_ACRONYM = re.compile(r"(?<![\w.-])([A-Z][A-Z0-9]*[A-Z])s?(?![\w-]*\d)\b")
_CODE = re.compile(r"(`+)(.+?)\1", re.S)


def text_of(path: Path) -> str:
    """The prose of a page, its code and formulas left out."""
    return _CODE.sub(" ", pages.prose(page_text(path)))


def unexplained(text: str) -> list[str]:
    """The acronyms of a text that do not say at their first use what they stand for.

    Explained is ``HBM (high-bandwidth memory)``, also with a star after the acronym, or
    ``high-bandwidth memory (HBM)``: words whose letters have those of the acronym in order.
    """
    found = []
    for match in _ACRONYM.finditer(text):
        name = match[1]
        if name in NAMES | UNITS or name in found:
            continue
        first = text[: match.start()].find(name) < 0
        after = re.match(r"\W{0,2}s?\W*\(([^)]+)\)", text[match.end() :])
        before = re.search(r"((?:[\w-]+\s+){1,6})\(\W*$", text[: match.start()])
        words = " ".join(m[1] for m in (after, before) if m).lower()
        letters = iter(words)
        if first and not (words and all(letter in letters for letter in name.lower())):
            found.append(name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_an_acronym_says_what_it_stands_for(page):
    assert unexplained(text_of(page)) == []


@pytest.mark.parametrize(
    "text, names",
    [
        ("the HBM (high-bandwidth memory), and HBM again", []),
        ("the *HBM* (high-bandwidth memory)", []),
        ("high-bandwidth memory (HBM)", []),
        ("the HBM, later HBM (high-bandwidth memory)", ["HBM"]),
        ("HBM (fast)", ["HBM"]),
        ("two GPUs with 80 GB each, on JAX", []),
        ("many LLMs", ["LLM"]),
    ],
)
def test_the_search_for_acronyms(text, names):
    assert unexplained(text) == names


@functools.cache
def dictionary() -> set[str]:
    """The words that the dictionary of codespell has as British."""
    folder = Path(codespell_lib.__file__).parent / "data"
    lines = (folder / "dictionary_en-GB_to_en-US.txt").read_text(encoding="utf8").splitlines()
    return {line.partition("->")[0] for line in lines}


def british(text: str) -> list[str]:
    return sorted({*re.findall(r"[a-z]+", text.lower())} & dictionary())


def captions(path: Path) -> str:
    """The captions and alternative texts of the figures of a notebook."""
    cells = json.loads(path.read_text(encoding="utf8"))["cells"] if path.suffix != ".md" else []
    return " ".join(str(cell["metadata"].get("mystnb", "")) for cell in cells)


def test_pages_and_ledgers_have_one_spelling():
    texts = {page.stem: text_of(page) + " " + captions(page) for page in PAGES}
    texts |= {n: (ROOT / f"book/{n}.yml").read_text(encoding="utf8") for n in ("claims", "papers")}
    assert {name: found for name, text in texts.items() if (found := british(text))} == {}


def test_a_term_is_in_bold_or_a_heading_where_it_is_defined_and_in_the_glossary():
    glossary = (ROOT / "book" / "glossary.md").read_text(encoding="utf8").lower()
    assert sum(map(len, finding.terms(ROOT).values())) >= 40
    for page, terms in finding.terms(ROOT).items():
        text = page_text(ROOT / f"{page}.ipynb")
        marked = re.findall(r"^#+ +[^\n]+|\*\*.+?\*\*", text, re.M | re.S)
        said = "\n".join(" ".join(words.split()) for words in marked).lower()
        assert [term for term in terms if term.lower() not in said] == [], page
        assert [term for term in terms if term.lower() not in glossary] == []
