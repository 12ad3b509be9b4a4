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
from mha_book_equations import alterations, load_kinds, table
from mha_book_toc import toc_pages
from sphinx.util.docutils import SphinxDirective

from mha_book.notation.page import page_equations

__all__ = ["SOURCES", "compared_with", "rigour_rows", "setup", "without_alteration"]

SOURCES = ("the package", "JAX", "NumPy alone")
# They only make inputs; the notation is what runs the equation.
_INPUTS = {"init_multi_head"}
_NOTATION = "mha_book.notation"
_SHARED = "tests.book.equations."  # what a file uses of another is followed into it
# What JAX gives that is no arithmetic on arrays: derivatives, its own softmax.
_JAX = {"vjp", "jvp", "grad", "value_and_grad", "jacobian", "jacrev", "jacfwd", "hessian", "nn",
    "scipy", "lax"}  # fmt: skip


class _File:
    """One file of tests: what its names stand for, and what each of its functions uses."""

    def __init__(self, path: Path) -> None:
        self.tree = ast.parse(path.read_text(encoding="utf8"))
        self.package: set[str] = set()
        self.defined: dict[str, ast.AST] = {}
        for node in self.tree.body:
            match node:
                case ast.ImportFrom(module=str(module)) if module.startswith(_SHARED):
                    other = _File(path.with_name(f"{module.removeprefix(_SHARED)}.py"))
                    self.package |= other.package
                    self.defined |= other.defined
                case ast.ImportFrom(module=str(module)):
                    if module.split(".")[0] == "mha_book" and not module.startswith(_NOTATION):
                        names = {alias.asname or alias.name for alias in node.names}
                        # Classes and constants hold something, functions do something.
                        self.package |= {name for name in names if name.islower()} - _INPUTS
                case ast.FunctionDef(name=name):
                    self.defined[name] = node
                case ast.Assign(targets=[ast.Name(id=name)]):
                    self.defined[name] = node

    def source(self, start: ast.AST) -> str:
        """Return what a function takes its second value from."""
        waiting, seen, jax = [start], {id(start)}, False
        while waiting:
            for node in ast.walk(waiting.pop()):
                match node:
                    case ast.Attribute(value=ast.Name(id="jax"), attr=attr):
                        jax = jax or attr in _JAX
                    case ast.Name(id=name) if name in self.package:
                        return SOURCES[0]
                    case ast.Name(id=name) if name in self.defined:
                        other = self.defined[name]
                        if id(other) not in seen:
                            seen.add(id(other))
                            waiting.append(other)
        return SOURCES[1] if jax else SOURCES[2]

    def feeders(self) -> Iterator[tuple[str, ast.AST]]:
        """Yield (label, the function that feeds the equation with it).

        A label stands in ``@executed("label")``, or is the first argument of a call, on the level
        of the file, of a function that registers what it is given.
        """
        helpers = set()
        for name, node in self.defined.items():
            for inner in ast.walk(node):
                for mark in getattr(inner, "decorator_list", ()):
                    match mark:
                        case ast.Call(
                            func=ast.Name(id="executed"), args=[ast.Constant(value=label)]
                        ):
                            yield label, inner
                        case ast.Call(func=ast.Name(id="executed")):
                            helpers.add(name)
        for node in self.tree.body:
            for inner in ast.walk(node):
                match inner:
                    case ast.Call(
                        func=ast.Name(id=name), args=[ast.Constant(value=str(label)), *_]
                    ) if name in helpers:
                        yield label, inner


def compared_with(root: Path) -> dict[str, str]:
    """Return what each executed equation is compared with besides its loops, by label."""
    found = {}
    for path in sorted((root / "tests" / "book" / "equations").glob("*.py")):
        if path.stem == "__init__":
            continue
        file = _File(path)
        found |= {label: file.source(function) for label, function in file.feeders()}
    return found


def without_alteration(root: Path) -> list[str]:
    """Return the labels of executed equations that have nothing to alter."""
    labels = []
    kinds = load_kinds(root)
    for page in toc_pages(root):
        path = root / f"{page}.ipynb"
        if path.exists():
            executed = {
                label for label, e in kinds.get(path.stem, {}).items() if e["kind"] == "executed"
            }
            for label, latex in page_equations(path).items():
                if label in executed and not any(alterations(latex)):
                    labels.append(label)
    return labels


def rigour_rows(root: Path) -> list[tuple[str, Counter[str]]]:
    """Return (page, how many of its executed equations are compared with what), in order."""
    compared, kinds = compared_with(root), load_kinds(root)
    rows = []
    for page in (Path(name).name for name in toc_pages(root)):
        labels = [label for label, e in kinds.get(page, {}).items() if e["kind"] == "executed"]
        if labels:
            rows.append((page, Counter(compared.get(label, "unknown") for label in labels)))
    return rows


class Rigour(SphinxDirective):
    """``{equation-rigour}``: with what the executed equations are compared."""

    def run(self):
        """Return the table and what the counts say."""
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
    app.add_directive("equation-rigour", Rigour)
