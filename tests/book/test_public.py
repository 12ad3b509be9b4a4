"""One setting says where the book is public; every address that is shown comes from it."""

import io
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from sphinx.application import Sphinx

from tests.book.extensions import public

REPOSITORY, SITE = "https://github.com/anna/heads", "https://anna.example/heads/"
SET = {"MHA_BOOK_REPOSITORY": REPOSITORY, "MHA_BOOK_SITE": SITE}


def citation(folder: Path, **keys: Any) -> Path:
    keys |= {"title": "Rain", "version": "1.0", "authors": [{"name": "Anna"}]}
    (folder / "CITATION.cff").write_text(yaml.safe_dump(keys), "utf8")
    return folder


def test_the_variables_go_before_the_file(tmp_path):
    citation(tmp_path)
    assert public.read_public(tmp_path, {}) == public.Public("", "")
    assert public.read_public(tmp_path, SET) == public.Public(REPOSITORY, SITE)
    given = {"repository-code": "https://gitlab.com/b/c.git", "url": "https://b.example"}
    citation(tmp_path, **given)
    here = public.Public("https://gitlab.com/b/c", "https://b.example/")
    assert public.read_public(tmp_path, {}) == here
    assert public.read_public(tmp_path, SET) == public.Public(REPOSITORY, SITE)
    assert public.read_public(tmp_path, {**SET, "MHA_BOOK_SITE": ""}).site == here.site


@pytest.mark.parametrize("repository", ["anna/heads", "https://example.org/a/b", REPOSITORY + "/x"])
def test_what_is_no_repository_is_refused(tmp_path, repository):
    with pytest.raises(ValueError, match=r"MHA_BOOK_REPOSITORY.*expected .*got"):
        public.read_public(citation(tmp_path), {"MHA_BOOK_REPOSITORY": repository})


# The pages of a book of two pages, by the theme of the book.

CONF = """\
extensions = ["myst_nb", "sphinx_book_theme", "mha_book_public", "mha_book_html"]
html_theme = "sphinx_book_theme"
html_title = "Rain"
root_doc = "book/wet"
nb_execution_mode = "off"
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb"}  # Sphinx would write into its default
"""
NOTEBOOK = {
    "cells": [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# Wet\n\nRain is."}],
    "metadata": {"kernelspec": {"display_name": "Python 3", "name": "python3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the book without and with an address; page -> its text, for each."""
    folder = tmp_path_factory.mktemp("rain") / "source"
    (folder / "book").mkdir(parents=True)
    citation(folder)
    (folder / "conf.py").write_text(CONF, encoding="utf8")
    (folder / "_toc.yml").write_text("root: book/wet\nparts: [{chapters: [{file: book/dry}]}]")
    (folder / "book" / "wet.ipynb").write_text(json.dumps(NOTEBOOK), encoding="utf8")
    text = "# Dry\n\nThe sun is out for now.\n\n```{toctree}\nwet\n```\n"
    (folder / "book" / "dry.md").write_text(text, encoding="utf8")
    found = []
    for environ in ({}, SET):
        with pytest.MonkeyPatch.context() as patch:
            for name in SET:
                patch.delenv(name, raising=False)
            for name, value in environ.items():
                patch.setenv(name, value)
            app = Sphinx(
                folder, folder, folder.parent / "out", folder.parent / "trees", "html",
                status=io.StringIO(), warning=io.StringIO(),
            )  # fmt: skip
            app.build()
        pages = sorted(folder.parent.glob("out/**/*.html"))
        found.append({page.stem: page.read_text(encoding="utf8") for page in pages})
        sitemap = folder.parent / "out" / "sitemap.xml"
        listed = re.findall("<loc>(.*?)</loc>", sitemap.read_text()) if sitemap.exists() else []
        assert listed == [f"{SITE}book/{page}.html" for page in ("dry", "wet")] * bool(environ)
    return found


def outside(text: str) -> set[str]:
    """The addresses of other hosts on a page, apart from the makers of its tools."""
    links = re.findall(r'(?:href|src|content)="(https?://[^"]+)"', text)
    tools = ("https://www.sphinx-doc.org", "https://pydata-sphinx-theme", "https://sphinx-book")
    return {link for link in links if not link.startswith(tools)}


@pytest.mark.slow
def test_without_an_address_no_page_names_one(built):
    unset, _ = built
    assert {name: outside(text) for name, text in unset.items() if outside(text)} == {}


@pytest.mark.slow
def test_a_page_says_how_it_is_cited(built):
    for pages, url in zip(built, ("", f"{SITE}book/dry.html"), strict=True):
        (lines,) = re.findall(r'<p class="cite">.*?</p>', pages["dry"], re.S)
        lines = unquote(lines)  # a link has the entry
        assert "Anna: “Dry.” In <cite>Rain</cite>, version 1.0, not yet released." in lines
        assert "@incollection{mha-book:dry," in lines
        assert ("url" in lines) == bool(url)
        assert not url or lines.count(url) == 3
        assert 'class="cite"' not in pages["genindex"]


@pytest.mark.slow
def test_with_an_address_every_page_has_its_own(built):
    _, pages = built
    issue = f"{REPOSITORY}/issues/new?title=Issue%20on%20page%20%2F"
    for page, file in (("wet", "book/wet.ipynb"), ("dry", "book/dry.md")):
        links = {link.split(".html&")[0] for link in outside(pages[page])}
        expected = {
            REPOSITORY, f"{REPOSITORY}/edit/main/{file}", f"{issue}book/{page}",
            f"{SITE}book/{page}.html",
        }  # fmt: skip
        if file.endswith("ipynb"):
            expected |= {
                f"https://mybinder.org/v2/gh/anna/heads/main?urlpath=lab/tree/{file}",
                f"https://colab.research.google.com/github/anna/heads/blob/main/{file}",
            }
        assert links == expected
        assert f'<link rel="canonical" href="{SITE}book/{page}.html"' in pages[page]
    for page in ("genindex", "search"):  # pages without a file
        assert not any("/edit/" in link for link in outside(pages[page]))
