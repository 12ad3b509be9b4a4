"""At the end of a page stands how to cite it."""

import pytest
from pybtex.database import parse_string

from tests.book.extensions import share

BOOK = share.Book("Rain & wind", ("Anna", "Ben"), "1.2", "2026-12-24")


@pytest.mark.parametrize("title", ["Wet & {cold}", "Which way?"])
@pytest.mark.parametrize("url", ["", "https://a.example/book/rain.html"])
def test_the_entry_is_read_by_a_reader_of_bibtex(title, url):
    (entry,) = parse_string(share.bibtex(BOOK, "rain", title, url), "bibtex").entries.items()
    assert entry[0] == "mha-book:rain"
    fields = entry[1].fields
    assert fields["title"] == f"{{{title}}}"
    assert (fields["booktitle"], fields["year"]) == ("{Rain & wind}", "2026")
    assert fields.get("url", "") == url
    assert len(entry[1].persons["author"]) == 2
