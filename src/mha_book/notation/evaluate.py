r"""From an expression to arrays: einsums, element by element operations, gathers.

Every value has one axis for each free index of its expression. A product with the sums around it
is one contraction, computed two tensors at a time (:mod:`mha_book.notation.evaluate`), its
numbers and named scalars multiplied into the smallest tensor that arises. A softmax is
computed in the dtype of its argument, with the maximum subtracted before the exponential.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from math import inf, prod
from string import ascii_letters as _LETTERS
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum

import mha_book.notation.expression as ex

__all__: list[str] = []

_MOST_BY_SEARCH = 5  # tensors: above that, all orders are too many to try


class Contraction:
    """A product with the sums around it, taken apart: nested products and sums become one.

    The index of a sum that has the name of another gets a new one; Kronecker deltas with a summed
    index vanish.

    Attributes:
        number: the product of the numbers.
        scalars: the factors without indices, free or summed, such as ``1 / sqrt(d_k)``.
        factors: the factors with indices.
        summed: the indices that are summed over.
        output: the indices that stay, in the order in which they first stand.
        renamed: for each index that has a new name the one it had.
    """

    def __init__(self, node: ex.Expression, taken: Iterable[str] = ()) -> None:
        """Take an expression apart; no index gets a name among those taken elsewhere."""
        self.number = Fraction(1)
        self.scalars: list[ex.Expression] = []
        self.factors: list[ex.Expression] = []
        self.summed: list[str] = []
        self.output = ex.free_indices(node)
        self.renamed: dict[str, str] = {}
        self._everywhere = ex.all_indices(node) | {*taken}
        self._add(node)
        self._drop_deltas()

    def _add(self, node: ex.Expression) -> None:
        match node:
            case ex.Number(value):
                self.number *= value
            case ex.Product(factors):
                for factor in factors:
                    self._add(factor)
            case ex.Sum(indices, body):
                taken = {*self.output, *self.summed}
                names = {i: ex.fresh(i, self._everywhere) for i in indices if i in taken}
                self._everywhere |= {*names.values()}
                self.renamed |= {new: old for old, new in names.items()}
                self.summed += [names.get(i, i) for i in indices]
                self._add(ex.rename(body, names))
            case ex.Quotient(numerator, denominator) if not isinstance(
                numerator, ex.Number
            ) and not ex.free_indices(denominator):
                self._add(numerator)
                self._add(ex.Quotient(ex.Number(Fraction(1)), denominator))
            case _:
                (self.factors if ex.free_indices(node) else self.scalars).append(node)

    def _drop_deltas(self) -> None:
        """Put one index for both of a delta that has a summed one."""
        kept: list[ex.Expression] = []
        rest = self.factors
        while rest:
            node, *rest = rest
            if not isinstance(node, ex.Delta) or not {node.first, node.second} & {*self.summed}:
                kept.append(node)
                continue
            old, new = node.second, node.first
            if old not in self.summed:
                old, new = new, old
            if old != new:
                self.summed.remove(old)
                kept = [ex.rename(other, {old: new}) for other in kept]
                rest = [ex.rename(other, {old: new}) for other in rest]
        self.factors = kept


def signed(term: ex.Expression) -> tuple[bool, ex.Expression]:
    """Return whether a term of a sum is subtracted, and what is added or subtracted."""
    match term:
        case ex.Number(value) if value < 0:
            return True, ex.Number(-value)
        case ex.Product((ex.Number(value), only)) if value == -1:
            return True, only
        case ex.Product((ex.Number(value), *rest)) if value == -1:
            return True, ex.Product(tuple(rest))
        case ex.Product((ex.Number(value), *rest)) if value < 0:
            return True, ex.Product((ex.Number(-value), *rest))
        case ex.Sum(indices, body, written):
            minus, rest_of = signed(body)
            return minus, ex.Sum(indices, rest_of, written)
    return False, term


def subscripts(terms: Sequence[tuple[str, ...]], output: tuple[str, ...]) -> str:
    """Return what ``einsum`` calls a contraction: ``"ib,hba->hia"``.

    An index keeps its letter where it is one letter; any other gets a letter that is free.
    """
    labels = dict.fromkeys(label for term in (*terms, output) for label in term)
    letters = {label: label for label in labels if label in _LETTERS}
    free = iter(letter for letter in reversed(_LETTERS) if letter not in letters)
    for label in labels:
        if label not in letters:
            base = label[0].upper()
            new = base if base in _LETTERS and base not in letters.values() else next(free)
            letters[label] = new
    written = ["".join(letters[label] for label in term) for term in (*terms, output)]
    return ",".join(written[:-1]) + "->" + written[-1]


def own_indices(factor: ex.Expression) -> tuple[str, ...]:
    """Return an operand's indices as einsum has them: of a tensor, as often as they stand."""
    if isinstance(factor, ex.Named) and ex.is_plain(factor):
        return ex.written_indices(factor)
    return ex.free_indices(factor)


