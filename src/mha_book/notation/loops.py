r"""From an equation to loops: Python that computes every element by itself.

The source has one ``for`` for each index and nothing of NumPy but the array that it fills: what
an equation says, spelled out. It is slow, and what everything faster is compared with.
"""

from collections.abc import Mapping, Sequence

import mha_book.notation.expression as ex
from mha_book.notation.evaluate import operands, signed
from mha_book.notation.expression import all_indices, fresh, key, rename

__all__: list[str] = []

_SUM, _TERM, _FACTOR, _POWER, _ATOM = range(1, 6)  # how tightly a piece of Python binds


def loops(
    side: ex.Expression, left: ex.Named | None, free: Sequence[str], title: str
) -> tuple[str, dict[str, str]]:
    """Write a function that computes one side of an equation."""
    leaves = operands([side])
    target = left if left is not None else ex.Tensor("result", tuple(free))
    scalars = [name for name in operands([target]) if name != key(target.name)]
    arguments = list(dict.fromkeys([*leaves, *scalars]))
    function = f"compute_{key(target.name)}"
    writer = _Writer([side, target], [*arguments, function])
    result = writer.free(key(target.name))
    if target.indices:
        shape = ", ".join(writer.extent(index) for index in target.indices)
        writer.write(f"{result} = np.zeros(({shape}{',' * (len(target.indices) == 1)}))")
        for index in free:
            writer.loop(index)
        text, _ = writer.expression(side, frozenset(free))
        at = ", ".join(writer.position(index) for index in target.indices)
        writer.write(f"{result}[{at}] = {text}")
        writer.depth = 1
        writer.write(f"return {result}")
    else:
        text, _ = writer.expression(side, frozenset())
        writer.write(f"return {text}")
    lines, missing = writer.measure(leaves)
    extra = {index: writer.sizes[index] for index in missing}
    head = f"def {function}({', '.join([*arguments, *extra.values()])}):"
    told = [f"# {line}" for line in title.splitlines()]
    return "\n".join([*told, head, *lines, *writer.lines, ""]), extra


def _name_of(value: int | str) -> str:
    """Write a number, or the Python name of one."""
    return key(value) if isinstance(value, str) else str(value)


