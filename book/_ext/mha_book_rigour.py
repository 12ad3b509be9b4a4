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
from mha_book_equations import KINDS, add_directive, load_kinds, proved, table
from mha_book_toc import toc_pages

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
                _, names, others = _read(path.with_name(f"{module.removeprefix(_SHARED)}.py"))
                package |= names
                defined |= others
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
    waiting, names, by_jax = [start], set(), False
    while waiting:
        for node in ast.walk(waiting.pop()):
            match node:
                case ast.Attribute(value=ast.Name(id="jax"), attr=attr):
                    by_jax |= attr in _JAX
                case ast.Name(id=name) if name not in names:
                    names.add(name)
                    waiting += [defined[name]] if name in defined else []
    return SOURCES[0 if names & package else 1 if by_jax else 2]


def _feeders(body: list[ast.stmt], defined: dict[str, ast.AST]) -> Iterator[tuple[str, ast.AST]]:
    """Yield (label, the function that feeds the equation with it).

    A label is in ``@executed("label")``, or the first argument for a function that registers it.
    """
    helpers = {"fed"}
    for name, node in defined.items():
        for inner in ast.walk(node):
            for mark in getattr(inner, "decorator_list", ()):
                match mark:
                    case ast.Call(func=ast.Name(id="executed"), args=[ast.Constant(value=label)]):
                        if node in body:  # what another file defines is read there
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


def rigour_rows(root: Path) -> list[tuple[str, Counter[str]]]:
    """Return (page, its equations by kind, the executed ones by source too), in order."""
    compared, kinds, rows = compared_with(root), load_kinds(root), []
    theorems = proved(root)
    for name in (Path(page).name for page in toc_pages(root)):
        labels = {label: entry["kind"] for label, entry in kinds.get(name, {}).items()}
        executed = [label for label, kind in labels.items() if kind == "executed"]
        if labels:
            held = ["proved"] * len(labels.keys() & theorems)
            sources = (compared.get(label, "unknown") for label in executed)
            rows.append((name, Counter([*labels.values(), *sources, *held])))
    return rows


def rigour(self):
    """``{equation-rigour}``: the equations of each page by kind, and what holds the executed."""
    rows = rigour_rows(Path(self.env.srcdir))
    total = sum((count for _, count in rows), Counter())
    columns = ("proved", "executed", *SOURCES, "tested", "definition")
    body = [
        (page, *(str(count[name]) for name in columns), str(sum(count[kind] for kind in KINDS)))
        for page, count in [*rows, ("all pages", total)]
    ]
    theorems, executed, package, jax, alone, tested, _ = (total[name] for name in columns)
    text = (
        f"{theorems} equations are proved. "
        f"Of the {executed + tested} that are no definitions, {executed} are executed: "
        f"{executed / (executed + tested):.0%}. Of these, {package} are compared with a function "
        f"of the package and {jax} more with JAX. The other {alone} call neither: they hold what "
        "the text says against NumPy in the test, and nothing about the package."
    )
    return [table(("page", *columns, "all"), body), nodes.paragraph(text, text)]


def _always_reread(app, env, added, changed, removed):
    """Read the pages that depend on all others again in every build."""
    whole = ("status", "claims", "papers", "api", "notation-table")
    return {page for page in env.found_docs if Path(page).name in whole}


def setup(app):
    """Register the directive, and what is read again."""
    add_directive(app, "equation-rigour", rigour)
    app.connect("env-get-outdated", _always_reread)
