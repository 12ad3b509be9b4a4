"""Gradients of equations: the notes' form, and the numbers of jax.vjp in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.notation import Equation, run_loops
from mha_book.notation.derivative import gradient, jacobian, lacking
from mha_book.notation.expression import Delta, Tensor, all_indices, key, leaves

pytestmark = pytest.mark.usefixtures("float64")

SIZES = dict(zip("hijabcdk", (2, 3, 5, 7, 11, 13, 17, 19), strict=True)) | {"g": 2, "m": 3}

# The layer: per-head projections, scores, softmax, outputs, combination; grouped; with biases.
LAYER = [
    (r"Q^{hia} = X^{ib} W_Q^{hba}", ""),
    (r"Q^{hia} = X^{ib} W_Q^{hba} + b_Q^{ha}", "i"),
    (r"S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} K^{hja}", ""),
    (r"S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} K^{hja} + M^{ij}", "h"),
    (r"A^{hij} = \frac{\exp(S^{hij})}{\sum_{j'} \exp(S^{hij'})}", ""),
    (r"O^{hic} = A^{hij} V^{hjc}", ""),
    (r"Y^{id} = O^{hic} W_O^{hcd}", ""),
    (r"Y^{id} = O^{hic} W_O^{hcd} + b_O^d", "i"),
    (r"S^{kgij} = \frac{1}{\sqrt{d_k}} Q^{kgia} K^{kja}", ""),
]

# Everything else that the grammar has.
GENERAL = [
    (r"y^i = \exp(x^i) + \log(x^i) z^i", ""),
    (r"y^i = \sqrt{x^i} \tanh(x^i z^i) - \sin(x^i) \cos(z^i)", ""),
    (r"y^i = \frac{x^i + 2}{\left(z^i\right)^2 + 1}", ""),
    (r"y^i = \left(x^i\right)^3 - 2 \left(x^i\right)^{-2} + \left(x^i\right)^{1/2}", ""),
    (r"y^i = x^j x^k B^{ijk}", ""),
    (r"G^{ij} = X^{ki} X^{kj}", ""),
    (r"y = A^{ii}", ""),
    (r"y^i = A^{ij} A^{ji}", ""),
    (r"y^i = \delta^{ij} x^j z^i", ""),
    (r"y^i = x^i \sum_j \exp(X^{ij}) z^j", ""),
    (r"y^i = \tanh\left(\sum_j W^{ij} \tanh\left(\sum_k U^{jk} x^k\right)\right)", ""),
    (r"y^i = \lambda x^i + \lambda^2 z^i", ""),
    (r"y^{ij} = x^i + z^j", "ij"),
    (r"y^i = w^i \sum_j x^j \sum_k x^k z", ""),  # by x: one of two terms lacks the index
    (r"y^i = \frac{\exp(x^i - z^i)}{\sum_{i'} \exp(x^{i'} - z^{i'})} z^i", ""),
    (
        (
            r"O^{hic} = \frac{\exp\left(\sum_a Q^{hia} K^{hja}\right)}"
            r"{\sum_{j'} \exp\left(\sum_a Q^{hia} K^{hj'a}\right)} V^{hjc}"
        ),
        "",
    ),
]

EQUATIONS = pytest.mark.parametrize(
    "latex, broadcast", LAYER + GENERAL, ids=[latex for latex, _ in LAYER + GENERAL]
)


def fitting(equation, sizes=SIZES):
    """The sizes, with one for all indices that stand at the same axis of some tensor."""
    sizes = dict(sizes)
    found = [leaf for side in equation.sides for leaf in leaves(side)]
    axes = [((d.first,), (d.second,)) for d in found if isinstance(d, Delta)]
    named = [leaf for leaf in found if isinstance(leaf, Tensor)]
    axes += [(a.indices, b.indices) for a in named for b in named if a.name == b.name]
    for first, second in axes * 2:
        for one, other in zip(map(letter, first), map(letter, second), strict=True):
            sizes[other] = sizes[one] = min(sizes[one], sizes[other])
    return sizes


def letter(index):
    return index.rstrip("'")


def within(equation, sizes):
    """The sizes of those indices that the equation has, j' as for j."""
    return {i: sizes[letter(i)] for side in equation.sides for i in all_indices(side)}


