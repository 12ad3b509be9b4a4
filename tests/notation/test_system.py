"""Systems of equations: the layer runs, differentiates itself, counts, and costs no more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import init_multi_head, multi_head_attention
from mha_book.notation import System
from mha_book.notation.expression import all_indices
from mha_book.notation.system import (
    cached_elements,
    decode_flops,
    layer_arrays,
    multi_head_layer,
    replace_equations,
)
from tests.jaxprs import largest

SIZES = {"num_heads": 3, "head_dim": 7, "value_dim": 5}
LENGTH, WIDTH = 11, 13

VARIANTS = {
    "plain": {},
    "biases": {"use_bias": True},
    "grouped": {"grouped": True},
    "causal": {"additive_mask": True},
    "causal with biases": {"use_bias": True, "additive_mask": True},
    "causal, grouped": {"grouped": True, "additive_mask": True},
}


def case(variant, dtype=jnp.float64):
    """A system, its operands, and the package's layer with its parameters, input and bias."""
    options = VARIANTS[variant]
    heads = {**SIZES, "num_heads": 6, "num_kv_heads": 3} if options.get("grouped") else SIZES
    params = init_multi_head(
        jax.random.key(0), WIDTH, **heads, use_bias=options.get("use_bias", False), dtype=dtype
    )
    keys = iter(jax.random.split(jax.random.key(1), 9))
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(next(keys), x.shape, dtype), params)
    x, cotangent = jax.random.normal(jax.random.key(2), (2, LENGTH, WIDTH), dtype)
    arrays = layer_arrays(params, x)
    bias = None
    if options.get("additive_mask"):
        hidden = np.triu(np.full((LENGTH, LENGTH), -1e3), 1)
        arrays["M"] = jnp.asarray(hidden, dtype)
        bias = arrays["M"][None]
    return multi_head_layer(**options), arrays, params, x, cotangent, bias


def relative(got, expected, scale=None):
    """The largest deviation, relative to the largest entry (of ``scale``, where given)."""
    assert got.shape == expected.shape
    largest = np.abs(np.asarray(expected if scale is None else scale)).max()
    return np.abs(np.asarray(got) - np.asarray(expected)).max() / max(largest, 1e-300)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.usefixtures("float64", "no_type_checks")
def test_the_system_is_the_layer_forwards_and_backwards(variant):
    """The output, and all gradients of a loss that is not linear in it, against jax.grad."""
    system, arrays, params, x, weights, bias = case(variant)

    def loss(params, x, bias):
        output = multi_head_attention(params, x, bias=bias)
        return jnp.sum(weights * jnp.sin(output)), output

    @jax.jit  # both in one program, which is compiled sooner than two
    def run(params, x, bias, arrays):
        wanted = (0, 1) if bias is None else (0, 1, 2)
        expected = jax.grad(loss, argnums=wanted, has_aux=True)(params, x, bias)
        output, pull = system.vjp(arrays)
        return expected, output, pull(weights * jnp.cos(output))

    ((of_params, of_x, *of_bias), expected_output), output, found = run(params, x, bias, arrays)
    assert relative(output, expected_output) < 1e-12
    expected = layer_arrays(of_params, of_x)
    if of_bias:
        expected["M"] = of_bias[0][0]
    assert found.keys() == expected.keys() == {*system.inputs}
    for name, gradient in expected.items():
        # The scores do not change with the keys' bias: its gradient is zero up to rounding.
        scale = expected["b_Q"] if name == "b_K" else None
        assert relative(found[name], gradient, scale) < 1e-10, name


@pytest.mark.usefixtures("float64")
def test_a_network_with_shared_tensors_and_scalars():
    r"""A tensor in three equations, a bias, a named scalar, a sum over a broadcast index."""
    latex = r"""\begin{aligned}
        u^j &= \tanh\left(\sum_i W^{ij} x^i\right) + b^j \\
        v^i &= W^{ij} u^j + \lambda x^i \\
        w^{ij} &= v^i u^j - x^i \\
        L_0 &= \sum_{i,j} w^{ij} \left(w^{ij} + 2\right) \frac{1}{N}
    \end{aligned}"""
    system = System.parse(latex, broadcast="ij", scalars={"N": "i"})
    assert system.inputs == ("W", "x", "b", "lambda_")
    rng = np.random.default_rng(0)
    arrays = {n: jnp.asarray(rng.standard_normal(s)) for n, s in
              {"W": (3, 5), "x": (3,), "b": (5,), "lambda_": ()}.items()}  # fmt: skip

    def by_hand(arrays):
        u = jnp.tanh(arrays["x"] @ arrays["W"]) + arrays["b"]
        v = arrays["W"] @ u + arrays["lambda_"] * arrays["x"]
        w = jnp.outer(v, u) - arrays["x"][:, None]
        return jnp.sum(w * (w + 2)) / 3

    @jax.jit
    def run(arrays):
        one = jnp.asarray(1.0)
        values = system(arrays)["L_0"], by_hand(arrays)
        given = system.gradients(one, {**arrays, "N": 7.0})
        return values, jax.grad(by_hand)(arrays), system.gradients(one, arrays), given

    values, expected, found, given = run(arrays)
    assert relative(*values) < 1e-12
    for name, gradient in expected.items():
        assert relative(found[name], gradient) < 1e-10, name
    assert relative(given["x"], expected["x"] * 3 / 7) < 1e-10


