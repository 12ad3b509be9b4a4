"""The modules of the book's Sphinx extension, which is no installed package, for the tests."""

# ruff: noqa: E402, F401

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))

import mha_book_addresses as addresses
import mha_book_api as api
import mha_book_bibliography as bibliography
import mha_book_cells as cells
import mha_book_code as code
import mha_book_equations as equations
import mha_book_evidence as evidence
import mha_book_explorer as explorer
import mha_book_figures as figures
import mha_book_finding as finding
import mha_book_html as page_html
import mha_book_lab as lab
import mha_book_ledger as ledger
import mha_book_modules as modules
import mha_book_pages as pages
import mha_book_public as public
import mha_book_questions as questions
import mha_book_status as status
import mha_book_symbols as symbols
import mha_book_toc as toc


def tool(name: str) -> ModuleType:
    """A script of book/_tools, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "book" / "_tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
