r"""What can be said of an equation before any array is given: einsums, shapes, operations."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from mha_book.notation.contraction import einsums, flatten, own_indices, subscripts
from mha_book.notation.dimensions import Named, axes_text, index_sizes, operands
from mha_book.notation.errors import notation_error
from mha_book.notation.evaluate import Evaluation
from mha_book.notation.expression import (
    Add,
    Delta,
    Derivative,
    Function,
    Power,
    Quotient,
    Softmax,
    Tensor,
    key,
)
from mha_book.notation.positions import shape_of
from mha_book.notation.sides import Sides

__all__ = ["einsum", "flops", "markdown", "shapes"]

_KINDS: dict[type, str] = {
    Add: "terms that are added",
    Delta: "a Kronecker delta of two free indices",
    Function: "a function",
    Power: "a power",
    Quotient: "a quotient",
    Softmax: "a softmax",
}


def einsum(equation: Sides) -> str:
    """Return what ``einsum`` calls the right side, numbers and named scalars aside.

    Raises:
        ValueError: the right side is not one contraction of tensors.
    """
    reason = "no einsum says this alone: "
    parts = flatten(equation.computed)
    target = () if equation.target is None else (equation.target,)
    for factor in (*parts.factors, *target):
        if not isinstance(factor, Tensor | Derivative) or not _plain(factor):
            what = _KINDS.get(type(factor), "a computed position")
            raise notation_error(reason + what, equation.text, factor.span)
    terms = [own_indices(factor) for factor in parts.factors]
    for index in (*equation.free, *parts.summed):
        if not any(index in term for term in terms):
            raise notation_error(f"{reason}no tensor has the index {index}", equation.text)
    return subscripts(terms, equation.free)


def _plain(leaf: Named) -> bool:
    return all(isinstance(index, str) for index in leaf.indices)


def _scalars(equation: Sides, dims: Mapping[str, int]) -> dict[str, int]:
    """The values among the sizes, which are those of named scalars."""
    leaves = {**equation.scalars, **equation.operands}
    equation.check_dims(dims, [name for name, leaf in leaves.items() if not leaf.indices])
    return {name: dims[name] for name in dims if name in leaves}


def shapes(equation: Sides, dims: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every array, that of the left side first."""
    scalars = _scalars(equation, dims)
    sizes = index_sizes(equation.sides, {}, dims, equation.text)
    return {
        name: shape_of(leaf, sizes, scalars, equation.text)
        for name, leaf in _arrays(equation).items()
    }


def _arrays(equation: Sides) -> dict[str, Named]:
    target = equation.target
    first = {} if target is None else {key(target.name): target}
    return {**first, **equation.scalars, **equation.operands}


def flops(equation: Sides, dims: Mapping[str, int]) -> int:
    """Count the operations of a call: by making it, on arrays without values."""
    scalars = _scalars(equation, dims)
    needed = shapes(equation, dims)
    sizes = index_sizes(equation.sides, {}, dims, equation.text)
    abstract = {
        name: jax.ShapeDtypeStruct(needed[name], jnp.float32)
        for name in operands((equation.computed,))
        if name not in scalars
    }
    operations = 0

    def run(arrays: dict[str, Any]) -> jax.Array:
        nonlocal operations
        evaluation = Evaluation({**arrays, **scalars}, sizes, equation.text)
        value = evaluation(equation.computed, equation.free)
        operations = evaluation.operations
        return value

    jax.eval_shape(run, abstract)
    return operations


def markdown(equation: Sides) -> str:
    """Write the equation for a notebook: typeset, below it its einsums and its arrays' axes."""
    told = {
        name: f"`{name}{axes_text(leaf, '[]') if leaf.indices else ''}`"
        for name, leaf in _arrays(equation).items()
    }
    target = [] if equation.target is None else [told.pop(key(equation.target.name))]
    arrays = " → ".join([", ".join(told.values()), *target][-2 if told else -1 :])
    written = ", ".join(f"`{text}`" for text in einsums(equation.computed, equation.free))
    below = " · ".join(text for text in (written, arrays) if text)
    return f"$$\n{equation.text.strip()}\n$$\n\n{below}"