def test_counts():
    layer = multi_head_layer()
    sizes = {"h": 8, "b": 512, "d": 512, "a": 64, "c": 64, "i": 100, "j": 100}
    weights = ["W_Q", "W_K", "W_V", "W_O"]
    assert layer.parameters(weights, **sizes) == dict.fromkeys(weights, 512 * 512)
    flops = layer.flops(**sizes)
    assert list(flops) == list(layer.names)
    projection = 2 * 100 * 512 * 512
    for name in ("Q", "K", "V", "Y"):
        assert flops[name] == projection
    assert flops["O"] == 2 * 8 * 100 * 100 * 64
    assert flops["S"] == 2 * 8 * 100 * 100 * 64 + 8 * 100 * 64  # the scale, on the smallest tensor
    with pytest.raises(ValueError, match=r"names: expected some of Q, X, W_Q.*got 'W_X'"):
        layer.parameters(["W_X"], **sizes)
    with pytest.raises(ValueError, match="W_Q: expected the size of each index"):
        layer.parameters(["W_Q"], h=8)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("backward", [False, True])
def test_no_copy_with_all_heads_and_no_outer_product(grouped, backward):
    """No array of an equation's program is larger than the largest operand or the result."""
    layer = multi_head_layer(grouped=grouped)
    sizes = {"h": 4, "k": 2, "g": 3, "i": 31, "j": 31, "a": 5, "c": 7, "b": 29, "d": 29}
    for equation in (layer.backward() if backward else layer).equations:
        used = {i.rstrip("'") for side in equation.sides for i in all_indices(side)}
        dims = {i: sizes[i] for i in used}
        shapes = equation.shapes(**dims)
        operands = {
            name: jax.ShapeDtypeStruct(shapes[name], jnp.float32) for name in equation.operands
        }
        assert largest(equation, operands) <= max(np.prod(shape) for shape in shapes.values())


# --- changed equations, and what a decode step costs by them ---

LATENT = r"""
Z^{jn} = X^{jb} W_Z^{bn} \\
S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} W_{UK}^{hna} Z^{jn} \\
O^{hic} = A^{hij} Z^{jn} W_{UV}^{hnc}
"""
STEP = {"h": 6, "a": 5, "b": 13, "c": 7, "d": 13, "n": 3}


def test_a_line_takes_the_place_of_its_like_and_what_is_not_needed_goes():
    changed = replace_equations(multi_head_layer(), LATENT)
    assert set(changed.names) == {"Q", "Z", "S", "A", "O", "Y"}
    assert changed.inputs == ("X", "W_Q", "W_Z", "W_UK", "W_UV", "W_O")


def test_kept_is_the_cache():
    layer = multi_head_layer()
    assert cached_elements(layer, **STEP) == {"K": 6 * 5, "V": 6 * 7}
    assert cached_elements(replace_equations(layer, LATENT), **STEP) == {"Z": 3}


def test_a_step_counts_the_products_that_the_costs_count():
    layer, positions = multi_head_layer(), 1009
    found = decode_flops(layer, positions, **STEP)
    assert found["Q"] + found["K"] + found["V"] + found["Y"] == 2 * 13 * 6 * (5 + 5 + 7 + 7)
    pairs = 2 * positions * 6 * (5 + 7)
    scaling = 6 * 5  # the factor is multiplied into the one query
    assert found["S"] + found["O"] == pairs + scaling


def test_biases_stay_and_other_letters_are_not_split():
    biased = replace_equations(multi_head_layer(use_bias=True), r"A^{hij} = \tanh(S^{hij})")
    assert "b_Q" in biased.inputs
    system = System.parse(
        r"y^{\theta h} = x^{\theta h} \\ z = y^{\theta h} \frac{1}{N}", scalars={"N": "h"}
    )
    split = replace_equations(system, "w = z", split=("h", "kg"))
    assert split.equations[0].free == (r"\theta", "k", "g")
    assert replace_equations(system, "w = z").inputs == ("x",)
