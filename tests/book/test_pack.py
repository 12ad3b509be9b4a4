"""The book in one zip file: the same bytes each time, and everything that its pages need."""

import os

import pytest

from tests.book.extensions import tool

TOOL = tool("pack")


@pytest.fixture
def html(tmp_path):
    folder = tmp_path / "html"
    (folder / "b").mkdir(parents=True)
    for name, text in (("index.html", "in"), ("b/page.html", "page"), (".buildinfo", "x")):
        (folder / name).write_text(text)
    return folder


def test_the_same_pages_give_the_same_bytes(html, tmp_path):
    assert TOOL.pack(html, tmp_path / "1.zip", "read me") == 3
    os.utime(html / "index.html", (0, 10**9))
    (html / "index.html").chmod(0o600)
    (html / ".buildinfo").write_text("y")
    TOOL.pack(html, tmp_path / "2.zip", "read me")
    assert (tmp_path / "1.zip").read_bytes() == (tmp_path / "2.zip").read_bytes()
    (html / "b" / "page.html").write_text("Page")
    TOOL.pack(html, tmp_path / "3.zip", "read me")
    assert (tmp_path / "1.zip").read_bytes() != (tmp_path / "3.zip").read_bytes()
