"""What a page offers to those who pass it on: its citation, its card, the feed of changes."""

import struct
from xml.etree import ElementTree

import pytest
from pybtex.database import parse_string

from tests.book.extensions import ROOT, share, toc

BOOK = share.Book("Rain & wind", ("Anna", "Ben"), "1.2", "2026-12-24")
CHANGES = """# Changelog

Words before.

## Unreleased

- A <b>drop</b> & more.

## 1.2 - 2026-12-24

### Added

- Rain.

## 1.1 - 2025-01-02

- Wind.
"""


def test_the_sections_of_a_changelog():
    found = share.releases(CHANGES)
    assert [(entry.version, entry.date) for entry in found] == [
        ("Unreleased", ""), ("1.2", "2026-12-24"), ("1.1", "2025-01-02"),
    ]  # fmt: skip
    assert found[1].text == "### Added\n\n- Rain."
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf8")
    assert len(share.releases(changes)) == changes.count("\n## ")


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


def test_the_feed_is_read_by_a_reader_of_xml():
    site, now = "https://a.example/w/", "2027-01-01T00:00:00Z"
    tree = ElementTree.fromstring(share.feed(BOOK, share.releases(CHANGES), site, now))
    name = "{http://www.w3.org/2005/Atom}"
    assert tree.tag == f"{name}feed"
    assert tree.findtext(f"{name}updated") == now
    entries = tree.findall(f"{name}entry")
    assert [entry.findtext(f"{name}updated") for entry in entries] == [
        now, "2026-12-24T00:00:00Z", "2025-01-02T00:00:00Z",
    ]  # fmt: skip
    assert "<li>Rain.</li>" in entries[1].findtext(f"{name}content")
    ids = [element.text for element in tree.iter(f"{name}id")]
    assert len(ids) == len({*ids}) == 4
    assert all(word.startswith(site) for word in ids)
    links = {link.get("href") for link in tree.iter(f"{name}link")}
    assert links == {site, f"{site}feed.xml"}


def test_a_card_is_drawn_once(tmp_path, monkeypatch):
    long = "How does a $x$ find its way? " * 12
    data = share.card(tmp_path, "A book", "A title of many words: " * 4, long)
    assert struct.unpack(">II", data[16:24]) == share.CARD
    assert len(data) < 200_000
    drawn = []
    monkeypatch.setattr(share, "draw_card", lambda file, *_: drawn.append(file.write_bytes(b"new")))
    assert share.card(tmp_path, "A book", "A title of many words: " * 4, long) == data
    assert drawn == []
    assert share.card(tmp_path, "A book", "Another title", long) == b"new"


def test_every_page_of_the_book_can_be_cited(built_book):
    for page in toc.toc_pages(ROOT):
        text = (built_book / f"{page}.html").read_text(encoding="utf8")
        assert text.count('<p class="cite">') == 1, page
        assert "og:image" not in text, "there is no public address"
    assert not (built_book / "feed.xml").exists()
