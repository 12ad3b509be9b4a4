"""What was read stays as it was read: each text beside what it was at ``SEEN``.

Whoever writes anew is free to. But where an answer, a claim, a theorem or a work, or nearly the
same sentence, caption or output, has another number, formula, glued name or another of ``TELLING``,
or a new sentence cites a number, ``typed.yml`` says why (``anew``); so it does where a claim has
another verdict, or a cell that is as it was shows another thing.
"""

import base64
import io
import json
import re
import shutil
from collections import Counter, defaultdict
from difflib import SequenceMatcher

import pytest
import yaml
from PIL import Image

from experiments.again import leaves
from mha_book.notation.page import notebook_text
from tests.book.extensions import ROOT, ledger
from tests.book.test_pages import LISTED, NOW
from tests.turns import SEEN, commit, git, known_pages

STRONG = (
    r"no|not|never|none|neither|without|cannot|\w+n't|all|every|each|only|most|few|hardly|always"
    "|twice|half|halve[ds]?|double[ds]?|thrice|thirds?|quarters?|yes"
)
TELLING = (
    f"{STRONG}|any|some|many|often|rarely|more|less|fewer|least|better|worse|best|worst|before|after"
    "|(?:large|low|high|fast|slow|long|short|small)(?:e?r|e?st)?|first|last|above|below|earlier|later"
    "|same|different|one|two|three|four|five|six|seven|eight|nine|ten|twenty|hundred|thousand|zero"
    "|rises?|falls?|gains?|loses?|grows?|shrinks?|costs?|saves?|raises?|lowers?|left|right|keys?"
    "|quer(?:y|ies)|values?|rows?|columns?|memory|bandwidth|arithmetic|inputs?|outputs?"
)
SIGN = r"\{glue:\w+\}`[^`]+`|(?<![\w.])[-+−]?\w*\d+(?:[.,]\d+)*\w*%?"
TOLD = re.compile(rf"{SIGN}|\$[^$]+\$|\b(?:{TELLING})\b", re.I)
FIRM = re.compile(rf"(?:{SIGN}|(?:{STRONG})\b)", re.I)
BY_HAND = (
    r"book/(questions/.*|slides/.*|claims|papers|labs|teaching|explorer|symbols)\.yml|book/\w+\.md"
    r"|.*\.bib|proofs/.*\.(yml|v)"
)
PARTS = {".v": r"^(Theorem \w+)(.*?)^Proof", "ib": r"^@\w+\{([\w-]+),(.*?)^\}"}
WHOLE = re.compile(r"\.v |\.bib |/claim$|^cell ")  # each of their words tells
WORD, NEAR = re.compile(r"\w{4,}"), 0.75


_PIXELS = re.compile(r"data:image/png;base64,([^\"']*)")
_COLOR = re.compile(r"#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})\b")
_NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d*)?(?:e-?\d+)?")  # not those of names


class Picture(str):
    """An SVG, which equals another where no line, letter or color is two points away from its."""

    __slots__ = ()
    __hash__ = str.__hash__

    def parts(self) -> tuple[str, list[float]]:
        """Its text, names that were made up left out, and its numbers."""
        text = re.sub(r"\b[a-z][0-9a-f]{10}\b", "", _PIXELS.sub("", self))
        text = _COLOR.sub(lambda rgb: " ".join(str(int(x, 16)) for x in rgb.groups()), text)
        numbers = [float(x) for x in _NUMBER.findall(text)]
        for pixels in _PIXELS.findall(self):
            image = Image.open(io.BytesIO(base64.b64decode(pixels))).convert("RGB")
            numbers += image.resize((32, 32)).tobytes()
        return _NUMBER.sub("", text), numbers

    def __eq__(self, other: object) -> bool:
        if str(self) == str(other):
            return True
        (text, numbers), (theirs, others) = self.parts(), Picture(other).parts()
        return text == theirs and all(abs(a - b) <= 2 for a, b in zip(numbers, others, strict=True))

    def __ne__(self, other: object) -> bool:
        return not self == other


def by_hand(name, text):
    """The texts of a file that is written by hand, by their places."""
    if kind := PARTS.get(name[-2:]):
        return {f"{name} {place}": x for place, x in re.findall(kind, text, re.M | re.S)}
    if name.endswith("md"):
        return sentences(name, [text])
    rows = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if type(rows) is list:
        rows = {row.get("id", row.get("name", n)): row for n, row in enumerate(rows)}
    if name.startswith(("book/slides", "book/symbols")):  # without names
        return sentences(name, [str(x) for _, x in leaves(rows)])
    return {f"{name}{place}": str(x) for place, x in leaves(rows)}


def sentences(name, told):
    told = re.sub(r"\{cite[\w:]*\}`[^`]*`", "¶", "\n\n".join(told))
    found = re.split(r"(?<=[.?!:])\s+|\n\s*\n|\n(?=[-|#])", told)
    return {f"{name} “{each}": each for each in (" ".join(x.split()) for x in found)}


