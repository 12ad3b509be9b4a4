"""The ledgers as data: ``book/claims.yml`` and ``book/papers.yml``.

Both have rows of one form, and a page of their name; what differs stands in :class:`Ledger`.
What is wrong with them is found by ``tests/book/ledger_gates.py``.

No verdict is typed. A row cuts its claim into ``parts``, and each is true, false or open. A part by
number names a glued value, and the margin that decides: ``gqa-excess-2-width < 2``. It is open
while the value's interval holds both. ``over`` says what that interval was taken over, and how many
of them; intervals of one chapter, or of the ``family`` it was before a row moved, share Holm's
levels. ``yes`` or ``no`` is what a row's test finds; ``open:`` says why nothing here tells.
:func:`verdict_of` makes the verdict of the parts.
"""

import ast
import functools
import math
import re
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from mha_book_toc import read, toc_pages
from pybtex.database import parse_file
from scipy.special import stdtr, stdtrit
from sphinx.pycode import ModuleAnalyzer

VERDICTS = (
    "confirmed", "holds if", "corrected", "refuted", "undecided", "not tested", "open",
)  # fmt: skip
OPTIONAL = (
    "scope", "condition", "reason", "measured", "decide", "chapter", "cell", "file", "test", "over",
    "moved", "line", "family",
)  # fmt: skip
TEXTS = ("condition", "reason", "measured", "line")  # they take glued numbers
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

    @property
    def file(self) -> str:
        """Return where its rows stand, below the root of the repository."""
        return f"book/{self.name}.yml"

    @property
    def verdicts(self) -> tuple[str, ...]:
        """Return the verdicts that its rows can have."""
        return VERDICTS[: VERDICTS.index(self.waiting) + 1]


_FORMS = Path(__file__).parents[1] / "ledgers.yml"
LEDGERS = [Ledger(**form) for form in read(_FORMS)]
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


class Part(NamedTuple):
    """A part of a claim: what the row says of it, the value, and whether it holds (None: open)."""

    text: str
    value: str
    holds: bool | None


def load_ledger(path: Path) -> list[dict]:
    """Read a ledger, every optional field filled with the empty string, and judge its rows."""
    root = path.parents[1]
    inputs = [root / each.file for each in LEDGERS]
    inputs += [*(root / "book").glob("*.ipynb"), *(root / "book" / "data").glob("*.json")]
    newest = max(file.stat().st_mtime_ns for file in inputs if file.is_file())
    return [dict(entry) for entry in _judged(root, newest)[path.name]]


@functools.lru_cache(2)
def _judged(root: Path, newest: int) -> dict[str, list[dict]]:
    """Return the rows of every ledger; they change with the files that they name."""
    empty, rows = dict.fromkeys(OPTIONAL, ""), {}
    for each in LEDGERS:
        path = root / each.file
        raw = read(path) if path.is_file() else []
        if typed := [entry["id"] for entry in raw if "verdict" in entry]:
            raise ValueError(f"a verdict is computed from its parts: {', '.join(typed)}")
        rows[path.name] = [
            {**empty, "judged": [], "verdict": each.waiting,
             **{k: v for k, v in entry.items() if v is not None}}
            for entry in raw
        ]  # fmt: skip
    tried = [entry for entries in rows.values() for entry in entries if "parts" in entry]
    for family in {entry["family"] or entry["chapter"] for entry in tried}:
        of_page = [entry for entry in tried if (entry["family"] or entry["chapter"]) == family]
        for entry, parts in zip(of_page, judge(of_page, root), strict=True):
            outcomes = [part.holds for part in parts]
            entry["judged"], entry["verdict"] = parts, verdict_of(outcomes, entry["condition"])
    return rows


def verdict_of(outcomes: list[bool | None], condition: str) -> str:
    """Return the verdict that the parts of a claim bear."""
    if not outcomes:
        return "not tested"
    if None in outcomes:
        return "undecided"
    if all(outcomes):
        return "confirmed"
    if not any(outcomes):
        return "refuted"
    return "holds if" if condition else "corrected"


def judge(entries: list[dict], root: Path) -> list[list[Part]]:
    """Return the parts of the rows of one chapter, whose intervals share the error of 5%."""
    found = [
        [_part(text, row_values(entry, root), entry["over"]) for text in entry["parts"]]
        for entry in entries
    ]
    chances = sorted(chance for parts in found for _, chance in parts if chance is not None)
    passed = -1.0
    for number, chance in enumerate(chances):
        if chance > 0.05 / (len(chances) - number):
            break
        passed = chance
    return [
        [
            part if chance is None or chance <= passed else part._replace(holds=None)
            for part, chance in parts
        ]
        for parts in found
    ]


