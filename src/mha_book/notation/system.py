r"""Systems: the equations of a layer, run in order, and their backward pass as another system.

Backwards through the equations, each operand receives a contribution from every equation that
uses it; :math:`\partial L / \partial X` is the sum of them all.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

import mha_book.notation.expression as ex
from mha_book._checks import check, check_flag, check_rank
from mha_book.notation.derivative import gradient, lacking, simplify, spread
from mha_book.notation.equation import Equation, parse_equations
from mha_book.notation.evaluate import collect, index_sizes
from mha_book.notation.expression import all_indices, free_indices, is_plain, key, rename

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "System",
    "cached_elements",
    "decode_flops",
    "layer_arrays",
    "multi_head_layer",
    "replace_equations",
]

_WIDTH_OF_HEADS = {"d_k": "a"}
"""The named scalars that are sizes, unless others are given: ``d_k`` is the size of ``a``."""


def _name_of(equation: Equation) -> str:
    """Return the Python name of what an equation defines."""
    if not isinstance(equation.left, ex.Named):
        raise ValueError(f"expected a tensor on the left side, got {equation.latex}")
    return key(equation.left.name)


def _in_order(equations: Sequence[Equation]) -> dict[str, Equation]:
    """Return the equations by what they define, each behind those that it uses."""
    defined: dict[str, Equation] = {}
    axes: dict[str, tuple[int, str]] = {}
    for equation in equations:
        name = _name_of(equation)
        if name in defined:
            raise ValueError(
                f"{name}: expected one equation that defines it, got two: "
                f"{defined[name].latex} and {equation.latex}"
            )
        defined[name] = equation
        for leaf in (equation.left, *equation.operands.values()):
            assert isinstance(leaf, ex.Named)
            rank, place = axes.setdefault(key(leaf.name), (len(leaf.indices), equation.latex))
            if rank != len(leaf.indices):
                raise ValueError(
                    f"{leaf.name}: expected {rank} indices as in {place}, "
                    f"got {len(leaf.indices)} in {equation.latex}"
                )
    found: dict[str, Equation] = {}

    def put(name: str, above: tuple[str, ...] = ()) -> None:
        if name in above:
            circle = " uses ".join((*above[above.index(name) :], name))
            raise ValueError(
                f"expected equations that can be run one after another, got a circle: {circle}"
            )
        if name in defined and name not in found:
            for used in defined[name].operands:
                put(used, (*above, name))
            found[name] = defined[name]

    for name in defined:
        put(name)
    return found


def _within(equation: Equation, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes of those indices that the equation has, j' as for j."""
    own = all_indices(*equation.sides)
    found = {index: sizes.get(index, sizes.get(index.rstrip("'"))) for index in own}
    return {index: size for index, size in found.items() if size is not None}


