"""The order of the package's modules, read from ``book/modules.yml``; README's table of them.

``python book/_ext/mha_book_modules.py`` writes the table anew.
"""

import re
from pathlib import Path
from typing import NamedTuple

from mha_book_toc import read

ROOT = Path(__file__).parents[2]
TABLE = re.compile(r"\| module \| what it has \|\n\|---\|---\|\n(?:\|.*\|\n)*")


class Module(NamedTuple):
    """One entry of the list: a file or a folder of the package."""

    name: str
    text: str = ""
    files: tuple[str, ...] = ()
    alone: bool = False


def load_modules(root: Path = ROOT) -> list[Module]:
    """Return the entries, lowest first."""
    entries = read(root / "book" / "modules.yml")
    return [Module(**{**entry, "files": tuple(entry.get("files", ()))}) for entry in entries]


def module_names(modules: list[Module]) -> list[str]:
    """Return the dotted names below ``mha_book``, a folder before its files."""
    return [name for m in modules for name in (m.name, *(f"{m.name}.{file}" for file in m.files))]


def readme_table(modules: list[Module]) -> str:
    """Return the table that README shows: the public entries."""
    rows = [f"| `{m.name}` | {' '.join(m.text.split())} |\n" for m in modules if m.text]
    return "| module | what it has |\n|---|---|\n" + "".join(rows)


def with_table(readme: str, modules: list[Module]) -> str:
    """Return README's text with the table as it should be."""
    return TABLE.sub(lambda _: readme_table(modules), readme, count=1)


if __name__ == "__main__":
    path = ROOT / "README.md"
    path.write_text(with_table(path.read_text(encoding="utf8"), load_modules()), encoding="utf8")
