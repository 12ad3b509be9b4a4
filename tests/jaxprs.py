"""What a function makes on its way, as its trace shows it."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

__all__ = ["largest", "shapes"]


def shapes(function: Callable[..., Any], *arguments: Any) -> set[tuple[int, ...]]:
    """The shapes of all arrays that a function makes, whatever it calls."""
    return set(_inside(jax.make_jaxpr(function)(*arguments).jaxpr))


def largest(function: Callable[..., Any], *arguments: Any) -> int:
    """The size of the largest of these arrays."""
    return max(map(math.prod, shapes(function, *arguments)))


def _inside(jaxpr: Any) -> Iterator[tuple[int, ...]]:
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        parameters = list(equation.params.values())
        for inner in jax.tree.leaves(parameters, is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(inner, "jaxpr", inner)  # closed over constants, or not
            if hasattr(inner, "eqns"):
                yield from _inside(inner)
