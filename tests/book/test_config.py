"""The book's configuration agrees with the project's metadata and asks no other host."""

from tests.book.extensions import ROOT, toc


def test_every_page_of_the_toc_exists_and_every_notebook_is_in_it():
    pages = toc.toc_pages(ROOT)
    assert len(pages) == len(set(pages))
    for page in pages:
        assert any((ROOT / f"{page}{suffix}").exists() for suffix in (".ipynb", ".md")), page
    notebooks = {p.relative_to(ROOT).with_suffix("").as_posix() for p in ROOT.glob("book/*.ipynb")}
    assert notebooks <= set(pages)