def arrays_of(equation, rng, sizes):
    """A positive random array for each operand."""
    shapes = equation.shapes(**within(equation, sizes))
    return {n: jnp.asarray(rng.uniform(0.1, 0.5, shapes[n])) for n in equation.operands}


def error(got, expected):
    got, expected = np.asarray(got), np.asarray(expected)
    assert got.shape == expected.shape
    return np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-300)


def left_name(equation):
    return key(equation.left.name)


def readings(derived):
    """A derived equation, and where it is another the same read back from its LaTeX."""
    again = Equation(derived.latex, broadcast=lacking(*derived.sides))
    return (derived,) if derived == again else (derived, again)


def gradient_errors(equation, names, seed, sizes=SIZES):
    """How far the equations derived for each operand are from jax.vjp, as einsums and as loops.

    One program computes everything: compiled alone, each operation would cost as much as all.
    """
    sizes = fitting(equation, sizes)
    rng = np.random.default_rng(seed)
    arrays = arrays_of(equation, rng, sizes)
    left, dims = left_name(equation), within(equation, sizes)
    derived = {name: readings(equation.gradient(name)) for name in names}
    cotangent = jnp.asarray(rng.standard_normal(equation.shapes(**dims)[left]))

    @jax.jit
    def run(arrays, cotangent):
        value, pull = jax.vjp(lambda arrays: equation(arrays, dims=dims), arrays)
        known = {**arrays, left: value, f"dL_d{left}": cotangent}
        return known, pull(cotangent)[0], values_of(derived, known, sizes)

    known, expected, found = run(arrays, cotangent)
    known = {name: np.asarray(array) for name, array in known.items()}
    for name, (first, *_) in derived.items():
        operands = {operand: known[operand] for operand in first.operands}
        found[name].append(run_loops(first, operands, dims=within(first, sizes)))
    return {n: max(error(one, expected[n]) for one in values) for n, values in found.items()}


def values_of(derived, known, sizes):
    """The values of derived equations, from those of the arrays that each of them uses."""
    return {
        name: [e({n: known[n] for n in e.operands}, dims=within(e, sizes)) for e in equations]
        for name, equations in derived.items()
    }


@EQUATIONS
@pytest.mark.usefixtures("no_type_checks")
def test_gradients_are_those_of_jax(latex, broadcast):
    equation = Equation(latex, broadcast=broadcast)
    errors = gradient_errors(equation, equation.operands, seed=7)
    assert max(errors.values()) < 1e-12, errors


@EQUATIONS
@pytest.mark.usefixtures("no_type_checks")
def test_jacobians_are_those_of_jax(latex, broadcast):
    equation = Equation(latex, broadcast=broadcast)
    sizes = fitting(equation, dict.fromkeys(SIZES, 2) | {"i": 2, "j": 3, "k": 2, "a": 3})
    derived = {name: readings(equation.jacobian(name)) for name in equation.operands}

    @jax.jit
    def run(arrays):
        def forward(arrays):
            return equation(arrays, dims=within(equation, sizes))

        known = {**arrays, left_name(equation): forward(arrays)}
        return jax.jacrev(forward)(arrays), values_of(derived, known, sizes)

    expected, found = run(arrays_of(equation, np.random.default_rng(5), sizes))
    for name, values in found.items():
        assert max(error(value, expected[name]) for value in values) < 1e-12, name


def test_a_computed_position_says_why_it_has_no_gradient():
    equation = Equation(r"Q^{hia} = X^{i(hH+a)}")
    with pytest.raises(ValueError, match="X: a computed position has no index of its own"):
        equation.gradient("X")


@pytest.mark.parametrize(
    "latex, name, message",
    [
        (r"y^i = A^{ij} x^j", "B", r"B: expected a tensor of the right side \(A, x\)"),
        (r"\sum_j A^{ij} x^j = y^i", "A", "A: expected an equation with a tensor on its left"),
        (r"z^j = A^{ij} \frac{\partial L}{\partial y^i}", "dL/dy", "dL/dy: expected a tensor"),
    ],
)
@pytest.mark.parametrize("derive", [gradient, jacobian])
def test_what_has_no_derivative_says_so(latex, name, message, derive):
    with pytest.raises(ValueError, match=message):
        derive(*Equation(latex).sides, name)
