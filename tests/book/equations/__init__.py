r"""The executed and the tested equations of the book, a function each.

A displayed equation that the notation of :mod:`mha_book.notation` reaches is *executed*: its text
is taken out of the page, parsed and run. The function registered under its label returns the
arrays to run it on and what the package computes for its names::

    @executed("layer-output")
    def output(rng):
        params, y, inside = layer(rng)
        return {"O": inside.head_outputs, "W_O": params.w_o}, {"Y": y}

A name that the text itself gives a value (``A^{ij} = …``) is computed by it, and is compared with
the package's; an identity has equal sides. The rest is automatic: every statement agrees with its
plain loops, and altered texts (a sign, an index, a function) are noticed.

An equation that the notation does not reach is *tested*.

A displayed equation ``$$ … $$ (split-rows)`` that ``book/equations/<page>.yml`` calls ``tested``
has a function here, registered under its label with the LaTeX that it tests::

    @tested("split-rows", latex=r"X'^{hia} = X^{i(hH+a)}")
    def split_rows(rng):
        x = rng.normal(size=(3, 10))  # T = 3 positions, N = 5 heads, H = 2 features a head
        right = [[[x[i, h * 2 + a] for a in range(2)] for i in range(3)] for h in range(5)]
        return split_heads(x, 5), right

The function gets a NumPy generator and returns both sides, evaluated: equal within ``tolerance``.
The LaTeX must be that of the page, white space aside. Small dimensions, all different primes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

__all__ = [
    "EXECUTED",
    "REGISTRY",
    "Equation",
    "Executed",
    "evaluated",
    "executed",
    "fed",
    "tested",
]


@dataclass(frozen=True)
class Equation:
    """A displayed equation and the function that evaluates its two sides."""

    label: str
    latex: str
    sides: Callable
    tolerance: float
    module: str


@dataclass(frozen=True)
class Executed:
    """A displayed equation that is run from the text of its page.

    Attributes:
        label: its label on the page.
        arrays: a NumPy generator to (arrays by Python name, the package's values by Python name).
        broadcast: indices that a term of the right side may lack.
        tolerance: the largest difference allowed, relative to the largest entry.
        within: labels of equations whose lines this one changes, the first as it stands; what is
            run are all lines. Empty for an equation that stands for itself.
        split: an index of those lines and the indices that take its place.
    """

    label: str
    arrays: Callable
    broadcast: tuple[str, ...]
    tolerance: float
    within: tuple[str, ...] = ()
    split: tuple[str, str] | None = None


REGISTRY: dict[str, Equation] = {}
EXECUTED: dict[str, Executed] = {}


def _check_new(label: str) -> None:
    if label in EXECUTED or label in REGISTRY:
        raise ValueError(f"label: expected one function an equation, got a second for {label!r}")


def executed(
    label: str,
    *,
    broadcast: tuple[str, ...] = (),
    tolerance: float = 1e-5,
    within: tuple[str, ...] = (),
    split: tuple[str, str] | None = None,
) -> Callable:
    """Register the decorated function as the one that feeds the equation with this label."""
    _check_new(label)

    def register(arrays: Callable) -> Callable:
        EXECUTED[label] = Executed(label, arrays, broadcast, tolerance, within, split)
        return arrays

    return register


def fed(label: str, source: Callable, given: str, made: str = "") -> None:
    """Register an equation by the names of what one source has: its arrays, and what they make.

    Args:
        label: the equation's.
        source: a NumPy generator to a dictionary of arrays.
        given: names, with blanks between, of what the equation is run on.
        made: names of the package's values that it is compared with.
    """

    @executed(label)
    def feed(rng):
        found = source(rng)
        return {n: found[n] for n in given.split()}, {n: found[n] for n in made.split()}


def tested(label: str, *, latex: str, tolerance: float = 1e-5) -> Callable:
    """Register the decorated function as the test of the equation with this label."""
    _check_new(label)

    def register(sides: Callable) -> Callable:
        REGISTRY[label] = Equation(label, latex, sides, tolerance, sides.__module__)
        return sides

    return register


tested.__test__ = False  # not a test itself, whatever pytest thinks of its name


def evaluated(function: Callable) -> Any:
    """What a function makes of a generator, by one program where it looks at no traced value.

    Each of its operations by itself would be a program to compile.
    """
    made: list = []

    def traced() -> list:
        made[:] = jax.tree.flatten(function(np.random.default_rng(20)))
        return [leaf for leaf in made[0] if isinstance(leaf, jax.core.Tracer)]

    try:
        computed = iter(jax.jit(traced)())
    except jax.errors.JAXTypeError:
        return function(np.random.default_rng(20))
    leaves, tree = made
    whole = [next(computed) if isinstance(leaf, jax.core.Tracer) else leaf for leaf in leaves]
    return jax.tree.unflatten(tree, whole)
