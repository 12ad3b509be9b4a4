"""Every public name of the package has a docstring of its own, and the API page lists it."""

import importlib

import pytest
import yaml

from tests.book.extensions import ROOT, api

MODULES = api.public_modules()


def test_every_public_module_defines_all():
    for path in sorted((ROOT / "src" / "mha_book").rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        is_chapter = parts[1] == "exercises" and parts[-1] != "__init__"  # it only registers checks
        if not is_chapter and not any(part.startswith("_") for part in parts):
            assert hasattr(importlib.import_module(".".join(parts)), "__all__"), path


@pytest.mark.parametrize("module", MODULES)
def test_all_names_exist_and_are_sorted_out_once(module):
    names = importlib.import_module(module).__all__
    assert len(names) == len(set(names))
    assert all(hasattr(importlib.import_module(module), name) for name in names)


PAGES = api.api_pages()


def test_every_module_has_its_page_and_no_other_page_is_there():
    """The files are written by ``python book/_ext/mha_book_api.py``."""
    files = {path: path.read_text(encoding="utf8") for path in (ROOT / api.FOLDER).glob("*.md")}
    assert files == {ROOT / f"{api.page_name(name)}.md": api.stub(name) for name in PAGES}
    assert sorted(m for shown in PAGES.values() for m in shown) == sorted(MODULES)
    for name, shown in PAGES.items():
        assert all(module == name or module.startswith(f"{name}.") for module in shown)
    assert PAGES["mha_book.rope"] == ["mha_book.rope"]
    assert PAGES["mha_book.notation"] == []
    assert PAGES["mha_book.exercises"] == ["mha_book.exercises"]


def test_the_contents_list_every_page_once_a_folder_above_its_files():
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf8"))
    [entry] = [c for part in toc["parts"] for c in part["chapters"] if c["file"] == "book/api"]
    listed = []
    for below in entry["sections"]:
        listed.append(below["file"])
        for pattern in below.get("sections", ()):
            files = (ROOT / "book").glob(pattern["glob"].removeprefix("book/") + ".md")
            listed += [f"{api.FOLDER}/{path.stem}" for path in files]
    assert sorted(listed) == sorted(map(api.page_name, PAGES))
    folders = [name for name in PAGES if name.count(".") == 1]
    assert [below["file"] for below in entry["sections"]] == [*map(api.page_name, folders)]


def test_the_page_of_a_module_shows_every_public_name(built_book):
    for page, modules in PAGES.items():
        text = (built_book / f"{api.page_name(page)}.html").read_text(encoding="utf8")
        for module in modules:
            for name in importlib.import_module(module).__all__:
                assert f'id="{module}.{name}"' in text, f"{module}.{name}"


def test_dollars_in_docstrings_become_mathematics():
    lines = [
        "The sum $a +",
        "b$ costs ``$HOME`` and $X'^{hia}$.",
        ">>> f('$1 and $2')",
        "```$no$``` stays text: a price of 3 $.",
    ]
    api.dollars_to_math(None, "function", "f", None, None, lines)
    text = "\n".join(lines)
    assert ":math:`a + b`" in text
    assert "``$HOME``" in text
    assert ":math:`X'^{hia}`" in text
    assert ">>> f('$1 and $2')" in text
