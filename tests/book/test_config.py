"""The book's configuration agrees with the project's metadata and asks no other host."""

import pytest

from tests.book.extensions import ROOT, toc


def test_every_page_of_the_toc_exists_and_every_notebook_is_in_it():
    pages = toc.toc_pages(ROOT)
    assert len(pages) == len(set(pages))
    for page in pages:
        assert any((ROOT / f"{page}{suffix}").exists() for suffix in (".ipynb", ".md")), page
    notebooks = {p.relative_to(ROOT).with_suffix("").as_posix() for p in ROOT.glob("book/*.ipynb")}
    assert notebooks <= set(pages)


def test_a_key_that_stands_twice_is_refused(tmp_path):
    (tmp_path / "a.yml").write_text("rain: {1: wet, 2: x}\nsnow: {1: cold, 1: white}\n")
    with pytest.raises(ValueError, match=r"each key once, got \['1'\] again"):
        toc.read(tmp_path / "a.yml")
