"""How strongly the executed equations are held, counted from their tests.

Every executed equation is compared with plain loops over its own text and with a second value. What
that value comes from is read in ``tests/book/equations/``: the function that feeds the equation,
with everything of its file that it uses, names a function of the package, or one of JAX, or neither
(then the test itself has the second value, by NumPy or by another side of the equation).

What comes from the package counts as the stronger: its equation fails if the package changes.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from mha_book_equations import add_directive, alterations, load_kinds, table
from mha_book_toc import toc_pages

from mha_book.notation.page import page_equations

SOURCES = ("the package", "JAX", "NumPy alone")
# They only make inputs; the notation is what runs the equation.
_INPUTS = {"init_multi_head"}
_NOTATION = "mha_book.notation"
_SHARED = "tests.book.equations."  # what a file uses of another is followed into it
# What JAX gives that is no arithmetic on arrays: derivatives, its own softmax.
_JAX = {"vjp", "jvp", "grad", "value_and_grad", "jacobian", "jacrev", "jacfwd", "hessian", "nn",
    "scipy", "lax"}  # fmt: skip


def _read(path: Path) -> tuple[list[ast.stmt], set[str], dict[str, ast.AST]]:
    """Return a file's statements, what it has of the package, and its own names' definitions."""
    body = ast.parse(path.read_text(encoding="utf8")).body
    package: set[str] = set()
    defined: dict[str, ast.AST] = {}
    for node in body:
        match node:
            case ast.ImportFrom(module=str(module)) if module.startswith(_SHARED):
                _, names, nodes_ = _read(path.with_name(f"{module.removeprefix(_SHARED)}.py"))
                package |= names
                defined |= nodes_
            case ast.ImportFrom(module=str(module)) if module.startswith("mha_book"):
                # Classes and constants hold something, functions do something.
                names = {alias.asname or alias.name for alias in node.names}
                if not module.startswith(_NOTATION):
                    package |= {name for name in names if name.islower()} - _INPUTS
            case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                defined[name] = node
    return body, package, defined


def _source(start: ast.AST, package: set[str], defined: dict[str, ast.AST]) -> str:
    """Return what a function takes its second value from."""
    waiting, seen, found = [start], {id(start)}, SOURCES[2]
    while waiting:
        for node in ast.walk(waiting.pop()):
            match node:
                case ast.Attribute(value=ast.Name(id="jax"), attr=attr) if attr in _JAX:
                    found = SOURCES[1]
                case ast.Name(id=name) if name in package:
                    return SOURCES[0]
                case ast.Name(id=name) if name in defined and id(defined[name]) not in seen:
                    seen.add(id(defined[name]))
                    waiting.append(defined[name])
    return found


def _feeders(body: list[ast.stmt], defined: dict[str, ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Yield (label, the function that feeds the equation with it).

    A label stands in ``@executed("label")``, or is the first argument of a call, on the level of
    the file, of a function that registers what it is given.
    """
    helpers = {"fed"}
    for name, node in defined.items():
        for inner in ast.walk(node):
            for mark in getattr(inner, "decorator_list", ()):
                match mark:
                    case ast.Call(func=ast.Name(id="executed"), args=[ast.Constant(value=label)]):
                        yield label, inner
                    case ast.Call(func=ast.Name(id="executed")):
                        helpers.add(name)
    for inner in (inner for node in body for inner in ast.walk(node)):
        match inner:
            case ast.Call(func=ast.Name(id=name), args=[ast.Constant(value=str(label)), *_]):
                if name in helpers:
                    yield label, inner


def compared_with(root: Path) -> dict[str, str]:
    """Return what each executed equation is compared with besides its loops, by label."""
    found = {}
    for path in sorted((root / "tests" / "book" / "equations").glob("[!_]*.py")):
        body, package, defined = _read(path)
        feeders = _feeders(body, defined)
        found |= {label: _source(function, package, defined) for label, function in feeders}
    return found


def _executed(root: Path) -> dict[str, list[str]]:
    """Return page -> the labels of its executed equations, in the book's order."""
    kinds = load_kinds(root)
    pages = {page: kinds.get(Path(page).name, {}) for page in toc_pages(root)}
    return {
        page: [label for label, entry in labels.items() if entry["kind"] == "executed"]
        for page, labels in pages.items()
    }


def without_alteration(root: Path) -> list[str]:
    """Return the labels of executed equations that have nothing to alter."""
    return [
        label
        for page, labels in _executed(root).items()
        if labels
        for label, latex in page_equations(root / f"{page}.ipynb").items()
        if label in labels and not any(alterations(latex))
    ]


def rigour_rows(root: Path) -> list[tuple[str, Counter[str]]]:
    """Return (page, how many of its executed equations are compared with what), in order."""
    compared = compared_with(root)
    return [
        (Path(page).name, Counter(compared.get(label, "unknown") for label in labels))
        for page, labels in _executed(root).items()
        if labels
    ]


def rigour(self):
    """``{equation-rigour}``: with what the executed equations are compared."""
    root = Path(self.env.srcdir)
    rows = rigour_rows(root)
    total = sum((count for _, count in rows), Counter())
    body = [
        (page, *(str(count[source]) for source in SOURCES), str(count.total()))
        for page, count in [*rows, ("all pages", total)]
    ]
    package, jax, alone = (total[source] for source in SOURCES)
    idle = without_alteration(root)
    text = (
        f"Of {total.total()} executed equations, {package} are compared with a function of the "
        f"package and {jax} more with JAX. The other {alone} call neither: they hold what the "
        "text says against NumPy in the test, and nothing about the package. "
    )
    text += f"{len(idle)} have no sign, function or order of indices that could be altered"
    text += f": {', '.join(idle)}." if idle else "."
    return [table(("page", *SOURCES, "executed"), body), nodes.paragraph(text, text)]


def setup(app):
    """Register the directive."""
    add_directive(app, "equation-rigour", rigour)