class _Writer:
    """Writes the statements of one function."""

    def __init__(self, sides: Sequence[ex.Expression], taken: Sequence[str]) -> None:
        self.lines: list[str] = []
        self.depth = 1
        self.taken = {*taken, "np", "math", "range"}
        self.measured: set[str] = set()
        self.indices: dict[str, str] = {}
        self.sizes: dict[str, str] = {}
        self.everywhere = all_indices(*sides)
        for index in sorted(self.everywhere):
            self.index(index)
            self.sizes[index] = self.free(f"size_{key(index)}")

    def index(self, index: str) -> str:
        """Return the loop variable of an index: its name, where no array has it."""
        if index not in self.indices:
            self.indices[index] = self.free(key(index))
        return self.indices[index]

    def size(self, index: str) -> str:
        """Return the variable that is the size of an index."""
        while index not in self.sizes:
            index = index.removesuffix("'")  # a sum inside got a new name
        self.measured.add(index)
        return self.sizes[index]

    def free(self, name: str) -> str:
        """Return the name, with a number behind it if it is taken."""
        new, number = name, 1
        while new in self.taken:
            number += 1
            new = f"{name}_{number}"
        self.taken.add(new)
        return new

    def write(self, line: str) -> None:
        """Add a line."""
        self.lines.append("    " * self.depth + line)

    def loop(self, index: str, size_of: str | None = None) -> None:
        """Open a loop over an index."""
        self.write(f"for {self.index(index)} in range({self.size(size_of or index)}):")
        self.depth += 1

    def position(self, index: ex.Index) -> str:
        """Write an index as a subscript."""
        if isinstance(index, str):
            return self.index(index)
        terms = [
            self.index(i) if factor == 1 else f"{_name_of(factor)} * {self.index(i)}"
            for factor, i in index.terms
        ]
        return " + ".join(terms + ([] if index.offset == 0 else [_name_of(index.offset)]))

    def extent(self, index: ex.Index) -> str:
        """Write the size of an axis of the result; of a computed position the least it needs."""
        if isinstance(index, str):
            return self.size(index)
        offset = [] if index.offset == 0 else [_name_of(index.offset)]
        terms = [f"{_name_of(k)} * ({self.size(i)} - 1)" for k, i in index.terms if k != 1]
        last = [self.size(i) for k, i in index.terms if k == 1]
        ones = [str(1 - len(last))] if len(last) != 1 else []
        return " + ".join([*terms, *last, *ones, *offset])

    def measure(self, leaves: Mapping[str, ex.Named]) -> tuple[list[str], list[str]]:
        """Write where the sizes of loops come from; return that, and the indices no array has."""
        missing = [index for index in self.sizes if index in self.measured]
        lines = []
        for name, leaf in leaves.items():
            found = [index for index in missing if index in leaf.indices]
            if found:
                names = [self.sizes[str(i)] if i in found else "_" for i in leaf.indices]
                lines.append(f"    {', '.join(names)}{',' * (len(names) == 1)} = {name}.shape")
                missing = [index for index in missing if index not in found]
        return lines, missing

    def leaf(self, leaf: ex.Named) -> str:
        """Write a named array at the current indices."""
        name = key(leaf.name)
        if not leaf.indices:
            return name
        return f"{name}[{', '.join(self.position(index) for index in leaf.indices)}]"

    def expression(self, node: ex.Expression, scope: frozenset[str]) -> tuple[str, int]:
        """Write what an expression needs before it; return it, and how tightly it binds."""
        match node:
            case ex.Number(value):
                whole = value.denominator == 1
                return str(value).replace("/", " / "), _ATOM if whole and value >= 0 else _TERM
            case ex.Tensor() | ex.Derivative():
                return self.leaf(node), _ATOM
            case ex.Delta(first, second):
                return f"(1.0 if {self.index(first)} == {self.index(second)} else 0.0)", _ATOM
            case ex.Product(factors):
                minus, rest = signed(node)
                if minus:
                    return f"-{self.operand(rest, _TERM, scope)}", _TERM
                return " * ".join(self.operand(factor, _FACTOR, scope) for factor in factors), _TERM
            case ex.Add(terms):
                text = ""
                for term in terms:
                    minus, rest = signed(term)
                    sign = ("-" if minus else "") if not text else (" - " if minus else " + ")
                    text += sign + self.operand(rest, _TERM, scope)
                return text, _SUM
            case ex.Quotient(numerator, denominator):
                above = self.operand(numerator, _TERM, scope)
                return f"{above} / {self.operand(denominator, _FACTOR, scope)}", _TERM
            case ex.Power(base, exponent):
                power = str(exponent) if exponent.denominator == 1 else str(float(exponent))
                written = self.operand(base, _ATOM, scope)
                if not all_indices(base) and exponent.denominator != 1:
                    return f"math.pow({written}, {power})", _ATOM  # Python's root may be complex
                is_small = isinstance(base, ex.Number | ex.Named) and abs(exponent) < 10
                if not is_small and not all_indices(base):
                    written = f"float({written})"  # Python's integers grow without end
                return f"{written} ** {power}", _POWER
            case ex.Function(name, argument):
                return f"math.{name}({self.operand(argument, 0, scope)})", _ATOM
            case ex.Softmax(argument, index, bound):
                return self.softmax(argument, index, bound, scope)
            case ex.Sum(indices, body):
                return self.sum(indices, body, scope, {}), _ATOM
        raise AssertionError(node)

    def operand(self, child: ex.Expression, binds: int, scope: frozenset[str]) -> str:
        """Write an expression, in brackets where it binds less tightly than it has to."""
        text, own = self.expression(child, scope)
        return text if own >= binds else f"({text})"

    def softmax(
        self, argument: ex.Expression, index: str, bound: str, scope: frozenset[str]
    ) -> tuple[str, int]:
        """Write the quotient that a softmax stands for."""
        below = ex.Function("exp", rename(argument, {index: bound}))
        total = self.sum((bound,), below, scope, {bound: index})
        above, _ = self.expression(ex.Function("exp", argument), scope)
        return f"{above} / {total}", _TERM

    def sum(
        self,
        indices: Sequence[str],
        body: ex.Expression,
        scope: frozenset[str],
        size_of: Mapping[str, str],
    ) -> str:
        """Write the loops of a sum; return the name of its total."""
        names = {i: fresh(i, scope | self.everywhere) for i in indices if i in scope}
        self.everywhere |= {*names.values()}
        total = self.free("total")
        depth = self.depth
        self.write(f"{total} = 0.0")
        for index in indices:
            self.loop(names.get(index, index), size_of.get(index, index))
        inner = scope | {names.get(index, index) for index in indices}
        text, _ = self.expression(rename(body, names), inner)
        self.write(f"{total} += {text}")
        self.depth = depth
        return total
