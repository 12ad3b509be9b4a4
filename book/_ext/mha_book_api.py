"""The API reference: a page for each module that ``book/modules.yml`` names, from its docstrings.

A folder's page has its docstring and a list of its modules; modules that the list does not name
stand on the page of their folder. A page is a file of a heading and one directive, since Sphinx
builds what it finds; ``python book/_ext/mha_book_api.py`` writes those that are missing and removes
those that are none. That every public name has a docstring is ruff's to say (rules D).
"""

import functools
import importlib
import inspect
import pkgutil
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from mha_book_equations import add_directive
from mha_book_modules import ROOT, load_modules, module_names

PACKAGE = "mha_book"
FOLDER = "book/api"


def public_modules(package: str = "mha_book") -> list[str]:
    """Return the names of the package's modules that define a public name, each in its place.

    A folder whose ``__init__`` only hands on what its files define is not one of them.
    """
    root = importlib.import_module(package)
    names = (info.name for info in pkgutil.walk_packages(root.__path__, f"{package}."))
    shown = (name for name in names if "._" not in name)
    public = [name for name in shown if _defines(importlib.import_module(name))]
    order = {f"{package}.{name}": n for n, name in enumerate(module_names(load_modules()))}
    return sorted(public, key=lambda name: (order.get(name, len(order)), name))


@functools.cache
def api_pages(package: str = PACKAGE) -> dict[str, list[str]]:
    """Return the pages of the reference: module or folder -> the modules whose names it shows."""
    names = (f"{package}.{name}" for name in module_names(load_modules()))
    pages: dict[str, list[str]] = {name: [] for name in names if "._" not in name}
    for module in public_modules(package):
        page = module
        while page not in pages:
            page = page.rpartition(".")[0]
        pages[page].append(module)
    return pages


def page_name(module: str) -> str:
    """Return the page of a module, without suffix."""
    return f"{FOLDER}/{module.partition('.')[2].replace('.', '-')}"


def stub(module: str) -> str:
    """Return the text of a page's file."""
    return f"# `{module}`\n\n```{{api-module}} {module}\n```\n"


def write_stubs(root: Path = ROOT) -> None:
    """Write the files of the pages, and remove those of modules that are gone."""
    files = {root / f"{page_name(module)}.md": stub(module) for module in api_pages()}
    (root / FOLDER).mkdir(exist_ok=True)
    for path in set((root / FOLDER).glob("*.md")) - set(files):
        path.unlink()
    for path, text in files.items():
        path.write_text(text, encoding="utf8")


def _defines(module) -> bool:
    """Whether a name of ``__all__`` is the module's own; a constant is, wherever it is named."""
    own = module.__name__
    return any(
        getattr(getattr(module, name), "__module__", own) == own
        for name in getattr(module, "__all__", ())
    )


@functools.cache
def _documented() -> dict[str, list[tuple[str, Any]]]:
    """Return last part of a name -> the documented names that end so, and their values."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for module in public_modules():
        loaded = importlib.import_module(module)
        for name in loaded.__all__:
            found.setdefault(name, []).append((f"{module}.{name}", getattr(loaded, name)))
    return found


@functools.cache
def resolve(path: str) -> str | None:
    """Return where the API documents what a dotted path leads to; None if it does not.

    A module is documented, and the names of its ``__all__``. A path may go through a folder that
    hands the name on, and end in a method.
    """
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
            break
        except ImportError:
            continue
    else:
        return None
    for place, part in enumerate(parts[length:], start=length):
        value = getattr(value, part, None)
        for name, other in _documented().get(part, ()):
            if other is value:
                inner = parts[place + 1 :]
                there = not inner or (isinstance(value, type) and inner[0] in vars(value))
                return ".".join([name, *inner]) if there and len(inner) < 2 else None
    return ".".join(parts) if length == len(parts) else None


def _nested(self, lines: list[str]) -> list[nodes.Node]:
    holder = nodes.Element()
    self.state.nested_parse(StringList(lines, "api"), 0, holder)
    return holder.children


def _list_of(pages: list[str], depth: int) -> list[str]:
    """Return the lines of a list of pages, those in a folder below it."""
    lines = []
    for page in pages:
        indent = "  " * (page.count(".") - depth)
        text = (inspect.getdoc(importlib.import_module(page)) or "").partition("\n")[0]
        text = text.replace("$", r"\$")
        lines.append(f"{indent}- [`{page}`](/{page_name(page)}.md): {text}")
    return lines


def api_reference(self):
    """``{api-reference}``: what is used most, and a list of the pages."""
    self.env.note_reread()  # of the whole package
    names = [f"{PACKAGE}.{name}" for name in importlib.import_module(PACKAGE).__all__]
    most_used = ", ".join(f":obj:`~{resolve(name)}`" for name in names if resolve(name))
    rst = ["```{eval-rst}", f".. automodule:: {PACKAGE}", "", f"{most_used}.", "```"]
    return _nested(self, rst) + _nested(self, _list_of(list(api_pages()), 1))


def api_module(self):
    """``{api-module} mha_book.x``: a module's own text and names, or those in a folder."""
    name, pages = self.arguments[0], api_pages()
    out = _automodule(self, name, members=name in pages[name])
    below = [page for page in pages if page.startswith(f"{name}.")]
    out += _nested(self, _list_of(below, name.count(".") + 1))
    for module in pages[name]:
        if module != name:
            section = nodes.section(ids=[nodes.make_id(module)])
            section += nodes.title("", "", nodes.literal(module, module))
            section += _automodule(self, module)
            out.append(section)
    return out


def _automodule(self, module: str, members: bool = True) -> list[nodes.Node]:
    option = ["   :members:"] if members else []
    return _nested(self, ["```{eval-rst}", f".. automodule:: {module}", *option, "```"])


# A formula may run over a line end; doctest lines and literals are left alone.
_APART = re.compile(r"(``.+?``|^\s*>>>.*$|^\s*\.\.\. .*$)", re.M)
_DOLLAR = re.compile(r"(?<![\\$\w])\$(?!\s)([^$]+?)(?<!\s)\$(?!\w)")


def dollars_to_math(app, what, name, obj, options, lines):
    """Turn ``$…$`` of the docstrings, the book's way to write mathematics, into a math role."""
    pieces = _APART.split("\n".join(lines))
    pieces[::2] = [
        _DOLLAR.sub(lambda m: f":math:`{' '.join(m[1].split())}`", text) for text in pieces[::2]
    ]
    lines[:] = "".join(pieces).split("\n")


def setup(app):
    """Register the directives and the hook."""
    add_directive(app, "api-reference", api_reference)
    add_directive(app, "api-module", api_module, required_arguments=1)
    app.connect("autodoc-process-docstring", dollars_to_math)


if __name__ == "__main__":
    write_stubs()
