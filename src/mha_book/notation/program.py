"""Equations that run one after another: what a system computes, needs and costs."""

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import jax

from mha_book.notation.dependencies import Sizes, in_order, name_of, within
from mha_book.notation.equation import Equation
from mha_book.notation.expression import Derivative, Tensor, all_indices, key

__all__ = ["WIDTH_OF_HEADS", "Program"]

WIDTH_OF_HEADS = {"d_k": "a"}
"""The named scalars that are sizes, unless others are given: ``d_k`` is the size of ``a``."""


class Program:
    """Equations in an order in which each can run.

    A :class:`~mha_book.notation.system.System` can be differentiated as well.

    Attributes:
        equations: in that order.
        inputs: the Python names of the tensors that no equation defines.
        names: the Python names of those that the equations define, in their order.
        outputs: those among them that no equation uses.
        scalars: named scalars that are sizes: the Python name of the scalar and the index.
        loss: the name of the loss in the derivatives.
    """

    def __init__(
        self,
        equations: Iterable[Equation | str],
        *,
        scalars: Mapping[str, str] = WIDTH_OF_HEADS,
        loss: str = "L",
    ) -> None:
        """Put the equations in order.

        Args:
            equations: each with a tensor or a derivative on its left.
            scalars: named scalars that are the size of an index, where both occur: they need not
                be given. By default ``d_k`` is the size of ``a``.
            loss: the name of the loss in the derivatives.

        Raises:
            ValueError: an equation defines no tensor, two define the same, a tensor has two
                numbers of axes, or the equations use one another in a circle.
        """
        given = [Equation(e) if isinstance(e, str) else e for e in equations]
        if not given:
            raise ValueError("equations: expected at least one, got none")
        self.equations = in_order(given)
        defined = dict.fromkeys(name_of(equation) for equation in self.equations)
        self.names = tuple(defined)
        used = dict.fromkeys(name for equation in self.equations for name in equation.operands)
        letters = set().union(*(all_indices(side) for e in self.equations for side in e.sides))
        self.scalars = {
            key(name): index
            for name, index in scalars.items()
            if key(name) in used and key(name) not in defined and index in letters
        }
        self.inputs = tuple(n for n in used if n not in defined and n not in self.scalars)
        self.outputs = tuple(name for name in self.names if name not in used)
        self.loss = loss

    def __call__(
        self,
        mapping: Mapping[str, Any] | None = None,
        /,
        *,
        outputs: Sequence[str] | None = None,
        dims: Mapping[str, int] | None = None,
        **arrays: Any,
    ) -> dict[str, jax.Array]:
        """Run the equations.

        Args:
            mapping: arrays by their names, in LaTeX or as Python names.
            outputs: which tensors to return; None for all. Equations that none of them needs do
                not run, and their inputs need not be given.
            dims: sizes of indices that no array has.
            **arrays: arrays by their Python names.

        Returns:
            The tensors by their Python names.

        Raises:
            ValueError: an array is missing or is no input; an index has two sizes.
        """
        wanted = self.names if outputs is None else tuple(key(name) for name in outputs)
        needed = self.needed(wanted)
        values = self._given(mapping, arrays, needed)
        sizes = self._sizes(values, dims)
        for equation in needed:
            names = equation.operands
            own = {name: values[name] for name in names if name in values}
            own |= {name: sizes.of(self.scalars[name], name) for name in names if name not in own}
            result = equation(own, dims=within(equation, sizes.known))
            values[name_of(equation)] = result
            assert isinstance(equation.left, Tensor | Derivative)
            sizes.read(equation.left, result)
        return {name: values[name] for name in wanted}

    def _sizes(self, values: Mapping[str, Any], dims: Mapping[str, int] | None) -> Sizes:
        """Read the sizes of indices off the arrays that there are."""
        sizes = Sizes(dims)
        for equation in self.equations:
            for name, leaf in equation.operands.items():
                if name in values:
                    sizes.read(leaf, values[name])
        return sizes

    def needed(self, outputs: Sequence[str]) -> tuple[Equation, ...]:
        """Return the equations that the tensors with these names need, in order."""
        names = set(outputs)
        if unknown := sorted(names - {*self.names}):
            raise ValueError(f"outputs: expected some of {', '.join(self.names)}, got {unknown}")
        found = []
        for equation in reversed(self.equations):
            if name_of(equation) in names:
                names |= equation.operands.keys()
                found.append(equation)
        return tuple(reversed(found))

    def _given(
        self,
        mapping: Mapping[str, Any] | None,
        arrays: Mapping[str, Any],
        needed: Sequence[Equation],
    ) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, value in [*(mapping or {}).items(), *arrays.items()]:
            if key(name) in self.names:
                raise ValueError(f"{name}: expected inputs alone, got a tensor that is computed")
            if key(name) not in self.inputs and key(name) not in self.scalars:
                raise ValueError(f"{name}: expected one of {', '.join(self.inputs)}")
            values[key(name)] = value
        for equation in needed:
            for name, leaf in equation.operands.items():
                if name in self.inputs and name not in values:
                    axes = ", ".join(map(str, leaf.indices))
                    raise ValueError(f"{name}: missing, expected an array with axes ({axes})")
        return values

    def parameters(self, names: Sequence[str], **dims: int) -> dict[str, int]:
        """Count the numbers in tensors.

        Args:
            names: of tensors of the system.
            **dims: the size of each of their indices.

        Example:
            >>> Program(["y^d = W^{bd} x^b"]).parameters(["W"], b=3, d=5)
            {'W': 15}
        """
        leaves: dict[str, Tensor | Derivative] = {}
        for equation in self.equations:
            assert isinstance(equation.left, Tensor | Derivative)
            for name, leaf in {name_of(equation): equation.left, **equation.operands}.items():
                leaves.setdefault(name, leaf)
        found = {}
        for name in map(key, names):
            if name not in leaves:
                raise ValueError(f"names: expected some of {', '.join(leaves)}, got {name!r}")
            axes = leaves[name].indices
            if missing := [i for i in axes if not isinstance(i, str) or i not in dims]:
                raise ValueError(f"{name}: expected the size of each index, got none of {missing}")
            found[name] = prod(dims[i] for i in axes if isinstance(i, str))
        return found

    def flops(self, **dims: int) -> dict[str, int]:
        """Count the operations of each equation, by the name of what it defines.

        Args:
            **dims: the size of each index.

        Returns:
            What :meth:`~mha_book.notation.equation.Equation.flops` counts.

        Example:
            >>> Program(["y^d = W^{bd} x^b", "z^d = y^d y^d"]).flops(b=3, d=5)
            {'y': 30, 'z': 5}
        """
        return {
            name_of(equation): equation.flops(**within(equation, dims))
            for equation in self.equations
        }

    @property
    def latex(self) -> str:
        """The equations in order, one to a row."""
        return " \\\\\n".join(equation.latex for equation in self.equations)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.inputs)} -> {', '.join(self.names)})"

    def _repr_markdown_(self) -> str:
        rows = (equation.latex.replace("=", "&=", 1) for equation in self.equations)
        body = " \\\\[1ex]\n".join(rows)
        inputs = ", ".join(f"`{name}`" for name in self.inputs)
        return f"$$\n\\begin{{aligned}}\n{body}\n\\end{{aligned}}\n$$\n\nfrom {inputs}"