class System:
    r"""Equations of which each defines a tensor, from inputs and from one another.

    A letter has one size in the whole system. The equations may stand in any order.

    Attributes:
        equations: in an order in which each can run.
        inputs: the Python names of the tensors that no equation defines.
        names: the Python names of those that the equations define, in their order.
        outputs: those among them that no equation uses.
        scalars: named scalars that are sizes: the Python name of the scalar and the index.

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

    def __init__(
        self, equations: Iterable[Equation | str], *, scalars: Mapping[str, str] = _WIDTH_OF_HEADS
    ) -> None:
        """Put the equations in order.

        Args:
            equations: each with a tensor or a derivative on its left.
            scalars: named scalars that are the size of an index, where both occur: they need not
                be given. By default ``d_k`` is the size of ``a``.

        Raises:
            ValueError: an equation defines no tensor, two define the same, a tensor has two
                numbers of axes, or the equations use one another in a circle.
        """
        given = [Equation(e) if isinstance(e, str) else e for e in equations]
        if not given:
            raise ValueError("equations: expected at least one, got none")
        defined = _in_order(given)
        self.equations: tuple[Equation, ...] = tuple(defined.values())
        self.names: tuple[str, ...] = tuple(defined)
        used = dict.fromkeys(name for equation in self.equations for name in equation.operands)
        letters = all_indices(*(side for e in self.equations for side in e.sides))
        self.scalars: dict[str, str] = {
            key(name): index
            for name, index in scalars.items()
            if key(name) in used and key(name) not in defined and index in letters
        }
        taken = {*defined, *self.scalars}
        self.inputs: tuple[str, ...] = tuple(name for name in used if name not in taken)
        self.outputs: tuple[str, ...] = tuple(name for name in self.names if name not in used)

    @classmethod
    def parse(
        cls,
        latex: str,
        *,
        broadcast: Sequence[str] = (),
        scalars: Mapping[str, str] = _WIDTH_OF_HEADS,
    ) -> "System":
        """Read the equations as :func:`~mha_book.notation.equation.parse_equations` does."""
        return cls(parse_equations(latex, broadcast=broadcast), scalars=scalars)

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
        """
        wanted = self.names if outputs is None else tuple(key(name) for name in outputs)
        needed = self.needed(wanted)
        values, sizes = self._read(needed, mapping, dims, arrays)
        for equation in needed:
            own = {name: values[name] for name in equation.operands}
            values[_name_of(equation)] = equation(own, dims=_within(equation, sizes))
        return {name: values[name] for name in wanted}

    def _read(
        self,
        needed: Sequence[Equation],
        mapping: Mapping[str, Any] | None,
        dims: Mapping[str, int] | None,
        arrays: Mapping[str, Any],
    ) -> tuple[dict[str, Any], dict[str, int]]:
        """Return the arrays and scalars that some equations need, and the size of each index."""
        leaves = {name: leaf for e in needed for name, leaf in e.operands.items()}
        required = {name: leaf for name, leaf in leaves.items() if name in self.inputs}
        values = collect(
            required, [*self.inputs, *self.scalars], mapping, arrays, None, jnp.asarray
        )
        shapes = {name: np.shape(array) for name, array in values.items()}
        sides = [side for equation in needed for side in equation.sides]
        sizes = index_sizes(sides, shapes, dims or {}, None)
        for name, index in self.scalars.items():
            if name in leaves and name not in values:
                if index not in (known := {**(dims or {}), **sizes}):
                    message = f"{name}: expected its value, or an array that has the index {index}"
                    raise ValueError(message)
                values[name] = known[index]
        return values, sizes

    def needed(self, outputs: Sequence[str]) -> tuple[Equation, ...]:
        """Return the equations that the tensors with these names need, in order."""
        names = set(outputs)
        if unknown := sorted(names - {*self.names}):
            raise ValueError(f"outputs: expected some of {', '.join(self.names)}, got {unknown}")
        found = []
        for equation in reversed(self.equations):
            if _name_of(equation) in names:
                names |= equation.operands.keys()
                found.append(equation)
        return tuple(reversed(found))

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
        found = _derive(self.needed((end,)), end, [key(name) for name in inputs])
        return System(found, scalars=self.scalars)

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

        The arguments are those of a call and of :meth:`backward`.

        Returns:
            The output, and a function from its cotangent to the gradients of the inputs by name.
        """
        end = self._output(output)
        backward = self.backward(end, wrt=wrt)
        path = self.needed((end,))
        values, sizes = self._read(path, mapping, dims, arrays)
        values |= self(values, outputs=[_name_of(equation) for equation in path], dims=dims)

        def pull(cotangent: Any) -> dict[str, jax.Array]:
            known = (*backward.inputs, *backward.scalars)
            given = {name: values[name] for name in known if name in values}
            given[key(f"dL/d{end}")] = cotangent
            ends = {n: key(f"dL/d{n}") for n in self.inputs}
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

    def parameters(self, names: Sequence[str], **dims: int) -> dict[str, int]:
        """Count the numbers in tensors.

        Args:
            names: of tensors of the system.
            **dims: the size of each of their indices.

        Example:
            >>> System(["y^d = W^{bd} x^b"]).parameters(["W"], b=3, d=5)
            {'W': 15}
        """
        leaves: dict[str, ex.Named] = {}
        for equation in self.equations:
            assert isinstance(equation.left, ex.Named)
            for name, leaf in {_name_of(equation): equation.left, **equation.operands}.items():
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

        The sizes of the indices are given by name, and what is counted is what
        :meth:`~mha_book.notation.equation.Equation.flops` counts.

        Example:
            >>> System(["y^d = W^{bd} x^b", "z^d = y^d y^d"]).flops(b=3, d=5)
            {'y': 30, 'z': 5}
        """
        return {
            _name_of(equation): equation.flops(**_within(equation, dims))
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

    def diagram(self) -> "Figure":
        """Draw the tensor networks of all equations as one."""
        from mha_book.notation.diagram import draw

        return draw(self.equations)


# The backward pass.


def _derive(equations: Sequence[Equation], output: str, wrt: Collection[str]) -> list[Equation]:
    """Return the equations of the derivatives of a loss, in the order in which they can run.

    There is one for each input in ``wrt``, and for each tensor between them and the output, by
    which the derivative of the loss is given.
    """
    reached, path = set(wrt), []
    for equation in equations:
        if reached & equation.operands.keys():
            reached.add(_name_of(equation))
            path.append(equation)
    defined = {_name_of(equation): equation.left for equation in path}
    wanted = {*wrt, *defined}
    parts: dict[str, list[tuple[ex.Derivative, ex.Expression]]] = {}
    users = {name: [e for e in path if name in e.operands] for name in wanted}
    idle = [name for name in wrt if not users[name]]
    if idle:
        raise ValueError(f"{', '.join(idle)}: expected names on which {output} depends")
    found = []
    for equation in reversed(path):
        for name in equation.operands:
            if name not in wanted:
                continue
            parts.setdefault(name, []).append(gradient(equation.left, equation.right, name))
            if users[name][0] is equation:  # no equation before this one adds to it
                found.append(_added(parts[name][::-1], defined.get(name)))
    return found


def _added(
    parts: Sequence[tuple[ex.Derivative, ex.Expression]], left: ex.Expression | None
) -> Equation:
    """Add the contributions, with the indices of the tensor's own equation where it has one."""
    derivative = parts[0][0]
    lower = derivative.lower
    if isinstance(left, ex.Tensor) and is_plain(left):
        lower = ex.Tensor(lower.name, left.indices)
    terms = []
    for part, value in parts:
        names = {str(a): str(b) for a, b in zip(part.lower.indices, lower.indices, strict=True)}
        terms.append(rename(value, names))
    whole = ex.Derivative(derivative.upper, lower)
    sides = (whole, spread(whole, simplify(ex.Add(tuple(terms)), free_indices(whole))))
    return Equation.from_sides(sides, broadcast=lacking(*sides))


_LAYER = r"""
Q^{hia} = X^{ib} W_Q^{hba} \\
K^{hja} = X^{jb} W_K^{hba} \\
V^{hjc} = X^{jb} W_V^{hbc} \\
S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} K^{hja} \\
A^{hij} = \frac{\exp(S^{hij})}{\sum_{j'} \exp(S^{hij'})} \\
O^{hic} = A^{hij} V^{hjc} \\
Y^{id} = O^{hic} W_O^{hcd}
"""
_BIASES = {"W_Q^{hba}": "b_Q^{ha}", "W_K^{hba}": "b_K^{ha}", "W_V^{hbc}": "b_V^{hc}",
    "W_O^{hcd}": "b_O^{d}"}  # fmt: skip
_SCORES = "Q^{hia} K^{hja}"


def multi_head_layer(
    *, use_bias: bool = False, grouped: bool = False, additive_mask: bool = False
) -> System:
    r"""Return the layer as a system: Q, K, V, S, A, O, Y from X and the weights.

    Args:
        use_bias: whether the projections have biases.
        grouped: whether key/value heads are shared, without biases.
        additive_mask: whether :math:`M^{ij}` is added to the scores of every head.

    Returns:
        The system, in which ``d_k`` is the size of ``a``.

    Example:
        >>> layer = multi_head_layer()
        >>> layer.inputs
        ('X', 'W_Q', 'W_K', 'W_V', 'W_O')
        >>> weights = ["W_Q", "W_K", "W_V", "W_O"]
        >>> sum(layer.parameters(weights, h=8, a=64, b=512, c=64, d=512).values())
        1048576
    """
    flags = {"use_bias": use_bias, "grouped": grouped, "additive_mask": additive_mask}
    for name, flag in flags.items():
        check_flag(flag, name)
    if grouped and use_bias:
        raise ValueError("grouped, use_bias: expected one of them, got both")
    latex = _LAYER
    for weight, bias in _BIASES.items() if use_bias else ():
        latex = latex.replace(weight, f"{weight} + {bias}")
    if additive_mask:
        latex = latex.replace(_SCORES, f"{_SCORES} + M^{{ij}}")
    if grouped:  # k counts the key/value heads, g the queries of each
        latex = re.sub(
            r"(W_)?([A-Z])\^\{h", lambda m: m[0][:-1] + "kg"[: 2 - (m[2] in "KV")], latex
        )
    broadcast = ("i", "j", "h", "k", "g") if use_bias or additive_mask else ()
    return System.parse(latex, broadcast=broadcast)


def layer_arrays(params: Any, x: Array) -> dict[str, Array]:
    r"""Return the operands of :func:`multi_head_layer` from the package's parameters.

    The package holds :math:`W_Q` as ``(D, N, H)``; the equations have the head first. With fewer
    key/value heads than query heads the operands are those of the grouped layer.

    Args:
        params: separate parameters, a :class:`~mha_book.multihead.parameters.MultiHeadParams`.
        x: ``(T, D)``.

    Returns:
        The arrays by their names in the system.
    """
    is_separate = all(hasattr(params, name) for name in ("w_q", "w_k", "w_v", "w_o"))
    check(is_separate, "params", "a MultiHeadParams", type(params).__name__)
    check_rank(x, "x", "(T, D)", 2)
    heads, kv_heads = params.w_q.shape[1], params.w_k.shape[1]

    def first(w: Array) -> Array:
        return jnp.moveaxis(w, 1, 0)

    arrays = {"X": x, "W_Q": first(params.w_q), "W_K": first(params.w_k), "W_V": first(params.w_v)}
    arrays["W_O"] = params.w_o
    if kv_heads != heads:
        for name in ("W_Q", "W_O"):
            arrays[name] = arrays[name].reshape(kv_heads, -1, *arrays[name].shape[1:])
    biases = {"b_Q": params.b_q, "b_K": params.b_k, "b_V": params.b_v, "b_O": params.b_o}
    return arrays | {name: bias for name, bias in biases.items() if bias is not None}


def replace_equations(
    system: System, latex: str, *, split: tuple[str, str] | None = None
) -> System:
    r"""Return a system with other equations in place of those that define the same tensors.

    Equations that define something new are added, and those that the outputs no longer need are
    left out.

    Args:
        system: the system to begin with.
        latex: the new equations.
        split: an index of the system, and the indices that take its place: ``("h", "kg")`` numbers
            the heads by pairs. The new equations are written with these already.

    Example:
        >>> system = System.parse(r"y^j = W^{ij} x^i \\ z^j = \tanh(y^j)")
        >>> replace_equations(system, r"z^j = \sin(x^j)").inputs
        ('x',)
    """
    found = {}
    for name, equation in zip(system.names, system.equations, strict=True):
        found[name] = equation if split is None else _split(equation, *split)
    for equation in parse_equations(latex):
        found[_name_of(equation)] = equation
    scalars = {**_WIDTH_OF_HEADS, **system.scalars}
    whole = System(found.values(), scalars=scalars)
    return System(whole.needed(system.outputs), scalars=scalars)


def _split(equation: Equation, old: str, new: str) -> Equation:
    """Return the equation with other letters for an index, wherever it stands above a name."""

    def letters(group: re.Match[str]) -> str:
        return re.sub(rf"\\[A-Za-z]+|{old}", lambda m: new if m[0] == old else m[0], group[0])

    latex = re.sub(r"\^\{[^{}]*\}", letters, equation.latex)
    broadcast = [index for own in equation.broadcast for index in (new if own == old else [own])]
    return Equation(latex, broadcast=broadcast)


def cached_elements(system: System, **dims: int) -> dict[str, int]:
    r"""Count the elements that a cache holds for each position, by the names of the tensors.

    A cache holds what is computed of a position alone and read by an equation of the queries: a
    tensor with the index of positions, j, without that of queries, i.

    Args:
        system: the layer.
        **dims: the size of each other index of these tensors.

    Example:
        >>> cached_elements(multi_head_layer(), h=2, a=3, c=5)
        {'K': 6, 'V': 10}
    """
    leaves = {
        name: [str(index).rstrip("'") for index in leaf.indices]
        for equation in system.equations
        if "i" in free_indices(equation.left)
        for name, leaf in equation.operands.items()
        if name in system.names and "j" in leaf.indices and "i" not in leaf.indices
    }
    for name, axes in leaves.items():
        if missing := [index for index in axes if index not in {*dims, "j"}]:
            raise ValueError(f"{name}: expected the size of each index, got none of {missing}")
    sizes = {**dims, "j": 1}
    return {name: prod(sizes[index] for index in axes) for name, axes in leaves.items()}


def decode_flops(system: System, positions: int, **dims: int) -> dict[str, int]:
    r"""Count the operations of one decode step, by the name of what is computed.

    There is one query, of index i. What is made of a position j alone is made for the new one; what
    a query makes of the positions, it makes of all. Counted as :meth:`System.flops` counts.

    Args:
        system: the layer.
        positions: how many positions are attended to.
        **dims: the size of each other index.

    Example:
        >>> decode_flops(multi_head_layer(), 7, h=2, a=3, b=4, c=5, d=4)["O"]
        140
    """
    found = {}
    for name, equation in zip(system.names, system.equations, strict=True):
        count = positions if "i" in free_indices(equation.left) else 1
        found[name] = equation.flops(**_within(equation, {**dims, "i": 1, "j": count}))
    return found