def of_notebook(name, text):
    """Its sentences, those of its captions too, and what its cells show."""
    found, said = {}, [notebook_text(text)]
    for cell in json.loads(text)["cells"]:
        drawn = cell["metadata"].get("mystnb", {})
        said += [drawn.get("figure", {}).get("caption", ""), drawn.get("image", {}).get("alt", "")]
        data = [x.get("data", {"text/plain": x.get("text", "")}) for x in cell.get("outputs", ())]
        shown = [x.get("text/plain") for x in data if "image/svg+xml" not in x]
        found[f"cell {name}/{cell['id']}"] = str(shown)
    return found | sentences(name, said)


def likeness(*texts):
    """The share of words that two texts have in the same order, whatever they tell."""
    one, other = (re.findall(r"¤|\w+", TOLD.sub("¤", text)) for text in texts)
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= NEAR else 0.0


def changes(then, now):
    """Where a text tells something else than the one in its place, or than the nearest one."""
    having, found = defaultdict(list), []
    for place, text in then.items():
        for word in sorted({*WORD.findall(text.lower())}):
            having[word].append(place)
    for place, text in now.items():
        if text == then.get(place):
            continue
        words = sorted({*WORD.findall(text.lower())})  # so that ties are settled alike in every run
        among = Counter(x for word in words for x in having[word]).most_common(4)
        near = [place] if place in then else [x for x, _ in among]
        like, old = max(((likeness(then[x], text), x) for x in near), default=(0, ""))
        if place in then and not place.startswith("cell "):
            like, old = 1, place
        tell = str.split if WHOLE.search(place) else TOLD.findall
        a, b = (tell(x.lower().replace(",$", "$")) for x in (then.get(old, ""), text))
        if like < NEAR:
            a, b = [], [x for x in b if "¶" in text and FIRM.fullmatch(x) and x[-1].isdigit()]
        gone, come = ([*(Counter(x) - Counter(y)).elements()] for x, y in ((a, b), (b, a)))
        is_told = bool(gone) == bool(come) or any(map(FIRM.fullmatch, gone + come))
        if a != b and (is_told or WHOLE.search(place)):
            found.append(f"{place.split(' “')[0]}: {' '.join(gone)} → {' '.join(come)}")
    return found


@pytest.fixture(scope="module")
def texts():
    then, now = ({}, {})
    for name in git("ls-tree", "-r", "--name-only", SEEN, "book", "proofs").split():
        if re.fullmatch(BY_HAND, name) and (ROOT / name).exists():
            then |= by_hand(name, git("show", f"{SEEN}:{name}"))
            now |= by_hand(name, (ROOT / name).read_text(encoding="utf8"))
    for known, pages in ((then, known_pages(SEEN)), (now, NOW)):
        for pair in pages.items():
            known |= of_notebook(*pair)
    return then, now


def test_a_text_tells_what_it_told(texts):
    anew = {*changes(*texts)} - {*LISTED["anew"]} if commit() else {}
    assert not anew, "\n".join(anew)


def test_a_claim_has_the_verdict_that_it_had(tmp_path):
    if commit():
        git("archive", SEEN, f"--output={tmp_path / 'read.tar'}", "_toc.yml", "book")
        shutil.unpack_archive(tmp_path / "read.tar", tmp_path, filter="data")
        for form in ledger.LEDGERS:
            both = (ledger.load_ledger(root / form.file) for root in (ROOT, tmp_path))
            now, then = ({row["id"]: row["verdict"] for row in rows} for rows in both)
            assert {name for name in then if then[name] != now[name]} <= {*LISTED["anew"]}


def test_a_cell_that_is_as_it_was_shows_what_it_showed():
    def outputs(text):
        return {
            (cell["id"], "".join(cell["source"])): [
                Picture(x) if x.startswith("<svg") else re.sub("(?m)^(time|device): .*", "", x)
                for output in cell.get("outputs", ())
                for x in map("".join, [output.get("text", ""), *output.get("data", {}).values()])
            ]
            for cell in json.loads(text)["cells"]
        }

    for page, text in known_pages(SEEN).items():
        then, now = outputs(text), outputs(NOW.get(page, text))
        other = {f"{page}/{key[0]}" for key in then.keys() & now.keys() if then[key] != now[key]}
        assert other <= {*LISTED["anew"]}


@pytest.mark.parametrize("said", [("a", "b", "twice"), ("b", "a", "half"), ("b", "a", "twice")])
def test_what_is_told_anew_is_found(said):
    now, then = (
        "Here {{glue:text}}`{}` nats, {how} both {{glue:text}}`{}`, {} as much.".format(*x, how=how)
        for x, how in ((said, "but with"), (("b", "a", "twice"), "and with"))
    )
    assert bool(changes({"x “1": then}, {"x “2": now})) == (said != ("b", "a", "twice"))


def test_a_line_that_is_elsewhere_is_found():
    line = '<svg><path id="m0123456789" d="M 0 0 L {} 3" style="stroke: #0072{}"/></svg>'
    same, moved, painted = (line.format(*x) for x in ((9.1, "b2"), (12.1, "b3"), (9, "00")))
    assert Picture(line.format(9, "b3")) == same
    assert Picture(same) not in (moved, painted)
