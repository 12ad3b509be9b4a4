"""Strings for the notation that its coverage guides: needs atheris, which not every Python has.

A string that reaches a line of the notation that none before it reached is kept and changed
further; the equations of the book and the pieces of the notation are the first. The contract is
that of :func:`tests.notation.fuzz.outcome`; what breaks it is printed, and written to a file::

    pip install atheris
    python -m tests.notation.guided -max_total_time=600 -max_len=200
"""

import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Go on until the time that the command line gives is over, or a string breaks the contract."""
    import atheris

    with atheris.instrument_imports(include=["mha_book.notation"], enable_loader_override=False):
        from tests.notation.fuzz import CORPUS, PIECES, outcome

    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate([*CORPUS, *PIECES]):
            (Path(folder) / str(number)).write_text(text, encoding="utf8")
        command = [*sys.argv, "-timeout=60", folder]
        atheris.Setup(command, lambda data: outcome(data.decode("utf8", "replace")) and None)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
