"""Names of the package in code are links, and the API says which chapters use a name."""

import json
import re
from html import unescape

import pytest
from lxml import html
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from tests.book.extensions import ROOT, api, code

ATTEND = "mha_book.attention.dispatch.attend"
CAUSAL = "mha_book.masks.causal"


def found(source: str, known: dict[str, str] | None = None) -> list[tuple[str, str]]:
    """What is written -> what it names, imports left out."""
    uses = code.find_uses(source, {} if known is None else known)
    return [(source[use.start : use.end], use.name) for use in uses if not use.imported]


@pytest.mark.parametrize(
    "source, expected",
    [
        ("from mha_book import attend\nattend(x)", [("attend", ATTEND)]),
        ("from mha_book import attend as a\na(x)", [("a", ATTEND)]),
        ("from mha_book import masks\nmasks.causal(3).x", [("masks.causal", CAUSAL)]),
        ("import mha_book\nmha_book.masks.causal", [("mha_book.masks.causal", CAUSAL)]),
        ("import mha_book.masks as m\nm.none", [("m", "mha_book.masks")]),
        ("from mha_book import attend\n'é', attend", [("attend", ATTEND)]),
        ("from mha_book import attend\nf'{attend(x)}'", [("attend", ATTEND)]),
        # Another meaning of the name: an argument, a variable of a function, of a comprehension.
        ("from mha_book import attend\ndef f(attend): return attend", []),
        ("from mha_book import attend\ndef f():\n    attend = 3\n    return attend", []),
        ("from mha_book import attend\n[attend for attend in x]", []),
        ("from mha_book import attend\nlambda attend: attend", []),
        ("from mha_book import attend\nattend = attend(x)\nattend", [("attend", ATTEND)]),
        ("from mha_book import attend\nfrom other import attend\nattend", []),
        ("from mha_book import attend\nx.attend, 'attend', f(attend=1)", []),
        ("from mha_book import attend\ndef f(x=attend): ...", [("attend", ATTEND)]),
        ("from mha_book import attend\n%magic attend", []),
        ("attend(x)", []),
    ],
)
def test_what_a_piece_of_code_names(source, expected):
    assert found(source) == expected


def test_a_cell_knows_what_the_cells_above_imported():
    known: dict[str, str] = {}
    assert found("from mha_book import attend", known) == []
    assert found("attend(x)", known) == [("attend", ATTEND)]
    assert found("attend = None", known) == []
    assert found("attend(x)", known) == []


def test_imports_are_noted_where_they_stand():
    source = "from mha_book.masks import (\n    causal as c,\n    padding,\n)"
    uses = code.find_uses(source, {})
    assert [(source[u.start : u.end], u.name) for u in uses] == [
        ("mha_book.masks", "mha_book.masks"),
        ("causal", CAUSAL),
        ("padding", "mha_book.masks.padding"),
    ]


def test_included_code_knows_what_its_file_imports_and_defines():
    known = code.file_names(ROOT / "src" / "mha_book" / "heads.py")
    assert known["split_heads"] == "mha_book.heads.split_heads"
    source = "def split_heads(x):\n    return combine_heads(x)"
    uses = code.find_uses(source, known)
    assert [(source[u.start : u.end], u.imported) for u in uses] == [
        ("split_heads", True), ("combine_heads", False),
    ]  # fmt: skip


def test_links_are_put_around_whole_names_and_nothing_else_changes():
    source = "from mha_book import masks, attend\nx = masks.causal(3) < 'é&<'\nattend(masks)\n"
    plain = highlight(source, PythonLexer(stripnl=False), HtmlFormatter())
    uses = code.find_uses(source, {})
    links = {ATTEND: "api/a.html#b", CAUSAL: "api/m.html#c"}
    out = code.linked(plain, uses, links, {CAUSAL})
    assert re.sub(r"</?a\b[^>]*>", "", out) == plain
    anchors = re.findall(r"<a ([^>]*)>(.*?)</a>", out)
    text = [unescape(re.sub("<[^>]*>", "", inner)) for _, inner in anchors]
    assert text == ["attend", "masks.causal", "attend"]
    assert [' tabindex="-1"' in attributes for attributes, _ in anchors] == [False, True, True]
    assert 'href="api/m.html#c"' in anchors[1][0]


# The built book.


def test_every_import_from_the_package_is_a_link_on_its_page(built_book):
    """The oracle reads the notebooks by itself, line by line."""
    count = 0
    for path in sorted((ROOT / "book").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf8"))["cells"]
        source = "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "code")
        page = html.parse(built_book / "book" / f"{path.stem}.html")
        texts = {link.text_content() for link in page.findall(".//a[@class='code-link']")}
        for line in re.findall(r"^from (mha_book[\w.]*) import (\w+)$", source, re.M):
            assert set(line) - {"mha_book"} <= texts, (path.stem, line)
            count += 1
    assert count > 50


def test_a_name_of_the_api_leads_back_to_the_chapters_that_use_it(built_book):
    text = (built_book / "book" / "api" / "attention-reference.html").read_text(encoding="utf8")
    start = text.index(f'id="{api.resolve("mha_book.attention_weights")}"')
    line = re.search(r'<p class="used-in">(.*?)</p>', text[start:])[1]
    links = re.findall(r'href="\.\./([^"#]+)#([^"]+)">', line)
    assert "scaled-attention.html" in [file for file, _ in links]
