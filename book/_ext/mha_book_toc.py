"""The pages in their order, as ``_toc.yml`` has them: ``book/…`` each, without suffix.

The pages below another, as those of the API are, are left out.
"""

import functools
import json
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import yaml


class _Loader(yaml.CSafeLoader):
    """Refuses a key that stands twice in a mapping, of which YAML takes the last."""

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value]
        if twice := [key for n, key in enumerate(keys) if key in keys[:n]]:
            raise ValueError(f"expected each key once, got {twice} again:{node.start_mark}")
        return super().construct_mapping(node, deep)


@functools.lru_cache(200)
def _parsed(text: str) -> bytes:
    return pickle.dumps(yaml.load(text, _Loader))


def read(path: Path) -> Any:
    """Return what a file of JSON, a notebook among them, or of YAML holds."""
    text = path.read_text(encoding="utf8")
    is_json = path.suffix in (".json", ".ipynb")
    return json.loads(text) if is_json else pickle.loads(_parsed(text))


class Part(NamedTuple):
    """A part of the book; the root page stands before all others, in a part without a name."""

    caption: str
    is_numbered: bool
    pages: list[str]


def read_parts(root: Path) -> list[Part]:
    """Return the parts of the book in the repository at ``root``."""
    toc = read(root / "_toc.yml")
    parts = [Part("", False, [toc["root"]])]
    for part in toc.get("parts", ()):
        files = [entry["file"] for entry in part["chapters"]]
        parts.append(Part(part.get("caption", ""), bool(part.get("numbered")), files))
    return parts


def toc_pages(root: Path) -> list[str]:
    """Return every page, in order."""
    return [page for part in read_parts(root) for page in part.pages]


def part_of(root: Path) -> dict[str, str]:
    """Return the part that each page but the root is in, by the page's short name."""
    return {Path(page).name: p.caption for p in read_parts(root)[1:] for page in p.pages}
