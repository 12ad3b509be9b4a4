"""The ledgers as data: ``book/claims.yml`` and ``book/papers.yml``.

Both have rows of one form, and a page of their name; what differs stands in :class:`Ledger`.
What is wrong with them is found by ``tests/book/ledger_gates.py``.
"""

import ast
import json
import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from mha_book_toc import toc_pages
from pybtex.database import parse_file

VERDICTS = (
    "confirmed", "holds if", "corrected", "refuted", "undecided", "not tested", "open",
)  # fmt: skip
# What a verdict was reached on; a scope is one of these, a colon and what exactly.
SCOPES = ("algebra", "code", "published models", "trained models", "tiny models", "timings")
OPTIONAL = (
    "scope", "condition", "reason", "measured", "decide", "chapter", "cell", "file", "test",
)  # fmt: skip
TEXTS = ("condition", "reason", "measured")  # they take glued numbers
_BOX = re.compile(r"^:{3,}\{claim\}[ \t]+(\S.*?)[ \t]*$", re.MULTILINE)
GLUE = re.compile(r"\{glue:text\}`([^`]+)`")
_PREFIX = "application/papermill.record/"


@dataclass(frozen=True)
class Ledger:
    """What one ledger asks of its rows, an entry of ``book/ledgers.yml``."""

    name: str
    letter: str
    source: str
    sections: dict[str, str]
    waiting: str
    needs: list[str | list[str]]
    waiting_needs: list[str]
    waiting_lacks: list[str]
    only: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """Return where its rows stand, below the root of the repository."""
        return f"book/{self.name}.yml"

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Return the verdicts that its rows can have."""
        return VERDICTS[: VERDICTS.index(self.waiting) + 1]


_FORMS = Path(__file__).parents[1] / "ledgers.yml"
LEDGERS = [Ledger(**form) for form in yaml.safe_load(_FORMS.read_text(encoding="utf8"))]
CLAIMS, PAPERS = LEDGERS


@dataclass(frozen=True)
class Work:
    """What a row shows of the paper that makes its claim."""

    title: str
    year: str
    address: str


@dataclass(frozen=True)
class Page:
    """What the ledger needs to know of a page: the cells it shows and the claims that it states."""

    cells: dict[str, str] = field(default_factory=dict)  # id of a code cell -> its source
    claims: tuple[str, ...] = ()


def load_ledger(path: Path) -> list[dict]:
    """Read a ledger, every optional field filled with the empty string."""
    entries = yaml.safe_load(path.read_text(encoding="utf8"))
    empty = dict.fromkeys(OPTIONAL, "")
    return [{**empty, **{k: v for k, v in e.items() if v is not None}} for e in entries]


def read_works(root: Path) -> dict[str, Work]:
    """Return what the bibliography says of every work, by its key."""
    works = {}
    for key, entry in parse_file(str(root / "book" / "references.bib")).entries.items():
        doi = entry.fields.get("doi", "")
        address = entry.fields.get("url", doi and f"https://doi.org/{doi}")
        works[key] = Work(re.sub(r"[{}]", "", entry.fields["title"]), entry.fields["year"], address)
    return works


def scope_kind(entry: dict) -> str:
    """Return what a verdict was reached on, the first words of its scope."""
    return entry["scope"].partition(":")[0]


def read_pages(root: Path) -> dict[str, Page]:
    """Read every page of the book that exists: its code cells by id, and its claims."""
    pages = {}
    for name in toc_pages(root):
        notebook, text = root / f"{name}.ipynb", root / f"{name}.md"
        cells, markdown = {}, ""
        if notebook.exists():
            for cell in json.loads(notebook.read_text(encoding="utf8"))["cells"]:
                source = "".join(cell["source"])
                if cell["cell_type"] == "code":
                    cells[cell.get("id", "")] = source
                elif cell["cell_type"] == "markdown":
                    markdown += source + "\n\n"
        elif text.exists():
            markdown = text.read_text(encoding="utf8")
        pages[Path(name).name] = Page(cells, tuple(" ".join(_BOX.findall(markdown)).split()))
    return pages


def glued_values(notebook: Path) -> dict[str, str]:
    """Return what the cells of a notebook glued, by name, as it stands in the stored outputs."""
    values = {}
    for cell in json.loads(notebook.read_text(encoding="utf8"))["cells"]:
        for output in cell.get("outputs", ()):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            text = output.get("data", {}).get(f"{_PREFIX}text/plain")
            if name and text is not None:
                values[name] = ast.literal_eval("".join(text))
    return values


def stored_values(file: Path) -> dict[str, str]:
    """Return what a stored result tells the ledger, by name: its block ``told``."""
    return json.loads(file.read_text(encoding="utf8"))["told"]


def fill_numbers(text: str, values: dict[str, str]) -> str:
    """Put the glued values where ``{glue:text}`name``` stands; KeyError for one that is missing."""
    return GLUE.sub(lambda found: str(values[found[1]]), text)


def evidence_anchor(test: str) -> str:
    """Return where the page of evidence has a test: ``evidence-<stem of its file>-<its name>``."""
    file, _, name = test.split("[")[0].partition("::")
    return f"evidence-{Path(file).stem}-{name.replace('::', '-')}"


def evidence_source(root: Path, test: str) -> str:
    """Return the text of a test with its decorators; '' if there is no such test."""
    file, _, name = test.split("[")[0].partition("::")
    if not (root / file).is_file():
        return ""
    text = (root / file).read_text(encoding="utf8")
    for node, prefix in test_functions(ast.parse(text).body, ""):
        if f"{prefix}{node.name}" == name:
            first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
            return textwrap.dedent("\n".join(text.split("\n")[first - 1 : node.end_lineno]))
    return ""


def test_functions(body, prefix=""):
    """Yield every function that tests in a body of statements, with the classes before its name."""
    for node in body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield node, prefix
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            yield from test_functions(node.body, f"{prefix}{node.name}::")
