"""The cell that sets up a notebook on Google Colab, and does nothing elsewhere.

    python book/_tools/colab_cell.py [--check] [name ...]

It stands before the first code cell of every notebook, out of sight on the pages. It names the
repository that ``CITATION.cff`` does: once that is configured, run this again, and commit the
notebooks, since Colab opens them from the repository. Nothing is executed: the outputs and their
order stay. Twice in a row changes nothing.
"""

import argparse
import sys
from pathlib import Path

import nbformat

BOOK = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(BOOK / "_ext"), str(BOOK / "_tools")]

from mha_book_public import read_public  # noqa: E402
from refresh import normalise, text_of  # noqa: E402

from mha_book.storage import write_atomic  # noqa: E402

CELL_ID = "colab"
TAGS = ["remove-cell"]

# The kernel of Colab has imported packages before this cell runs, some of them in other versions
# than the book pins. So the session starts anew once they are installed.
SOURCE = """\
# @title On Google Colab: install the book. Elsewhere: nothing. {{display-mode: "form"}}
import os
import subprocess

if "COLAB_RELEASE_TAG" in os.environ:
    repository = "{repository}"  # where this notebook comes from: https://github.com/<owner>/<name>
    book = os.path.expanduser("~/mha-book")
    if os.path.exists(f"{{book}}/.installed"):
        os.chdir(f"{{book}}/book")
    elif not repository:
        raise SystemExit("Name the repository of this notebook in this cell, and run it again.")
    else:
        if not os.path.exists(book):
            subprocess.run(["git", "clone", "--quiet", "--depth=1", repository, book], check=True)
        subprocess.run(["bash", f"{{book}}/book/_tools/colab.sh"], check=True)
        print("Installed. The session starts anew: then choose Runtime, Run all.")
        get_ipython().kernel.do_shutdown(restart=True)"""


def cell_source(repository: str) -> str:
    """Return the source of the cell for the notebooks of a repository, empty if none is known."""
    return SOURCE.format(repository=repository)


def put_cell(notebook: nbformat.NotebookNode, repository: str) -> nbformat.NotebookNode:
    """Put the cell before the first code cell, or its new source where it stands already."""
    cells = [cell for cell in notebook.cells if cell.get("id") != CELL_ID]
    code = [place for place, cell in enumerate(cells) if cell.cell_type == "code"]
    if not code:
        return notebook
    cell = nbformat.v4.new_code_cell(
        cell_source(repository), id=CELL_ID, execution_count=1, metadata={"tags": TAGS}
    )
    notebook.cells = [*cells[: code[0]], cell, *cells[code[0] :]]
    return normalise(notebook)


def main() -> int:
    """Put the cell into the notebooks, or say which do not have it."""
    parser = argparse.ArgumentParser(description="The cell that sets up a notebook on Colab.")
    parser.add_argument("names", nargs="*", help="chapters, without .ipynb; all if none is given")
    parser.add_argument("--check", action="store_true", help="say what would change, write nothing")
    arguments = parser.parse_args()
    repository = read_public(BOOK.parent, {}).repository  # the committed one
    paths = [BOOK / f"{name}.ipynb" for name in arguments.names] or sorted(BOOK.glob("*.ipynb"))
    changed = 0
    for path in paths:
        stored = path.read_text(encoding="utf8")
        text = text_of(put_cell(nbformat.reads(stored, as_version=4), repository))
        if text == stored:
            continue
        changed += 1
        print(f"{path.name}: {'lacks the cell' if arguments.check else 'written'}")
        if not arguments.check:
            write_atomic(path, text.encode())
    print(f"{len(paths) - changed} of {len(paths)} notebooks had the cell")
    return int(arguments.check and changed > 0)


if __name__ == "__main__":
    sys.exit(main())