def _part(text: bool | str, values: dict[str, str], over: str) -> tuple[Part, float | None]:
    """Return a part, and with ``over`` the chance of its interval if the margin were the truth."""
    if isinstance(text, bool):
        return Part("yes" if text else "no", "", text), None
    if text.startswith("open:"):
        return Part(text, "", None), None
    name, sign, region = text.split(maxsplit=2)
    middle, low, high = interval_of(values[name])
    ends = [float(x) for x in _DIGITS.findall(region)]
    below, above = {"<": (-math.inf, ends[0]), ">": (ends[0], math.inf)}.get(sign, ends)
    inside = low >= below and high <= above if sign == "in" else below < low and high < above
    outside = high < below or low > above if sign == "in" else high <= below or low >= above
    holds = True if inside else False if outside else None
    chance = None
    if over and high > low:
        margin = min((end for end in (below, above) if math.isfinite(end)),
                     key=lambda end: abs(middle - end))  # fmt: skip
        half = max(high - middle if margin > middle else middle - low, (high - low) / 4)
        freedom = int(over.split()[0]) - 1  # of Student's distribution
        chance = 2 * stdtr(freedom, -abs(middle - margin) / half * stdtrit(freedom, 0.975))
    return Part(text, values[name], holds), chance


_DIGITS = re.compile(r"[-+]?\d+(?:\.\d+)?")


def interval_of(text: str) -> tuple[float, float, float]:
    """Return estimate and interval of ``0.3 ± 0.1``, ``2 [1, 3]``, ``2 (1 to 3)``, ``1 to 3``."""
    numbers = [float(x) for x in _DIGITS.findall(re.sub(r"(?<=\d),(?=\d{3})", "", text))]
    if "±" in text:
        return numbers[0], numbers[0] - numbers[1], numbers[0] + numbers[1]
    if len(numbers) == 3:
        return numbers[0], numbers[1], numbers[2]
    if len(numbers) == 2 and " of " not in text:
        return sum(numbers) / 2, numbers[0], numbers[1]
    return numbers[0], numbers[0], numbers[0]


def row_values(entry: dict, root: Path) -> dict[str, str]:
    """Return the values that a row can name: of its chapter's cells and of its stored file."""
    values = {}
    for path, values_of in (
        (root / "book" / f"{entry['chapter']}.ipynb", glued_values),
        (root / (entry["file"] or "none"), stored_values),
    ):
        if path.is_file():
            values |= _once(values_of, path, path.stat().st_mtime_ns)
    return values


@functools.cache
def _once(values_of, path, changed):
    return values_of(path)


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
        notebook = root / f"{name}.ipynb"
        cells = read(notebook)["cells"] if notebook.exists() else []
        code = {c.get("id", ""): "".join(c["source"]) for c in cells if c["cell_type"] == "code"}
        texts = ("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")
        claims = " ".join(_BOX.findall("\n\n".join(texts))).split()
        pages[Path(name).name] = Page(code, tuple(claims))
    return pages


def glued_values(notebook: Path) -> dict[str, str]:
    """Return what the cells of a notebook glued, by name, as it stands in the stored outputs."""
    values = {}
    for cell in read(notebook)["cells"]:
        for output in cell.get("outputs", ()):
            name = output.get("metadata", {}).get("scrapbook", {}).get("name")
            text = output.get("data", {}).get(f"{_PREFIX}text/plain")
            if name and text is not None:
                values[name] = ast.literal_eval("".join(text))
    return values


def stored_values(file: Path) -> dict[str, str]:
    """Return what a stored result tells the ledger, by name: its block ``told``."""
    return read(file)["told"]


def fill_numbers(text: str, values: dict[str, str]) -> str:
    """Put the glued values where ``{glue:text}`name``` stands; KeyError for one that is missing."""
    return GLUE.sub(lambda found: str(values[found[1]]), text)


def evidence_anchor(test: str) -> str:
    """Return where the page of evidence has a test: ``evidence-<stem of its file>-<its name>``."""
    file, _, name = test.split("[")[0].partition("::")
    return f"evidence-{Path(file).stem}-{name.replace('::', '-')}"


@functools.cache
def places(text: str) -> dict[str, tuple[str, int, int]]:
    """Return name -> (kind, first line, last line) of the functions and classes of a module."""
    return ModuleAnalyzer.for_string(text, "tests").find_tags()


def evidence_source(root: Path, test: str) -> str:
    """Return the text of a test with its decorators; '' if there is no such test."""
    file, _, name = test.split("[")[0].partition("::")
    text = (root / file).read_text(encoding="utf8") if (root / file).is_file() else ""
    _, first, last = places(text).get(name.replace("::", "."), ("", 1, 0))
    return textwrap.dedent("\n".join(text.splitlines()[first - 1 : last]))
