r"""Systems: the equations of a layer, run in order, and their backward pass as another system."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax

from mha_book.notation.backward import derive
from mha_book.notation.dependencies import name_of
from mha_book.notation.equation import parse_equations
from mha_book.notation.expression import key
from mha_book.notation.program import WIDTH_OF_HEADS, Program

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["System"]


class System(Program):
    r"""Equations of which each defines a tensor, from inputs and from one another.

    A letter has one size in the whole system. The equations may stand in any order.

    Attributes:
        equations: in an order in which each can run.
        inputs: the Python names of the tensors that no equation defines.
        names: the Python names of those that the equations define, in their order.
        outputs: those among them that no equation uses.
        scalars: named scalars that are sizes: the Python name of the scalar and the index.
        loss: the name of the loss in the derivatives.

    Example:
        >>> import jax.numpy as jnp
        >>> system = System.parse(r"y^j = W^{ij} x^i \\ z^j = \tanh(y^j)")
        >>> system.inputs, system.names, system.outputs
        (('W', 'x'), ('y', 'z'), ('z',))
        >>> system(W=jnp.ones((2, 3)), x=jnp.zeros(2))["z"].tolist()
        [0.0, 0.0, 0.0]
        >>> [equation.latex for equation in system.backward().equations][-1]
        '\\frac{\\partial L}{\\partial x^i} = W^{ij} \\frac{\\partial L}{\\partial y^j}'
    """

    @classmethod
    def parse(
        cls,
        latex: str,
        *,
        broadcast: Sequence[str] = (),
        scalars: Mapping[str, str] = WIDTH_OF_HEADS,
        loss: str = "L",
    ) -> "System":
        r"""Read the equations of one piece of LaTeX, one to a row or with commas between.

        Args:
            latex: the equations.
            broadcast: indices that a term may lack in any of them, such as those of a bias.
            scalars: see the class.
            loss: see the class.

        Raises:
            ValueError: an equation cannot be read, or they make no system.
        """
        found = parse_equations(latex, broadcast=broadcast)
        return cls(found, scalars=scalars, loss=loss)

    def backward(self, output: str | None = None, *, wrt: Sequence[str] | None = None) -> "System":
        r"""Derive the backward pass.

        Args:
            output: the tensor whose derivative is given; None where the system has one output.
            wrt: the inputs whose derivatives are wanted; None for all on which the output depends.

        Returns:
            A system whose inputs are the derivative by the output, the inputs, and the tensors of
            this system that the derivatives need. It defines one derivative for each input, and
            for each tensor between.

        Raises:
            ValueError: there is no such output or input, or the one does not depend on the other.
        """
        end = self._output(output)
        reached = {name for equation in self.needed((end,)) for name in equation.operands}
        inputs = [name for name in self.inputs if name in reached] if wrt is None else wrt
        if unknown := [name for name in inputs if key(name) not in self.inputs]:
            raise ValueError(f"wrt: expected some of {', '.join(self.inputs)}, got {unknown}")
        found = derive(self.equations, end, [key(name) for name in inputs], self.loss)
        return System(found, scalars=self.scalars, loss=self.loss)

    def _output(self, output: str | None) -> str:
        if output is None and len(self.outputs) != 1:
            raise ValueError(f"output: expected one of {', '.join(self.names)}, got None")
        end = self.outputs[0] if output is None else key(output)
        if end not in self.names:
            raise ValueError(f"output: expected one of {', '.join(self.names)}, got {output!r}")
        return end

    def vjp(
        self,
        mapping: Mapping[str, Any] | None = None,
        /,
        *,
        output: str | None = None,
        wrt: Sequence[str] | None = None,
        dims: Mapping[str, int] | None = None,
        **arrays: Any,
    ) -> tuple[jax.Array, Callable[[Any], dict[str, jax.Array]]]:
        """Run the system forwards; return the output and what runs the derived backward pass.

        Args:
            mapping: as in a call.
            output: as in :meth:`backward`.
            wrt: as in :meth:`backward`.
            dims: as in a call.
            **arrays: as in a call.

        Returns:
            The output, and a function from its cotangent to the gradients of the inputs by name.
        """
        end = self._output(output)
        backward = self.backward(end, wrt=wrt)
        path = self.needed((end,))
        values: dict[str, Any] = {**self._given(mapping, arrays, path)}
        values |= self(values, outputs=[name_of(equation) for equation in path], dims=dims)
        sizes = self._sizes(values, dims).known

        def pull(cotangent: Any) -> dict[str, jax.Array]:
            known = (*backward.inputs, *backward.scalars)
            given = {name: values[name] for name in known if name in values}
            given[key(f"d{self.loss}/d{end}")] = cotangent
            ends = {n: key(f"d{self.loss}/d{n}") for n in self.inputs}
            found = backward(
                given, outputs=[e for e in ends.values() if e in backward.names], dims=sizes
            )
            return {name: found[end] for name, end in ends.items() if end in found}

        return values[end], pull

    def gradients(
        self, cotangent: Any, mapping: Mapping[str, Any] | None = None, /, **arrays: Any
    ) -> dict[str, jax.Array]:
        """Return the gradients of all inputs by name: :meth:`vjp` with the cotangent applied."""
        return self.vjp(mapping, **arrays)[1](cotangent)

    def diagram(self) -> "Figure":
        """Draw the tensor networks of all equations as one."""
        from mha_book.notation.diagram import draw

        return draw(self.equations)
