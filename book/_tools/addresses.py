"""The lasting addresses of the book: which of them lead nowhere in the build, and the list itself.

    python book/_tools/addresses.py [--html FOLDER]      the old addresses that lead nowhere
    python book/_tools/addresses.py --collect            add what the build gives out to the list

A line of the first command is put into ``book/moved.yml`` with the place where it went. The second
belongs to a release: what was once published has to stay.
"""

import argparse
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "book" / "_ext"))

from mha_book_addresses import (  # noqa: E402
    address_problems,
    built_pages,
    collect,
    labels_of,
    load_moved,
    stale_entries,
)

from mha_book.storage import write_atomic  # noqa: E402

STORED = ROOT / "tests" / "book" / "addresses.json"


def load() -> dict[str, list[str]]:
    """Return the addresses that were given out."""
    if not STORED.exists():
        return {}
    addresses: dict[str, list[str]] = json.loads(STORED.read_text(encoding="utf8"))
    return addresses


def merged(old: dict[str, list[str]], new: dict[str, list[str]]) -> dict[str, list[str]]:
    """Return the addresses of both: nothing is ever taken out."""
    return {
        page: list(dict.fromkeys([*old.get(page, []), *new.get(page, [])]))
        for page in sorted({*old, *new})
    }


def main() -> int:
    """List, or collect."""
    parser = argparse.ArgumentParser(description="The lasting addresses of the book.")
    parser.add_argument("--html", type=Path, default=ROOT / "_build" / "html")
    parser.add_argument("--collect", action="store_true", help="add those of the build to the list")
    arguments = parser.parse_args()
    if arguments.collect:
        text = json.dumps(merged(load(), collect(arguments.html)), indent=0)
        write_atomic(STORED, f"{text}\n".encode())
        return 0
    pages, moved = built_pages(arguments.html), load_moved(ROOT)
    found = address_problems(load(), pages, moved, labels_of(arguments.html))
    found += stale_entries(pages, moved)
    print("\n".join(found) or "every address leads somewhere")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
