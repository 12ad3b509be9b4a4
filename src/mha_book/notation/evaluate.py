r"""From an expression to arrays: einsums, element by element operations, gathers.

Every value has one axis for each free index of its expression. A product with the sums around it
is one contraction, computed two tensors at a time (:mod:`mha_book.notation.contraction`), its
numbers and named scalars multiplied into the smallest tensor that arises. A softmax is
computed in the dtype of its argument, with the maximum subtracted before the exponential.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import reduce
from math import inf, prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_book.notation.contraction import (
    Step,
    contract,
    flatten,
    order,
    own_indices,
    signed,
    subscripts,
)
from mha_book.notation.dimensions import all_once, inside, positions
from mha_book.notation.expression import (
    Add,
    Delta,
    Derivative,
    Expression,
    Function,
    Named,
    Number,
    Power,
    Quotient,
    Softmax,
    Tensor,
    free_indices,
    is_plain,
    key,
)

__all__ = ["Evaluation", "Value"]


_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "exp": jnp.exp,
    "log": jnp.log,
    "sqrt": jnp.sqrt,
    "tanh": jnp.tanh,
    "sin": jnp.sin,
    "cos": jnp.cos,
}


class Value(NamedTuple):
    """An array, or a Python number, with the index of each of its axes."""

    array: Any
    axes: tuple[str, ...]


class _Sizes(dict[str, int]):
    """The sizes of indices; one that has been renamed has that of its name with fewer primes."""

    def __missing__(self, index: str) -> int:
        if not index.endswith("'"):
            raise KeyError(index)
        return self[index.removesuffix("'")]


class Evaluation:
    """Computes the expressions of one equation on given arrays.

    Attributes:
        operations: how many have been made: a multiplication with its addition counts two,
            anything else one for each element, a softmax five; those on scalars do not count.
    """

    def __init__(self, arrays: Mapping[str, Any], sizes: Mapping[str, int], source: str) -> None:
        """Take arrays and numbers by their Python names, and the size of each index."""
        tensors = [array for array in arrays.values() if getattr(array, "ndim", 0)]
        tensors = tensors or [array for array in arrays.values() if hasattr(array, "dtype")]
        self.dtype: jnp.dtype = jnp.result_type(*tensors) if tensors else jnp.result_type(float)
        self.floating: bool = jnp.issubdtype(self.dtype, jnp.inexact)
        self.given = arrays
        self.arrays: dict[str, Any] = {name: self._cast(array) for name, array in arrays.items()}
        self.sizes: dict[str, int] = _Sizes(sizes)
        self.source = source
        self.operations: int = 0

    def _cast(self, array: Any) -> Any:
        """Return the array in the dtype of all; Python numbers take it where they are used."""
        if not hasattr(array, "dtype"):
            return jnp.asarray(float(array) if self.floating else array)
        same = array.dtype == self.dtype or (array.ndim == 0 and not self.floating)
        return array if same else array.astype(self.dtype)

    def __call__(self, node: Expression, axes: Sequence[str]) -> jax.Array:
        """Return the value of an expression with its axes in the given order."""
        if isinstance(node, Add):
            value = self.add(node.terms, tuple(axes))
        else:
            value = self.contraction(node, tuple(axes))
        array = value.array
        fits = hasattr(array, "dtype") and (array.dtype == self.dtype or not self.floating)
        return array if fits else jnp.asarray(array, self.dtype)

    def assign(self, leaf: Named, axes: Sequence[str], array: jax.Array) -> jax.Array:
        """Write values to the positions that the indices of the left side name."""
        at = positions(leaf, axes, self.sizes, self.given, self.source)
        shape = all_once(leaf, at, self.source)
        return jnp.zeros(shape, array.dtype).at[at].set(array)

    def count(self, axes: Sequence[str], each: int = 1) -> None:
        """Count an operation on every element of a tensor with these axes."""
        if axes:
            self.operations += each * prod(self.sizes[index] for index in axes)

    def align(self, value: Value, axes: Sequence[str]) -> jax.Array | int | float:
        """Return the array with one axis for each of ``axes``, of size 1 where it has none."""
        array: jax.Array | int | float = value.array
        if not value.axes:
            return array
        kept = [index for index in axes if index in value.axes]
        array = jnp.transpose(value.array, [value.axes.index(index) for index in kept])
        if len(kept) == len(axes):
            return array
        return array.reshape([self.sizes[i] if i in value.axes else 1 for i in axes])

    def value(self, node: Expression) -> Value:
        """Return the value of an expression, its axes in the order of its free indices."""
        match node:
            case Tensor() | Derivative():
                return self.leaf(node)
            case Delta(first, second):
                if first == second:
                    return Value(jnp.ones(self.sizes[first], self.dtype), (first,))
                return Value(jnp.eye(self.sizes[first], dtype=self.dtype), (first, second))
            case Add(terms):
                return self.add(terms, free_indices(node))
            case Quotient(numerator, denominator) if free_indices(denominator):
                return self.elementwise(jnp.divide, node, numerator, denominator)
            case Quotient(Number(value), denominator):
                below = self.contraction(denominator)
                return Value(jnp.divide(_number(value), below.array), ())
            case Power(base, exponent):
                return self.elementwise(lambda x: _power(x, exponent), node, base)
            case Function(name, argument):
                return self.elementwise(_FUNCTIONS[name], node, argument)
            case Softmax(argument, index):
                inner = self.contraction(argument)
                self.count(inner.axes, 5)
                axis = inner.axes.index(index)
                return Value(jax.nn.softmax(inner.array, axis=axis), inner.axes)
        return self.contraction(node)

    def leaf(self, leaf: Named) -> Value:
        """Return a named array: a diagonal where an index stands twice, a gather if computed."""
        array = self.arrays[key(leaf.name)]
        axes = free_indices(leaf)
        if not is_plain(leaf):
            at = positions(leaf, axes, self.sizes, self.given, self.source)
            inside(leaf, at, array.shape, self.source)
            return Value(array[at], axes)
        if len(axes) < len(leaf.indices):
            return Value(jnp.einsum(subscripts([own_indices(leaf)], axes), array), axes)
        return Value(array, axes)

    def elementwise(
        self, function: Callable[..., Any], node: Expression, *arguments: Expression
    ) -> Value:
        """Apply a function to each element of its arguments."""
        axes = free_indices(node)
        values = [self.contraction(argument) for argument in arguments]
        self.count(axes)
        return Value(function(*(self.align(value, axes) for value in values)), axes)

    def add(self, terms: Sequence[Expression], axes: tuple[str, ...]) -> Value:
        """Add terms and subtract those with the factor -1."""
        total: Any = None
        for term in terms:
            minus, rest = signed(term)
            own = set(free_indices(rest))
            value = self.contraction(rest, tuple(index for index in axes if index in own))
            array = self.align(value, axes)
            if total is None:
                total = -array if minus else array
            else:
                total = total - array if minus else total + array
                self.count(axes)
        return Value(jnp.broadcast_to(total, self.shape(axes)) if axes else total, axes)

    def shape(self, axes: Sequence[str]) -> tuple[int, ...]:
        """Return the sizes of axes."""
        return tuple(self.sizes[index] for index in axes)

    def contraction(self, node: Expression, axes: tuple[str, ...] | None = None) -> Value:
        """Compute products and sums; the axes in the given order, where some order is given."""
        parts = flatten(node, self.sizes)
        for new, old in parts.renamed.items():
            self.sizes[new] = self.sizes[old]
        output = parts.output if axes is None else axes
        number = parts.number
        values = [self.value(factor) for factor in parts.factors]
        scalars = [self.value(scalar).array for scalar in parts.scalars]
        scalars += [value.array for value in values if not value.axes]
        values = [value for value in values if value.axes]
        present = {index for value in values for index in value.axes}
        for index in parts.summed:
            if index not in present:
                number *= self.sizes[index]
        result = tuple(index for index in output if index in present)
        scale = _product([_number(number), *scalars] if number != 1 else scalars)
        if not values:
            return self.spread(Value(1 if scale is None else scale, ()), output)
        steps = order([value.axes for value in values], result, self.sizes)
        smallest = self.smallest(values, steps) if scale is not None else None
        for step in (None, *steps):
            if step is not None:
                values.append(self.step(step, values))
            if smallest is not None and smallest < len(values):
                value = values[smallest]
                values[smallest] = Value(value.array * scale, value.axes)
                self.count(value.axes)
                smallest = None
        return self.spread(values[-1], output)

    def spread(self, value: Value, axes: tuple[str, ...]) -> Value:
        """Return the value with all of the axes, in their order."""
        if value.axes == axes:
            return value
        return Value(jnp.broadcast_to(self.align(value, axes), self.shape(axes)), axes)

    def smallest(self, values: Sequence[Value], steps: Sequence[Step]) -> int:
        """Return the position of the tensor or intermediate result with the fewest elements."""
        axes = [value.axes for value in values] + [step.result for step in steps]
        return min(range(len(axes)), key=lambda at: prod(self.shape(axes[at])))

    def step(self, step: Step, values: Sequence[Value]) -> Value:
        """Make one step of a contraction."""
        taken = [values[at] for at in step.operands]
        everything = (*step.result, *step.summed)
        if len(taken) == 1:
            (value,) = taken
            self.count(everything)
            summed = tuple(value.axes.index(index) for index in step.summed)
            kept = tuple(index for index in value.axes if index in step.result)
            return Value(jnp.sum(value.array, axis=summed), kept)
        self.count(everything, 2 if step.summed else 1)
        if step.summed:
            left, right = taken
            return Value(contract(left, right, step.result), step.result)
        return Value(operator.mul(*(self.align(v, step.result) for v in taken)), step.result)


def _number(value: Fraction) -> int | float:
    if value.denominator == 1 and abs(value) < 2**31:
        return int(value)
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def _product(factors: Sequence[Any]) -> Any:
    return reduce(operator.mul, factors) if factors else None


def _power(base: Any, exponent: Fraction) -> Any:
    if exponent.denominator == 1:
        whole = int(exponent)
        is_small = isinstance(base, int) and 0 <= whole * base.bit_length() < 64
        if isinstance(base, int | float) and not is_small:
            with np.errstate(all="ignore"):  # Python's integers grow without end, its floats raise
                return float(np.float64(base) ** whole)
        return base**whole if whole >= 0 else 1 / base**-whole
    if abs(exponent) == Fraction(1, 2):
        return jnp.sqrt(base) if exponent > 0 else 1 / jnp.sqrt(base)
    return jnp.power(base, float(exponent))
