"""Counting what a program really does: the matrix products in its trace and when compiled.

The formulas of :mod:`mha_book.costs` are held to these counts. Nothing is run and no array is
made: :class:`jax.ShapeDtypeStruct` serves as argument, so that a layer of any size can be counted.
"""

import math
import re
from collections.abc import Callable
from typing import Any

import jax

__all__ = ["compiled_matmul_flops", "entry_count", "traced_matmul_flops"]


def entry_count(tree: Any) -> int:
    """Return how many numbers the arrays of a tree hold, or would hold.

    Args:
        tree: arrays, or shapes from :func:`jax.eval_shape`.

    Returns:
        The number of entries.

    Example:
        >>> entry_count({"w": jax.ShapeDtypeStruct((3, 5), "float32")})
        15
    """
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def traced_matmul_flops(function: Callable[..., Any], *args: Any) -> int:
    """Return the FLOPs of all matrix products in the trace of ``function(*args)``.

    Functions called inside are counted where they are called, the body of a ``scan`` as often as
    it runs; a ``while`` has no number of rounds in its trace, and is refused.

    Args:
        function: any function that JAX can trace.
        args: its arguments, arrays or shapes.

    Returns:
        FLOPs.

    Raises:
        NotImplementedError: a product stands in a ``while`` or in a branch of a ``cond``.

    Example:
        >>> x = jax.ShapeDtypeStruct((3, 5), "float32")
        >>> traced_matmul_flops(lambda x: x @ x.T, x)
        90
    """
    return _jaxpr_flops(jax.make_jaxpr(function)(*args).jaxpr)


def compiled_matmul_flops(function: Callable[..., Any], *args: Any) -> int:
    """Return the FLOPs of all ``dot`` operations in the program compiled for this machine.

    Args:
        function: any function that JAX can compile, without loops.
        args: its arguments, arrays or shapes.

    Returns:
        FLOPs.

    Raises:
        NotImplementedError: the program has a loop, or a call to a library that may hide products.

    Example:
        >>> x = jax.ShapeDtypeStruct((3, 5), "float32")
        >>> compiled_matmul_flops(lambda x: x @ x.T, x)
        90
    """
    return _program_flops(str(jax.jit(function).lower(*args).compile().as_text()))


def _jaxpr_flops(jaxpr: Any) -> int:
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            summed = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
            total += 2 * summed * math.prod(equation.outvars[0].aval.shape)
            continue
        inner = sum(_jaxpr_flops(part) for part in _jaxprs(equation.params))
        if inner and equation.primitive.name in ("while", "cond"):
            raise NotImplementedError(f"products inside {equation.primitive.name} are not counted")
        total += inner * equation.params.get("length", 1) if inner else 0
    return total


def _jaxprs(params: dict[str, Any]) -> list[Any]:
    """Return the traces among the parameters of an equation; derivative rules are functions."""
    found = []
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            item = getattr(item, "jaxpr", item)
            if hasattr(item, "eqns"):
                found.append(item)
    return found


_RESULT = re.compile(r"^\s*(?:ROOT )?(%[\w.-]+) = \w+\[([\d,]*)\]", re.M)
_DOT = re.compile(r"^\s*(?:ROOT )?%[\w.-]+ = \w+\[([\d,]*)\]\S* dot\([^%]*(%[\w.-]+)(.*)$", re.M)


def _program_flops(text: str) -> int:
    """Count the products in the text of a compiled program."""
    for hidden in ("while", "custom-call"):
        if f" {hidden}(" in text:
            raise NotImplementedError(f"a program with a {hidden} is not counted")
    shapes = dict(_RESULT.findall(text))
    total = 0
    for result, left, rest in _DOT.findall(text):
        contracted = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", rest)
        axes = _numbers(contracted[1]) if contracted else []
        summed = math.prod(_numbers(shapes[left])[axis] for axis in axes)
        total += 2 * math.prod(_numbers(result)) * summed
    return total


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