def einsums(node: ex.Expression, output: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """Return every contraction in an expression as einsum writes it, the outermost first."""
    parts = Contraction(node)
    found: tuple[str, ...] = ()
    if len(parts.factors) > 1 or (parts.factors and parts.summed):
        terms = [own_indices(factor) for factor in parts.factors]
        present = {index for term in terms for index in term}
        whole = parts.output if output is None else output
        found = (subscripts(terms, tuple(index for index in whole if index in present)),)
    for factor in (*parts.factors, *parts.scalars):
        for child in ex.children(factor):
            found += einsums(child)
    return found


# The order.


@dataclass(frozen=True)
class Step:
    """One operation of a contraction, on tensors and the results of the steps before."""

    operands: tuple[int, ...]  # one or two positions: tensors come first, results behind them
    result: tuple[str, ...]  # the indices of the result, in the order of its axes
    summed: tuple[str, ...]  # the indices that the step sums over


def _path(
    terms: Sequence[tuple[str, ...]], output: tuple[str, ...], sizes: Mapping[str, int]
) -> Sequence[tuple[int, ...]]:
    """Return the cheapest order; one without a large intermediate result where there is one."""
    sets = [frozenset(term) for term in terms], frozenset(output), dict(sizes)
    path: Sequence[tuple[int, ...]]
    if len(terms) > _MOST_BY_SEARCH:
        path = opt_einsum.paths.auto(*sets)
        return path
    limit = max(prod(sizes[index] for index in term) for term in (*terms, output))
    path = opt_einsum.paths.optimal(*sets, limit)
    if any(len(pair) > 2 for pair in path):  # every order has a larger result
        path = opt_einsum.paths.optimal(*sets)
    return path


def order(
    terms: Sequence[tuple[str, ...]], output: tuple[str, ...], sizes: Mapping[str, int]
) -> tuple[Step, ...]:
    """Return the steps that contract the tensors, two at a time.

    Of up to five tensors, the order needs the fewest operations among those whose intermediate
    results are no larger than the largest tensor or the result, where there is such an order. An
    index that only one tensor has is summed first.
    """
    steps: list[Step] = []
    current = []
    for at, term in enumerate(terms):
        elsewhere = {*output}.union(*(other for o, other in enumerate(terms) if o != at))
        alone = tuple(label for label in term if label not in elsewhere)
        if alone:
            kept = tuple(label for label in term if label in elsewhere)
            current.append((len(terms) + len(steps), kept))
            steps.append(Step((at,), kept, alone))
        else:
            current.append((at, tuple(term)))
    if len(current) > 1:
        for pair in _path([term for _, term in current], output, sizes):
            second, first = (current.pop(at) for at in sorted(pair, reverse=True))
            needed = {*output}.union(*(term for _, term in current))
            both = tuple(dict.fromkeys(first[1] + second[1]))
            kept = tuple(label for label in both if label in needed) if current else output
            gone = tuple(label for label in both if label not in needed)
            current.append((len(terms) + len(steps), kept))
            steps.append(Step((first[0], second[0]), kept, gone))
    return tuple(steps)


def operands(sides: Iterable[ex.Expression]) -> dict[str, ex.Named]:
    """Return the arrays of the expressions by their Python names, each where it first stands.

    The named scalars of computed positions are among them.
    """
    found: dict[str, ex.Named] = {}
    for leaf in ex.leaves(*sides):
        if isinstance(leaf, ex.Named):
            found.setdefault(ex.key(leaf.name), leaf)
            for name in _scalars(leaf):
                found.setdefault(ex.key(name), ex.Tensor(name, span=leaf.span))
    return found


def _scalars(leaf: ex.Named) -> tuple[str, ...]:
    """The names in the computed positions of a tensor."""
    found: list[int | str] = []
    for index in leaf.indices:
        if isinstance(index, ex.Affine):
            found += [factor for factor, _ in index.terms] + [index.offset]
    return tuple(name for name in found if isinstance(name, str))


def collect(
    required: Mapping[str, ex.Named],
    allowed: Iterable[str],
    mapping: Mapping[str, Any] | None,
    arrays: Mapping[str, Any],
    source: str | None,
    convert: Callable[[Any], Any],
) -> dict[str, Any]:
    """Return the given arrays by their Python names: none missing, none that the equation lacks."""
    allowed = {*allowed, *required}
    given: dict[str, Any] = {}
    for name, value in [*(mapping or {}).items(), *arrays.items()]:
        found = ex.key(name.replace(" ", ""))
        if found not in allowed:
            expected = ", ".join(sorted(allowed)) or "none"
            raise ex.notation_error(f"unexpected array {name!r}; expected {expected}", source)
        if found in given:
            raise ex.notation_error(f"{found}: given twice", source)
        given[found] = value
    for name, leaf in required.items():
        if name not in given:
            what = f"an array with axes {axes_text(leaf)}" if leaf.indices else "a number"
            raise ex.notation_error(f"{name}: missing; expected {what}", source, leaf.span)
    return {name: _array(name, value, source, convert) for name, value in given.items()}


def _array(name: str, value: Any, source: str | None, convert: Callable[[Any], Any]) -> Any:
    if type(value) in (int, float):
        return value
    try:
        return convert(value)
    except (TypeError, ValueError):
        message = f"{name}: expected an array or a number; got {type(value).__name__}"
        raise ex.notation_error(message, source) from None


def axes_text(leaf: ex.Named, brackets: str = "()") -> str:
    """Name the axes of a tensor: ``(h, b, a)``."""
    return ", ".join(_index_text(index) for index in leaf.indices).join(brackets)


def _index_text(index: ex.Index) -> str:
    """Write an index as an error says it."""
    if isinstance(index, str):
        return index
    terms = [i if factor == 1 else f"{factor} {i}" for factor, i in index.terms]
    return " + ".join(terms + ([] if index.offset == 0 else [str(index.offset)]))


def index_sizes(
    sides: Sequence[ex.Expression],
    shapes: Mapping[str, tuple[int, ...]],
    dims: Mapping[str, Any],
    source: str | None,
) -> dict[str, int]:
    """Return the size of every index of the expressions."""
    names = dict.fromkeys(index for side in sides for index in sorted(ex.all_indices(side)))
    found: dict[str, tuple[int, str]] = {}
    for index in names:
        given = dims.get(index, dims.get(ex.key(index)))
        if given is not None:
            found[index] = (_whole_number(given, f"dims[{index!r}]", source), "as given")
    for leaf in ex.leaves(*sides):
        if isinstance(leaf, ex.Named) and ex.key(leaf.name) in shapes:
            _read(leaf, shapes[ex.key(leaf.name)], found, source)
    _spread(sides, names, found, source)
    for index in names:
        if index not in found:
            message = f"index {index}: no array has it as an axis; expected dims={{{index!r}: ...}}"
            where = (leaf.span for leaf in ex.leaves(*sides) if index in ex.all_indices(leaf))
            raise ex.notation_error(message, source, next(where, None))
    return {index: size for index, (size, _) in found.items()}


def _read(
    leaf: ex.Named, shape: tuple[int, ...], found: dict[str, tuple[int, str]], source: str | None
) -> None:
    """Take the sizes of a tensor's axes, or compare them."""
    name = ex.key(leaf.name)
    if len(shape) != len(leaf.indices):
        expected = f"axes {axes_text(leaf)}, that is rank {len(leaf.indices)}"
        message = f"{name}: expected {expected}; got rank {len(shape)}, shape {shape}"
        raise ex.notation_error(message, source, leaf.span)
    for axis, (index, size) in enumerate(zip(leaf.indices, shape, strict=True)):
        if isinstance(index, str):
            known, why = found.setdefault(index, (size, f"as in axis {axis} of {name}"))
            if known != size:
                message = f"{name}: index {index} (axis {axis}): expected {known}, {why}"
                raise ex.notation_error(f"{message}; got {size}, shape {shape}", source, leaf.span)


def _spread(
    sides: Sequence[ex.Expression],
    names: Iterable[str],
    found: dict[str, tuple[int, str]],
    source: str | None,
) -> None:
    """Give sizes to indices that no array has: by deltas first, then by the letter."""
    pairs = list(_equal(*sides))
    while True:
        for first, second, _ in pairs * len(pairs):
            for one, other in ((first, second), (second, first)):
                if one in found:
                    found.setdefault(other, (found[one][0], f"as for {one}"))
        missing = [index for index in names if index not in found]
        shorter = {
            index: index.rstrip("'") + "'" * count
            for index in missing
            for count in range(index.count("'"))
            if index.rstrip("'") + "'" * count in found
        }
        if not shorter:
            break
        for index, fewer in shorter.items():
            found[index] = (found[fewer][0], f"as for {fewer}")
    for first, second, delta in pairs:
        if first in found and second in found and found[first][0] != found[second][0]:
            (known, why), (size, _) = found[first], found[second]
            message = f"index {second} of the delta: expected {known}, that of {first}, {why}"
            raise ex.notation_error(f"{message}; got {size}", source, delta.span)


def _equal(*nodes: ex.Expression) -> Iterator[tuple[str, str, ex.Expression]]:
    """The pairs of indices of one range: those of a delta, those of a softmax."""
    for node in (n for each in nodes for n in ex.walk(each)):
        if isinstance(node, ex.Delta):
            yield node.first, node.second, node
        elif isinstance(node, ex.Softmax):
            yield node.index, node.bound, node


def _whole_number(value: Any, name: str, source: str | None, span: ex.Span = None) -> int:
    """Return a Python integer; raise ``ValueError`` for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        message = f"{name}: expected a Python integer, known before the arrays are; got {value!r}"
        raise ex.notation_error(message, source, span) from None


def positions(
    leaf: ex.Named,
    axes: Sequence[str],
    sizes: Mapping[str, int],
    scalars: Mapping[str, Any],
    source: str | None,
) -> tuple[np.ndarray, ...]:
    """Return for each axis of a tensor the positions that its indices reach."""
    grid = {
        index: np.arange(sizes[index]).reshape([-1 if other == index else 1 for other in axes])
        for index in axes
    }

    def value(factor: int | str) -> int:
        if isinstance(factor, int):
            return factor
        name = ex.key(factor)
        if name not in scalars:
            raise ex.notation_error(f"{name}: missing; expected an integer", source, leaf.span)
        return _whole_number(scalars[name], name, source, leaf.span)

    found = []
    for index in leaf.indices:
        if isinstance(index, str):
            found.append(grid[index])
        else:
            terms = (value(factor) * grid[own] for factor, own in index.terms)
            found.append(sum(terms, np.zeros([1] * len(axes), int)) + value(index.offset))
    return tuple(found)


def shape_of(
    leaf: ex.Named, sizes: Mapping[str, int], scalars: Mapping[str, Any], source: str | None
) -> tuple[int, ...]:
    """Return the shape of a tensor, for computed positions the least that has them all."""
    return _extent(positions(leaf, ex.free_indices(leaf), sizes, scalars, source))


def _extent(at: tuple[np.ndarray, ...]) -> tuple[int, ...]:
    return tuple(int(axis.max(initial=-1)) + 1 for axis in at)


def inside(
    leaf: ex.Named, at: tuple[np.ndarray, ...], shape: tuple[int, ...], source: str | None
) -> None:
    """Raise ``ValueError`` unless an array of the given shape has all of the positions."""
    for axis, (where, size) in enumerate(zip(at, shape, strict=True)):
        low, high = int(where.min(initial=0)), int(where.max(initial=-1))
        if low < 0 or high >= size:
            message = f"{ex.key(leaf.name)}: axis {axis}: expected positions {low} to {high}"
            raise ex.notation_error(f"{message}; got size {size}", source, leaf.span)


def all_once(leaf: ex.Named, at: tuple[np.ndarray, ...], source: str | None) -> tuple[int, ...]:
    """Return the shape of an array in which the positions are all, each once."""
    shape = _extent(at)
    inside(leaf, at, shape, source)
    flat = np.ravel_multi_index(np.broadcast_arrays(*at), shape)
    distinct = len(np.unique(flat))
    if not flat.size == distinct == prod(shape):
        message = f"{ex.key(leaf.name)}: expected indices that reach each element once"
        got = f"{flat.size} positions, {distinct} of them distinct, for {prod(shape)} elements"
        raise ex.notation_error(f"{message}; got {got}", source, leaf.span)
    return shape


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

    def __init__(
        self, arrays: Mapping[str, Any], sizes: Mapping[str, int], source: str | None
    ) -> None:
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

    def __call__(self, node: ex.Expression, axes: Sequence[str]) -> jax.Array:
        """Return the value of an expression with its axes in the given order."""
        if isinstance(node, ex.Add):
            value = self.add(node.terms, tuple(axes))
        else:
            value = self.contraction(node, tuple(axes))
        array = value.array
        fits = hasattr(array, "dtype") and (array.dtype == self.dtype or not self.floating)
        return array if fits else jnp.asarray(array, self.dtype)

    def assign(self, leaf: ex.Named, axes: Sequence[str], array: jax.Array) -> jax.Array:
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

    def longest_first(self, axes: Sequence[str]) -> tuple[str, ...]:
        """Return axes by their sizes, in which order sums of products are right everywhere.

        On a CPU, jaxlib 0.10 compiles some of them wrong where tens of thousands of columns stand
        behind a few rows: https://github.com/jax-ml/jax/issues/39103.
        """
        return tuple(sorted(axes, key=lambda index: -self.sizes[index]))

    def value(self, node: ex.Expression) -> Value:
        """Return the value of an expression, in whatever order of its free indices."""
        match node:
            case ex.Tensor() | ex.Derivative():
                return self.leaf(node)
            case ex.Delta(first, second):
                if first == second:
                    return Value(jnp.ones(self.sizes[first], self.dtype), (first,))
                return Value(jnp.eye(self.sizes[first], dtype=self.dtype), (first, second))
            case ex.Add(terms):
                return self.add(terms, self.longest_first(ex.free_indices(node)))
            case ex.Quotient(numerator, denominator) if ex.free_indices(denominator):
                return self.elementwise(jnp.divide, node, numerator, denominator)
            case ex.Quotient(ex.Number(value), denominator):
                below = self.contraction(denominator)
                return Value(jnp.divide(_number(value), below.array), ())
            case ex.Power(base, exponent):
                return self.elementwise(lambda x: _power(x, exponent), node, base)
            case ex.Function(name, argument):
                return self.elementwise(_FUNCTIONS[name], node, argument)
            case ex.Softmax(argument, index):
                inner = self.contraction(argument)
                self.count(inner.axes, 5)
                axis = inner.axes.index(index)
                return Value(jax.nn.softmax(inner.array, axis=axis), inner.axes)
        return self.contraction(node)

    def leaf(self, leaf: ex.Named) -> Value:
        """Return a named array: a diagonal where an index stands twice, a gather if computed."""
        array = self.arrays[ex.key(leaf.name)]
        axes = ex.free_indices(leaf)
        if not ex.is_plain(leaf):
            at = positions(leaf, axes, self.sizes, self.given, self.source)
            inside(leaf, at, array.shape, self.source)
            return Value(array[at], axes)
        if len(axes) < len(leaf.indices):
            return Value(jnp.einsum(subscripts([own_indices(leaf)], axes), array), axes)
        return Value(array, axes)

    def elementwise(
        self, function: Callable[..., Any], node: ex.Expression, *arguments: ex.Expression
    ) -> Value:
        """Apply a function to each element of its arguments."""
        axes = self.longest_first(ex.free_indices(node))
        values = [self.contraction(argument) for argument in arguments]
        self.count(axes)
        return Value(function(*(self.align(value, axes) for value in values)), axes)

    def add(self, terms: Sequence[ex.Expression], axes: tuple[str, ...]) -> Value:
        """Add terms and subtract those with the factor -1."""
        total: Any = None
        for term in terms:
            minus, rest = signed(term)
            own = set(ex.free_indices(rest))
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

    def contraction(self, node: ex.Expression, axes: tuple[str, ...] | None = None) -> Value:
        """Compute products and sums; the axes in the given order, where some order is given."""
        parts = Contraction(node, self.sizes)
        for new, old in parts.renamed.items():
            self.sizes[new] = self.sizes[old]
        output = self.longest_first(parts.output) if axes is None else axes
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
        numbers = [_number(number), *scalars] if number != 1 else scalars
        scale = reduce(operator.mul, numbers) if numbers else None
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
        self.count((*step.result, *step.summed), 2 if step.summed and len(taken) == 2 else 1)
        if not step.summed:
            return Value(operator.mul(*(self.align(v, step.result) for v in taken)), step.result)
        text = subscripts([value.axes for value in taken], step.result)
        return Value(jnp.einsum(text, *(value.array for value in taken)), step.result)


def _number(value: Fraction) -> int | float:
    if value.denominator == 1 and abs(value) < 2**31:
        return int(value)
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


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
