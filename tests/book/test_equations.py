"""Every displayed equation of the book is executed, tested or a definition.

How a chapter adds a tested equation: ``tests/book/equations/__init__.py``.
"""

import importlib
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import tests.book.equations
from mha_book.notation.page import displayed_equations, notebook_text, page_text
from tests.book.equations import EXECUTED, REGISTRY, Equation, evaluated
from tests.book.extensions import ROOT, equations, toc
from tests.turns import known_pages

for _module in pkgutil.iter_modules(tests.book.equations.__path__):
    importlib.import_module(f"tests.book.equations.{_module.name}")


def page_equations(root: Path) -> dict[str, list[tuple[str | None, str]]]:
    """Return the displayed equations of every page by its short name."""
    found = {}
    for page in toc.toc_pages(root):
        notebook, text = root / f"{page}.ipynb", root / f"{page}.md"
        source = page_text(notebook if notebook.exists() else text)
        found[Path(page).name] = displayed_equations(source)
    return found


def equation_problems(displayed, kinds, registry, executed) -> list[str]:
    """Return what is wrong with the classification of the displayed equations.

    Args:
        displayed: page -> (label, LaTeX) of each displayed equation.
        kinds: page -> label -> ``{kind, …}``.
        registry: label -> the registered test.
        executed: labels of the equations that are run.
    """
    found, seen = [], set()
    for page, shown in displayed.items():
        table = kinds.get(page, {})
        for label, latex in shown:
            if label is None:
                found.append(f"{page}: no label: {latex[:50]}")
                continue
            if label in seen:
                found.append(f"{page}: {label} stands twice")
            seen.add(label)
            entry = table.get(label, {})
            kind = entry.get("kind")
            if kind not in equations.KINDS:
                found.append(f"{page}: {label} is none of {', '.join(equations.KINDS)}")
            if (kind == "tested") != (label in registry):
                found.append(f"{page}: {label} is {kind}; registered tests say otherwise")
            elif kind == "tested" and registry[label].latex.split() != latex.split():
                found.append(f"{page}: {label} on the page is not what the test states")
            if (kind == "executed") != (label in executed):
                found.append(f"{page}: {label} is {kind}; registered executions say otherwise")
    for page, table in kinds.items():
        labels = {label for label, _ in displayed.get(page, ())}
        found += [f"{page}: {label} is not displayed" for label in table if label not in labels]
    found += [f"{label} is tested, but not displayed" for label in registry if label not in seen]
    found += [f"{label} is executed, but not displayed" for label in executed if label not in seen]
    return found


def check_sides(equation: Equation) -> None:
    """Assert that both sides agree."""
    left, right = (np.asarray(s, np.float64) for s in evaluated(equation.sides))
    assert left.shape == right.shape, f"{equation.label}: {left.shape} against {right.shape}"
    assert left.size, f"{equation.label}: nothing to compare"
    assert np.isfinite(left).all()
    assert np.isfinite(right).all()
    gap = np.abs(left - right).max() / max(1.0, np.abs(left).max())
    assert gap <= equation.tolerance, f"{equation.label}: sides differ by {gap:.3g}"


def test_a_definition_is_what_it_was():
    """Nothing checks what only names something, so its text stays as it was first read."""
    texts = map(notebook_text, known_pages().values())
    then = [latex.split() for text in texts for _, latex in displayed_equations(text)]
    kinds = equations.load_kinds(ROOT)
    for page, shown in page_equations(ROOT).items():
        for label, latex in shown:
            if kinds[page][label] == {"kind": "definition"}:  # a new one says why, as ``new``
                assert not then or latex.split() in then, label


def test_every_displayed_equation_is_classified():
    kinds = equations.load_kinds(ROOT)
    assert equation_problems(page_equations(ROOT), kinds, REGISTRY, EXECUTED) == []


def test_most_equations_are_executed_from_the_page():
    kinds = [
        entry["kind"] for table in equations.load_kinds(ROOT).values() for entry in table.values()
    ]
    executed, held = kinds.count("executed"), len(kinds) - kinds.count("definition")
    assert executed >= 0.8 * held, f"{executed} of {held} are executed"


@pytest.mark.parametrize("label", sorted(REGISTRY))
def test_both_sides_agree(label):
    check_sides(REGISTRY[label])


# The gate itself: it finds each kind of mistake.


def _equation(latex="x = y"):
    return Equation("a", latex, lambda rng: (1.0, 1.0), 1e-6, "here")


@pytest.mark.parametrize(
    "page, table, registry, executed, problem",
    [
        ([(None, "x")], {}, {}, {}, "no label"),
        ([("b", "z"), ("b", "z")], {"b": {"kind": "definition"}}, {}, {}, "stands twice"),
        ([("b", "z")], {}, {}, {}, "is none of"),
        ([("a", "z")], {"a": {"kind": "tested"}}, {}, {}, "say otherwise"),
        ([("a", "x = -y")], {"a": {"kind": "tested"}}, {"a": _equation()}, {}, "not what the test"),
        ([("c", "1")], {"c": {"kind": "executed"}}, {}, {}, "executions say otherwise"),
        ([], {}, {}, {"c"}, "executed, but not displayed"),
        ([], {"b": {"kind": "definition"}}, {}, {}, "is not displayed"),
        ([], {}, {"a": _equation()}, {}, "tested, but not displayed"),
    ],
)  # fmt: skip
def test_a_wrong_classification_is_found(page, table, registry, executed, problem):
    found = equation_problems({"page": page}, {"page": table}, registry, executed)
    assert any(problem in line for line in found), found


def test_displayed_equations_are_found_in_every_form():
    text = r"""Inline $x$ and `$$not this$$`.

$$ a = b $$ (first)

$$
\begin{align}
c &= d \\
e &= f
\end{align}
$$ (second)

```{math}
:label: third
g = h
```

:::{claim} C16
$$i = j$$
:::

```python
s = "$$ no $$"
```

\begin{align}
m &= n
\end{align}
"""
    found = displayed_equations(text)
    assert sorted(label or "" for label, _ in found) == ["", "", "first", "second", "third"]
    assert dict(found)["third"] == "g = h"
