"""The book's configuration agrees with the project's metadata and asks no other host."""

import re
import tomllib
from pathlib import Path

import yaml

from tests.book.extensions import ROOT, status, toc

CONFIG = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf8"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]
SPHINX = CONFIG["sphinx"]["config"]


def test_the_author_is_that_of_the_project():
    assert CONFIG["author"] == PROJECT["authors"][0]["name"]


def test_addresses_are_configured_in_one_place():
    """In CITATION.cff or by the workflow, see test_public.py."""
    options = SPHINX["html_theme_options"]
    assert not {name for name in options if re.search("repository|issues|edit|launch", name)}
    assert not {"repository", "launch_buttons"} & set(CONFIG)
    assert "baseurl" not in CONFIG["html"]


def test_every_page_of_the_toc_exists_and_every_notebook_is_in_it():
    pages = toc.toc_pages(ROOT)
    assert len(pages) == len(set(pages))
    for page in pages:
        assert any((ROOT / f"{page}{suffix}").exists() for suffix in (".ipynb", ".md")), page
    notebooks = {p.relative_to(ROOT).with_suffix("").as_posix() for p in ROOT.glob("book/*.ipynb")}
    assert notebooks <= set(pages)


def test_outputs_are_the_committed_ones():
    assert CONFIG["execute"]["execute_notebooks"] == "off"
    assert CONFIG["execute"]["stderr_output"] == "error"


def test_extensions_that_load_scripts_from_elsewhere_are_not_loaded():
    assert not {"sphinx_thebe", "sphinx_comments", "sphinx.ext.intersphinx"} & set(
        SPHINX["extensions"]
    )
    assert SPHINX["nb_ipywidgets_js"] == {}


def test_status_reads_the_lock_and_the_notebooks():
    rows = status.lock_versions(ROOT)
    assert {name for name, *_ in rows} == set(status.LOCKED)
    assert len([row for row in rows if row[0] == "jax"]) == 2
    for name, cells, *_ in status.chapter_rows(ROOT):
        assert (ROOT / "book" / f"{name}.ipynb").exists()
        assert int(cells) > 0


def test_versions_come_from_the_lock(tmp_path: Path):
    (tmp_path / "requirements.txt").write_text(
        "jax==1.2 ; python_full_version < '3.12' \\\n    --hash=sha256:0\n    # via x\n"
        "jax==3 ; python_full_version >= '3.12'\njaxlib==9\n"
    )
    assert status.lock_versions(tmp_path, ("jax",)) == [
        ("jax", "1.2", "Python < 3.12"),
        ("jax", "3", "Python >= 3.12"),
    ]
