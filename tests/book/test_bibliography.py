"""The bibliography: every work can be reached, and stands where its first author's name does."""

import re
import unicodedata
from html import unescape

import pytest
from pybtex.database import parse_file, parse_string

from tests.book.extensions import ROOT, bibliography

ENTRIES = parse_file(str(ROOT / "book" / "references.bib")).entries
WITHOUT_ADDRESS = {"fisher1935design"}  # a book of 1935, which no publisher keeps


@pytest.mark.parametrize("key", ENTRIES)
def test_a_work_can_be_reached(key):
    fields = ENTRIES[key].fields
    if key in WITHOUT_ADDRESS:
        assert not {"url", "doi"} & {*fields}, "take it out of the list"
        return
    assert "url" in fields or "doi" in fields
    assert re.match(r"https?://\S+$", fields.get("url", "https://a"))
    assert re.match(r"10\.\d{4,}/\S+$", fields.get("doi", "10.1000/a"))
    numbers = {*re.findall(r"\d{4}\.\d{5}", " ".join(fields.values()))}
    assert len(numbers) <= 1, "one number of arXiv"


def test_works_cited_alike_have_letters():
    text = """
    @article{a, author={Lee, Bo and Ode, D. and Zed, C.}, title={Wet}, year={2000}}
    @article{b, author={Lee, Bo and Fry, E. and Zed, C.}, title={Dry}, year={2000}}
    @article{c, author={Lee, Bo and Ode, D. and Zed, C.}, title={Ice}, year={2001}}
    @article{d, author={Lee, Bo}, title={Ice}, year={2000}}
    @article{e, author={Lee, Bo and Ode, D.}, title={Ice}, year={2000}}
    @article{f, author={Lee, Bo and Fry, E.}, title={Ice}, year={2000}}
    """
    entries = parse_string(text, "bibtex").entries
    for _ in range(2):  # the second build starts from what the first left
        bibliography.tell_apart(entries.values())
        years = {key: entry.fields["year"] for key, entry in entries.items()}
        assert years == {
            "a": "2000b", "b": "2000a", "c": "2001", "d": "2000", "e": "2000", "f": "2000",
        }  # fmt: skip


def test_the_page_is_in_the_order_that_a_reader_sees(built_book):
    page = (built_book / "book" / "bibliography.html").read_text(encoding="utf8")
    items = re.findall(r'<div class="citation".*?<p>(.*?)</p>', page, re.S)
    assert len(items) == len(ENTRIES)
    families = []
    for item in items:
        words = unescape(re.sub(r"<[^>]+>", "", item))
        families.append(re.split(r", |\. ", words)[0])
    plain = (unicodedata.normalize("NFKD", family.casefold()) for family in families)
    keys = ["".join(filter(str.isalnum, family)) for family in plain]
    assert keys == sorted(keys)
    assert sum("<a " not in item for item in items) == len(WITHOUT_ADDRESS)
