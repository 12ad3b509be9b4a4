"""At the end of a page stands how to cite it."""

import re
from urllib.parse import unquote

import pytest
from pybtex.database import parse_string

from tests.book.extensions import page_html

BOOK = {
    "title": "Rain & wind", "version": "1.2", "date-released": "2026-12-24",
    "authors": [{"name": "Anna"}, {"given-names": "B", "family-names": "C"}],
}  # fmt: skip


@pytest.mark.parametrize("title", ["Wet & {cold}", "Which way?"])
@pytest.mark.parametrize("url", ["", "https://a.example/book/rain.html"])
def test_the_entry_is_read_by_a_reader_of_bibtex(title, url):
    made = page_html.template("cite.html").render(book=BOOK, page="rain", title=title, url=url)
    text = unquote(re.search(r'href="data:[^,]*,([^"]*)"', made)[1])
    (entry,) = parse_string(text, "bibtex").entries.items()
    assert entry[0] == "mha-book:rain"
    fields = entry[1].fields
    assert fields["title"] == f"{{{title}}}"
    assert (fields["booktitle"], fields["year"]) == ("{Rain & wind}", "2026")
    assert fields.get("url", "") == url
    assert len(entry[1].persons["author"]) == 2
