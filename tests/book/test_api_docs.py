"""Every public name of the package has a docstring of its own, and the API page lists it."""

import importlib
import sys
import types

import pytest

from tests.book.extensions import ROOT, api

MODULES = api.public_modules()


def test_the_modules_are_found():
    assert {"mha_book.heads", "mha_book.masks", "mha_book.attention.reference"} <= set(MODULES)
    assert not [name for name in MODULES if "._" in name]


def test_every_public_module_defines_all():
    for path in sorted((ROOT / "src" / "mha_book").rglob("*.py")):
        parts = path.relative_to(ROOT / "src").with_suffix("").parts
        if not any(part.startswith("_") for part in parts):
            assert hasattr(importlib.import_module(".".join(parts)), "__all__"), path


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_is_documented(module):
    assert api.undocumented(module) == []


@pytest.mark.parametrize("module", MODULES)
def test_formulas_of_docstrings_stand_in_the_line(module):
    """Sphinx shows the source of one between two dollar signs, and displayed ones need a label."""
    loaded = importlib.import_module(module)
    documented = [loaded, *(getattr(loaded, name) for name in loaded.__all__)]
    lines = [line.strip() for each in documented for line in (each.__doc__ or "").splitlines()]
    assert [line for line in lines if line.startswith(("$$", ".. math::"))] == []


@pytest.mark.parametrize("module", MODULES)
def test_all_names_exist_and_are_sorted_out_once(module):
    names = importlib.import_module(module).__all__
    assert len(names) == len(set(names))
    assert all(hasattr(importlib.import_module(module), name) for name in names)


def test_every_page_of_the_api_shows_every_public_name(built_book):
    page = (built_book / "book" / "api.html").read_text(encoding="utf8")
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            assert f'id="{module}.{name}"' in page, f"{module}.{name}"


SOURCE = '''
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["bare", "Bare", "Pair", "Data", "CONSTANT", "said", "Said", "TOLD", "Alias"]

def bare(): ...

class Bare:
    """Has a docstring, and a method without."""

    def method(self): ...

class Pair(NamedTuple):
    first: int

@dataclass
class Data:
    first: int

CONSTANT = 3

def said():
    """Say it."""

class Said(NamedTuple):
    """Say it."""

    first: int

TOLD = 3
"""What this is."""

Alias = list[int]
"""What this is."""
'''


def test_undocumented_names_are_found(tmp_path, monkeypatch):
    (tmp_path / "undocumented_example.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    found = api.undocumented("undocumented_example")
    assert isinstance(sys.modules.pop("undocumented_example"), types.ModuleType)
    short = {name.removeprefix("undocumented_example").lstrip(".") for name in found}
    assert short == {"", "bare", "Bare.method", "Pair", "Data", "CONSTANT"}


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
