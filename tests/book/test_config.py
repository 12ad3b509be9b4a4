"""The book's configuration agrees with the project's metadata and asks no other host."""

from pathlib import Path

from tests.book.extensions import ROOT, status, toc


def test_every_page_of_the_toc_exists_and_every_notebook_is_in_it():
    pages = toc.toc_pages(ROOT)
    assert len(pages) == len(set(pages))
    for page in pages:
        assert any((ROOT / f"{page}{suffix}").exists() for suffix in (".ipynb", ".md")), page
    notebooks = {p.relative_to(ROOT).with_suffix("").as_posix() for p in ROOT.glob("book/*.ipynb")}
    assert notebooks <= set(pages)


def test_versions_come_from_the_lock(tmp_path: Path):
    (tmp_path / "requirements.txt").write_text(
        "jax==1.2 ; python_full_version < '3.12' \\\n    --hash=sha256:0\n    # via x\n"
        "jax==3 ; python_full_version >= '3.12'\njaxlib==9\n"
    )
    assert status.lock_versions(tmp_path, ("jax",)) == [
        ("jax", "1.2", "Python < 3.12"),
        ("jax", "3", "Python >= 3.12"),
    ]
