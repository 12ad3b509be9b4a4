"""Equations that run: values against arrays written by hand and einsum, checks, what is said."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.notation import Equation, run_loops
from mha_book.notation.expression import Delta, Product, Sum, Tensor

# Distinct primes, so that no two indices can be taken for one another.
SIZES = {"h": 2, "i": 3, "j": 5, "a": 7, "b": 11, "c": 13, "d": 17}


def random(*letters: str, seed: int = 0, dtype: Any = np.float32) -> list[jax.Array]:
    rng = np.random.default_rng(seed)
    return [jnp.asarray(rng.normal(size=[SIZES[i] for i in axes]), dtype) for axes in letters]


# --- values, worked out by hand ---------------------------------------------------------------


def test_a_softmax_by_hand() -> None:
    # exp(log 3) = 3 beside exp(0) = 1: three quarters and one.
    softmax = Equation(r"A^{ij} = \frac{\exp(S^{ij})}{\sum_{j'} \exp(S^{ij'})}")
    value = softmax(S=np.array([[np.log(3.0), 0.0], [0.0, 0.0], [5.0, 5.0]]))
    np.testing.assert_allclose(value, [[0.75, 0.25], [0.5, 0.5], [0.5, 0.5]], rtol=1e-6)


@pytest.mark.parametrize(
    "latex, arrays, expected",
    [
        (r"t = A^{ij} \delta^{ij}", {"A": [[1.0, 2.0], [3.0, 4.0]]}, 5.0),
        (r"t^i = A^{ii}", {"A": [[1.0, 2.0], [3.0, 4.0]]}, [1.0, 4.0]),
        (r"t^{ij} = \delta^{ij} x^i", {"x": [2.0, 3.0]}, [[2.0, 0.0], [0.0, 3.0]]),
        (r"y^i = \delta^{ij} x^j", {"x": [2.0, 3.0]}, [2.0, 3.0]),
        (r"y^i = \frac12 x^i - 3 x^i", {"x": [2.0, 4.0]}, [-5.0, -10.0]),
        (r"y^i = -x^i", {"x": [2.0, 4.0]}, [-2.0, -4.0]),
        (r"y^i = \left(x^i\right)^2", {"x": [2.0, 4.0]}, [4.0, 16.0]),
        (r"y^i = \left(x^i\right)^{-1}", {"x": [2.0, 4.0]}, [0.5, 0.25]),
        (r"y^i = \left(x^i\right)^{1/2}", {"x": [4.0, 9.0]}, [2.0, 3.0]),
        (r"y^i = \left(x^i\right)^{-1/2}", {"x": [4.0, 16.0]}, [0.5, 0.25]),
        (r"y^i = \left(x^i\right)^{3/2}", {"x": [4.0, 9.0]}, [8.0, 27.0]),
        (r"y^i = \frac{x^i}{z^i}", {"x": [4.0, 9.0], "z": [2.0, 3.0]}, [2.0, 3.0]),
        (r"y^i = \frac{1}{z^i}", {"z": [2.0, 4.0]}, [0.5, 0.25]),
        (r"y^i = \frac{x^i}{\sum_j z^j}", {"x": [4.0, 9.0], "z": [1.0, 1.0, 2.0]}, [1.0, 2.25]),
        (r"y^i = \sqrt{x^i} + \tanh(x^i)", {"x": [0.0]}, [0.0]),
        (r"y^i = \sin(x^i) + \cos(x^i)", {"x": [0.0]}, [1.0]),
        (r"y^i = \log(\exp(x^i))", {"x": [2.0]}, [2.0]),
        (r"t = \sum_{i} \sum_{j} x^i z^j", {"x": [1.0, 2.0], "z": [3.0, 4.0]}, 21.0),
        (r"t = x^i z^j", {"x": [1.0, 2.0], "z": [3.0, 4.0]}, 21.0),
        (r"t = 2 c", {"c": 3.0}, 6.0),
        (r"y^{ij} = \left(1 - x^i\right) z^j", {"x": [0.0, 3.0], "z": [1.0]}, [[1.0], [-2.0]]),
    ],
)
def test_small_equations_by_hand(latex: str, arrays: dict[str, Any], expected: Any) -> None:
    equation = Equation(latex)
    given = {name: np.asarray(value) if name != "c" else value for name, value in arrays.items()}
    np.testing.assert_allclose(equation(**given), expected, rtol=1e-6)
    np.testing.assert_allclose(run_loops(equation, **given), expected, rtol=1e-12)


def test_computed_positions_split_and_merge() -> None:
    x = np.arange(3.0 * 10).reshape(3, 10)
    split = Equation(r"Z^{hia} = X^{i(hH+a)}")
    heads = split(X=x, H=5, dims={"h": 2, "a": 5})
    np.testing.assert_array_equal(heads, x.reshape(3, 2, 5).swapaxes(0, 1))
    np.testing.assert_array_equal(run_loops(split, X=x, H=5, dims={"h": 2, "a": 5}), heads)
    merge = Equation(r"Y^{i(hH+a)} = Z^{hia}")
    np.testing.assert_array_equal(merge(Z=heads, H=5), x)
    np.testing.assert_array_equal(run_loops(merge, Z=np.asarray(heads), H=5), x)
    assert merge.shapes(h=2, i=3, a=5, H=5) == {"Y": (3, 10), "H": (), "Z": (2, 3, 5)}
    assert split.flops(h=2, i=3, a=5, H=5) == 0


def test_a_position_that_no_axis_has() -> None:
    split = Equation(r"Z^{hia} = X^{i(hH+a)}")
    with pytest.raises(ValueError, match="X: axis 1: expected positions 0 to 10; got size 10"):
        split(X=np.ones((3, 10)), H=6, dims={"h": 2, "a": 5})


def test_einsum() -> None:
    equation = Equation(r"\phi^{i\mu} = X^{i\nu} X^{i'\nu} W^{i'\mu}")
    assert equation.einsum == "iZ,IZ,IY->iY"
    assert equation.einsums == (equation.einsum,)


@pytest.mark.parametrize(
    "latex, reason",
    [
        (r"A^{ij} = \frac{\exp S^{ij}}{\sum_{j'} \exp S^{ij'}}", "a softmax"),
        (r"y^i = x^i + z^i", "terms that are added"),
        (r"y^i = \exp(x^i)", "a function"),
        (r"y^i = \left(x^i\right)^2", "a power"),
        (r"y^i = \frac{x^i}{z^i}", "a quotient"),
        (r"y^{ij} = x^i \delta^{ij}", "a Kronecker delta of two free indices"),
        (r"y^i = X^{(2i+1)}", "a computed position"),
        (r"y^{i(2h+a)} = X^{hia}", "a computed position"),
    ],
)
def test_what_no_einsum_says(latex: str, reason: str) -> None:
    with pytest.raises(ValueError, match=f"no einsum says this alone: {reason}\n.*\n *\\^"):
        _ = Equation(latex).einsum


# --- sides and names --------------------------------------------------------------------------


def test_names_of_arrays() -> None:
    equation = Equation(r"y^i = \lambda X'^{ij} \widetilde{X}^{j}")
    assert list(equation.operands) == ["lambda_", "X_prime", "X_widetilde"]
    given = {r"\lambda": 2.0, "X'": np.ones((3, 5)), r"\widetilde{X}": np.ones(5)}
    np.testing.assert_allclose(equation(given), np.full(3, 10.0))
    np.testing.assert_allclose(
        equation({"X'": np.ones((3, 5))}, lambda_=2, X_widetilde=np.ones(5)), 10
    )


def test_a_chain_has_a_value_for_each_side() -> None:
    equation = Equation(r"Y^{id} = O^{hic} W^{hcd} = Z^{id}")
    o, w, z, y = random("hic", "hcd", "id", "id")
    expected = jnp.einsum("hic,hcd->id", o, w)
    np.testing.assert_allclose(equation(O=o, W=w), expected, rtol=1e-5)
    assert len(equation.values(O=o, W=w, Z=z)) == 2
    first, second, third = equation.values(O=o, W=w, Z=z, Y=y)
    np.testing.assert_array_equal(first, y)
    np.testing.assert_allclose(second, expected, rtol=1e-5)
    np.testing.assert_array_equal(third, z)
    with pytest.raises(ValueError, match="Z: missing"):
        equation.values(O=o, W=w)


def test_equations_of_expressions() -> None:
    sides = (
        Tensor("y", ("i",)),
        Sum(("j",), Product((Tensor("A", ("i", "j")), Tensor("x", ("j",))))),
    )
    equation = Equation.from_sides(sides)
    assert equation == Equation(r"y^i = A^{ij} x^j")
    assert hash(equation) == hash(Equation(r"y^i = A^{ij} x^j"))
    assert equation != Equation(r"y^i = A^{ij} z^j")
    assert Equation(equation.latex) == equation
    assert eval(repr(equation), {"Equation": Equation}) == equation
    summed_alone = Equation.from_sides(
        (Tensor("y", ("i",)), Sum(("i'",), Product((Delta("i", "i'"),))))
    )
    np.testing.assert_array_equal(summed_alone(dims={"i": 3}), np.ones(3))
    trace = Equation.from_sides((Tensor("t"), Sum(("i",), Delta("i", "i"))))
    assert trace(dims={"i": 3}) == 3


# --- what is said of an equation --------------------------------------------------------------


def test_shapes() -> None:
    equation = Equation(r"S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} K^{hja}")
    shapes = equation.shapes(h=2, i=3, j=5, a=7)
    assert shapes == {"S": (2, 3, 5), "d_k": (), "Q": (2, 3, 7), "K": (2, 5, 7)}
    assert next(iter(shapes)) == "S"
    assert Equation(r"y^{i} = X^{i'} \delta^{i'i}").shapes(i_prime=3) == {"y": (3,), "X": (3,)}


@pytest.mark.parametrize(
    "latex, dims, expected",
    [
        (r"Q^{hia} = X^{ib} W_Q^{hba}", "hiab", 2 * 2 * 3 * 7 * 11),
        # The scale goes into the result, 30 elements: Q has 42, K 70.
        (r"S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} K^{hja}", "hija", 2 * 2 * 3 * 5 * 7 + 30),
        (r"A^{ij} = \frac{\exp(S^{ij})}{\sum_{j'} \exp(S^{ij'})}", "ij", 5 * 15),
        (r"y^i = x^i + z^i - w^i", "i", 6),
        (r"y^i = -x^i", "i", 3),
        (r"y^i = \exp(x^i)", "i", 3),
        (r"y^{ij} = x^i z^j", "ij", 15),
        (r"t = X^{ij}", "ij", 15),
        (r"t^i = X^{ij}", "ij", 15),
        # A W first, (3, 17): 2*3*5*11 would be one more pair of loops than needed.
        (r"y^i = A^{ij} B^{jb} x^b", "ijb", 2 * 5 * 11 + 2 * 3 * 5),
        (r"y^i = \frac{x^i}{2 c}", "i", 3),
    ],
)
def test_operations_counted_by_hand(latex: str, dims: str, expected: int) -> None:
    extra = {"j_prime": 5} if "j'" in latex else {}
    assert Equation(latex).flops(**{i: SIZES[i] for i in dims}, **extra) == expected
    assert Equation(latex).flops(**{i: SIZES[i] for i in dims}) == expected


def test_a_notebook_shows_the_equation_its_einsum_and_its_axes() -> None:
    shown = Equation(r"S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} K^{hja}")._repr_markdown_()
    assert shown == (
        "$$\nS^{hij} = \\frac{1}{\\sqrt{d_k}} Q^{hia} K^{hja}\n$$\n\n"
        "`hia,hja->hij` · `d_k`, `Q[h, i, a]`, `K[h, j, a]` → `S[h, i, j]`"
    )
    identity = Equation(r"\sum_j A^{ij} B^{j} = \sum_j B^{j} A^{ij}")._repr_markdown_()
    assert identity.endswith("\n\n`ij,j->i` · `A[i, j]`, `B[j]`")
    alone = Equation(r"A^{ij} = \delta^{ij}")._repr_markdown_()
    assert alone.endswith("\n\n`A[i, j]`")


# --- transformations and dtypes ---------------------------------------------------------------

WHOLE = Equation(r"Y^{hic} = \frac{\exp(S^{hij})}{\sum_{j'} \exp(S^{hij'})} V^{hjc}")


@pytest.mark.parametrize(
    "dtype, number",
    [
        ("float16", 3),
        ("bfloat16", 3.0),
        ("float32", np.float32(3.0)),
        ("float64", np.int32(3)),
        ("float16", np.float32(3.0)),
    ],
)
def test_the_dtype_of_the_arrays_is_kept(dtype: str, number: Any, float64: None) -> None:
    s, v, x = (jnp.asarray(array, dtype) for array in random("hij", "hjc", "i"))
    assert jax.eval_shape(WHOLE, {"S": s, "V": v}).dtype == dtype
    scaled = Equation(r"y^{ij} = \frac{x^i}{\sqrt{d_k}} + \delta^{ij}", broadcast=("j",))
    value = scaled(x=x, d_k=number, dims={"i": 3})
    assert value.dtype == dtype
    expected = np.asarray(x, np.float64)[:, None] / np.sqrt(3.0) + np.eye(3)
    np.testing.assert_allclose(np.asarray(value, np.float64), expected, rtol=1e-2)


# --- bad input --------------------------------------------------------------------------------

PROJECT = Equation(r"Q^{hia} = X^{ib} W_Q^{hba}")


@pytest.mark.parametrize(
    "arrays, message, marked",
    [
        (
            {"X": (3, 11), "W_Q": (2, 13, 7)},
            r"W_Q: index b \(axis 1\): expected 11, as in axis 1 of X; got 13, shape \(2, 13, 7\)",
            r"W_Q^{hba}",
        ),
        ({"X": (3, 11)}, r"W_Q: missing; expected an array with axes \(h, b, a\)", r"W_Q^{hba}"),
        ({"X": (3, 11), "W_Q": (2, 11, 7), "Z": (3,)}, "unexpected array 'Z'; expected W_Q", None),
    ],
)
def test_bad_arrays(arrays: dict[str, Any], message: str, marked: str | None) -> None:
    given = {name: np.ones(shape) for name, shape in arrays.items()}
    for call in (PROJECT, lambda **kw: run_loops(PROJECT, **kw)):
        with pytest.raises(ValueError, match=message) as error:
            call(**given)
        *_, source, carets = str(error.value).splitlines()
        if marked is not None:
            start = carets.index("^")
            assert source[start : start + carets.count("^")] == marked
