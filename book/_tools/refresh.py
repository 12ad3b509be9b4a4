"""Execute the chapters in place and normalise them: what `make notebooks` runs.

    python book/_tools/refresh.py [--normalise] [name ...]

Before the first code cell of each stands one that sets up Google Colab and does nothing elsewhere;
it names the repository that ``CITATION.cff`` does.

Each notebook runs from top to bottom in a fresh kernel with book/ as its working directory.
What is stored afterwards depends on the sources and their results alone: no timestamps, no
version of the interpreter, counts from 1, ids kept, keys sorted. A notebook is only written
when all its cells ran without an error and without a word on stderr, and then in one step: a run
that is stopped at any moment leaves each notebook as it was, or done, and no kernel.
"""

import argparse
import asyncio
import hashlib
import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

BOOK = Path(__file__).resolve().parents[1]
sys.path.append(str(BOOK / "_ext"))

from mha_book_public import read_public  # noqa: E402

from mha_book.storage import write_atomic  # noqa: E402

CELL_TIMEOUT = 120
KERNEL_ARGUMENTS = ["--IPKernelApp.log_level=ERROR"]  # its own notes are no output
if os.name == "posix":
    # A kernel looks once a second whether its parent is another than it was when the kernel stood:
    # it does not notice one that died before. This line, which runs as the kernel comes up, does.
    has_parent = "str(__import__('os').getppid()) == __import__('os').environ['JPY_PARENT_PID']"
    line = f"if not {has_parent}: __import__('os')._exit(1)"
    KERNEL_ARGUMENTS.append(f"--IPKernelApp.exec_lines={line}")
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
CELL_METADATA = ("mystnb", "tags")
# The kernel of Colab has imported packages before this cell runs, some of them in other versions
# than the book pins. So the session starts anew once they are installed.
COLAB = (BOOK / "_templates" / "colab.txt").read_text(encoding="utf8").rstrip()


def put_colab_cell(notebook: nbformat.NotebookNode, repository: str) -> None:
    """Put the cell for Colab before the first code cell, or its new source where it stands."""
    cells = [cell for cell in notebook.cells if cell.get("id") != "colab"]
    code = [place for place, cell in enumerate(cells) if cell.cell_type == "code"]
    if code:
        source, tags = COLAB.format(repository=repository), {"tags": ["remove-cell"]}
        cell = nbformat.v4.new_code_cell(source, id="colab", execution_count=1, metadata=tags)
        notebook.cells = [*cells[: code[0]], cell, *cells[code[0] :]]


def normalise(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Remove what varies between two runs of the same notebook; in place, and returned."""
    put_colab_cell(notebook, read_public(BOOK.parent, {}).repository)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    notebook.metadata = nbformat.from_dict(METADATA)
    count, taken = 0, set[str]()
    for position, cell in enumerate(notebook.cells):
        kept = {key: cell.metadata[key] for key in CELL_METADATA if key in cell.metadata}
        cell.metadata = nbformat.from_dict(kept)
        identity = cell.get("id")
        while not identity or identity in taken:
            seed = f"{identity} {position} {cell.source}"
            identity = hashlib.sha256(seed.encode()).hexdigest()[:8]
        cell.id = identity
        taken.add(identity)
        cell.source = cell.source.rstrip("\n")
        if not cell.get("attachments"):
            cell.pop("attachments", None)
        if cell.cell_type != "code":
            continue
        count += 1
        if cell.execution_count is not None:
            cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
            output.pop("transient", None)
    return notebook


def text_of(notebook: nbformat.NotebookNode) -> str:
    """The text of the file: sorted keys, one trailing newline."""
    return str(nbformat.writes(notebook)).rstrip("\n") + "\n"


def execute(notebook: nbformat.NotebookNode) -> None:
    """Run all cells in a fresh kernel."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    NotebookClient(
        notebook, timeout=CELL_TIMEOUT, kernel_name="python3", record_timing=False,
        coalesce_streams=True, extra_arguments=KERNEL_ARGUMENTS,
        resources={"metadata": {"path": str(BOOK)}},
    ).execute()  # fmt: skip


def refresh(path: Path, *, run: bool) -> bool:
    """Bring one notebook up to date; whether it is in order."""
    started, before = time.perf_counter(), path.read_text(encoding="utf-8")
    stored = normalise(nbformat.reads(before, as_version=4))
    fresh = nbformat.from_dict(stored)
    if run:
        try:
            execute(fresh)
        except CellExecutionError as error:
            print(f"  {path.stem}: failed, not written\n{error}")
            return False
        except (Exception, asyncio.CancelledError) as error:  # what a signal ends in varies
            why = "its kernel died, took too long, or was stopped by a signal"
            raise SystemExit(f"  {path.stem}: not written: {why} ({error!r})") from error
    normalise(fresh)
    said = [o.text for c in fresh.cells for o in c.get("outputs", ()) if o.get("name") == "stderr"]
    if said:
        print(f"  {path.stem}: not written; a cell wrote to stderr:\n{''.join(said)}")
        return False
    after = text_of(fresh)
    cells = sum(new != old for new, old in zip(fresh.cells, stored.cells, strict=True))
    verdict = f"{cells} cells changed" if cells else "normalised"
    if after != before:
        write_atomic(path, after.encode())
    said = "unchanged" if after == before else verdict
    print(f"  {path.stem}: {said} ({time.perf_counter() - started:.1f} s)", flush=True)
    return True


def main() -> int:
    """Parse the command line and go through the notebooks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--normalise", action="store_true", help="do not run, only normalise")
    parser.add_argument("names", nargs="*", help="chapters, by name or path; all without")
    options = parser.parse_args()
    paths = [BOOK / f"{Path(name).stem}.ipynb" for name in options.names]
    paths = paths or sorted(BOOK.glob("*.ipynb"))
    if absent := [path.name for path in paths if not path.exists()]:
        parser.error(f"no such chapter in {BOOK.name}/: {', '.join(absent)}")
    # What is stored is what a processor computes; an accelerator's library would speak on stderr.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    fine = [refresh(path, run=not options.normalise) for path in paths]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    raise SystemExit(main())
