"""The reference attention: by hand first, then against the loops, then its properties."""

import functools
import math
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from mha_book import (
    array_mask,
    attention_weights,
    causal,
    padding,
    scaled_dot_product_attention,
    sliding_window,
)
from tests import oracles

B, N, K, T, S, H, C = 2, 6, 2, 5, 7, 3, 11

# Jitted, since one by one the operations of each new shape compile anew, which takes longer.
sdpa = jax.jit(scaled_dot_product_attention, static_argnames=("is_causal", "return_lse"))
weights_of = jax.jit(attention_weights, static_argnames="is_causal")


@pytest.fixture
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


def draw(*shape: int, seed: int = 0, dtype: str = "float32") -> jax.Array:
    rng = np.random.default_rng([seed, *shape])
    return jnp.asarray(rng.standard_normal(shape), dtype)


def operands(dtype: str = "float32") -> tuple[jax.Array, jax.Array, jax.Array]:
    return (
        draw(B, N, T, H, seed=1, dtype=dtype),
        draw(B, K, S, H, seed=2, dtype=dtype),
        draw(B, K, S, C, seed=3, dtype=dtype),
    )


# --- by hand ------------------------------------------------------------------------------------


def test_identity_by_hand() -> None:
    """Scores are 1/√2 on the diagonal and 0 beside it."""
    identity = jnp.eye(2)
    weights = attention_weights(identity, identity)
    expected = math.exp(1 / math.sqrt(2)) / (math.exp(1 / math.sqrt(2)) + 1)
    by_hand = [[expected, 1 - expected], [1 - expected, expected]]
    np.testing.assert_allclose(weights, by_hand, rtol=1e-6)


def test_equal_keys_get_equal_weights() -> None:
    weights = weights_of(draw(T, H), jnp.ones((S, H)))
    np.testing.assert_allclose(weights, np.full((T, S), 1 / S), rtol=1e-6)
    value = draw(S, C)
    output = sdpa(draw(T, H), jnp.ones((S, H)), value)
    np.testing.assert_allclose(output, np.tile(value.mean(0), (T, 1)), rtol=1e-5, atol=1e-6)


def test_one_key_far_ahead_takes_everything() -> None:
    query = 100.0 * jnp.eye(3)
    value = draw(3, C)
    output, lse = sdpa(query, query, value, return_lse=True)
    np.testing.assert_allclose(output, value, rtol=1e-6)
    np.testing.assert_allclose(lse, np.full(3, 10000 / math.sqrt(3)), rtol=1e-6)


def test_one_visible_key_gives_its_value() -> None:
    value = draw(S, C)
    mask = array_mask(jnp.eye(T, S, dtype=bool))
    output = sdpa(draw(T, H), draw(S, H), value, mask=mask)
    np.testing.assert_array_equal(output, value[:T])


def test_log_sum_exp_by_hand() -> None:
    """Two equal scores of ln 3 sum to 6."""
    one, score = jnp.ones((2, 1)), jnp.full((1, 1), math.log(3.0))
    _, lse = sdpa(score, one, one, return_lse=True)
    np.testing.assert_allclose(lse, [math.log(6.0)], rtol=1e-6)


@pytest.mark.parametrize("size", [1e3, 1e5, 1e15])
def test_scores_far_beyond_the_range_of_exp(size: float) -> None:
    """Scores up to 10^30; compiled too, where a product may be joined with the subtraction."""
    query, key = size * draw(T, H), size * draw(S, H, seed=1)
    for softmax in (attention_weights, weights_of):
        weights = softmax(query, key)
        np.testing.assert_array_equal(weights.argmax(-1), (query @ key.T).argmax(-1))
        np.testing.assert_allclose(weights.max(-1), np.ones(T), rtol=1e-6)
        np.testing.assert_allclose(weights.sum(-1), np.ones(T), rtol=1e-6)


def test_scores_far_beyond_the_range_of_exp_in_half_precision() -> None:
    """Scores of 10^12: a scale that is no power of two must not be joined with the subtraction."""
    query, key = (draw(2, 64, 18, seed=n, dtype="bfloat16") * 1e6 for n in range(2))
    expected = (np.asarray(query, np.float64) @ np.asarray(key, np.float64).mT).argmax(-1)
    for softmax in (attention_weights, weights_of):
        weights = softmax(query, key)
        np.testing.assert_array_equal(weights.argmax(-1), expected)
        np.testing.assert_allclose(weights.max(-1), np.ones((2, 64)), rtol=1e-6)
        np.testing.assert_allclose(weights.sum(-1), np.ones((2, 64)), rtol=1e-6)


# --- the oracle itself --------------------------------------------------------------------------


@pytest.mark.parametrize("with_mask", [False, True])
def test_gradients_of_the_oracle_are_those_of_its_forward_loop(with_mask: bool) -> None:
    rng = np.random.default_rng(5)
    shapes = {"query": (4, 3, 2), "key": (2, 5, 2), "value": (2, 5, 3), "bias": (4, 3, 5)}
    inputs = {name: rng.standard_normal(shape) for name, shape in shapes.items()}
    inputs["scale"] = np.array(0.6)
    visible = rng.random((4, 3, 5)) < 0.6 if with_mask else np.array(True)
    d_output, d_lse = rng.standard_normal((4, 3, 3)), rng.standard_normal((4, 3))
    if with_mask:
        visible[1, 2] = False
    got = oracles.attention_gradients(
        **inputs, visible=visible, d_output=d_output, d_lse=d_lse
    )._asdict()
    for name in inputs:

        def loss(x: np.ndarray, name: str = name) -> float:
            output, lse, _ = oracles.attention(**{**inputs, name: x}, visible=visible)
            return float(np.sum(output * d_output) + np.sum(np.where(lse > -1e9, lse, 0) * d_lse))

        expected = oracles.finite_difference(loss, inputs[name])
        np.testing.assert_allclose(got[name], expected, rtol=1e-7, atol=1e-8, err_msg=name)


# --- against the oracle -------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
def test_weights_output_and_lse_against_the_loops() -> None:
    query, key, value = operands("float64")
    bias = draw(1, N, T, S, dtype="float64")
    mask = sliding_window(3, 3) & padding(jnp.array([4, 6]))
    given = {"mask": mask, "bias": bias, "scale": 0.7}
    output, lse = sdpa(query, key, value, **given, return_lse=True)
    visible = np.asarray(mask.materialize(T, S))
    expected = oracles.attention(query, key, value, visible, bias, 0.7)
    weights = weights_of(query, key, **given)
    for got, wanted in zip((output, lse, weights), expected, strict=True):
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-14)


def test_ranks_from_one_head_to_many_batch_axes() -> None:
    query, key, value = draw(2, 3, N, T, H), draw(2, 3, K, S, H), draw(2, 3, K, S, C)
    whole = sdpa(query, key, value, is_causal=True)
    for place in np.ndindex(2, 3):
        entry = (query[place], key[place], value[place])
        part = sdpa(*entry, is_causal=True)
        np.testing.assert_allclose(whole[place], part, rtol=1e-5, atol=1e-6)
        for n in range(N):
            one = (entry[0][n], entry[1][n // (N // K)], entry[2][n // (N // K)])
            head = sdpa(*one, is_causal=True)
            np.testing.assert_allclose(part[n], head, rtol=1e-5, atol=1e-6)


def test_query_heads_of_a_group_are_neighbours() -> None:
    """Head n reads key head n // G: the repeated heads of numpy, not the tiled ones."""
    query, key, value = operands()
    repeated = [jnp.repeat(x, N // K, axis=-3) for x in (key, value)]
    tiled = [jnp.tile(x, (1, N // K, 1, 1)) for x in (key, value)]
    output = sdpa(query, key, value)
    same = sdpa(query, *repeated)
    np.testing.assert_allclose(output, same, rtol=1e-5, atol=1e-6)
    assert not np.allclose(output, sdpa(query, *tiled), atol=1e-2)


def test_weights_rows_sum_to_one_or_to_zero() -> None:
    query, key, _ = operands()
    mask = padding(jnp.array([4, 0]))
    sums = weights_of(query, key, mask=mask).sum(-1)
    np.testing.assert_allclose(sums[0], np.ones((N, T)), rtol=1e-6)
    np.testing.assert_array_equal(sums[1], np.zeros((N, T)))


# --- empty rows and poison ----------------------------------------------------------------------

EMPTY = {
    "mask": {"mask": padding(jnp.array([4, 0]))},
    "bias": {"bias": jnp.zeros((B, 1, 1, S)).at[1].set(-jnp.inf)},
    "negative offset": {"mask": causal(-1)},
}


@pytest.mark.parametrize("kind", EMPTY)
def test_empty_rows_are_zero_with_zero_gradients(kind: str) -> None:
    empty = np.zeros((B, N, T), bool)
    empty[(slice(None), slice(None), 0) if kind == "negative offset" else 1] = True
    query, key, value = operands()
    output, lse = sdpa(query, key, value, **EMPTY[kind], return_lse=True)
    assert (np.asarray(output)[empty] == 0).all()
    assert (np.asarray(lse)[empty] == -np.inf).all()
    assert np.isfinite(np.asarray(lse)[~empty]).all()

    def loss(query: jax.Array) -> jax.Array:
        output, lse = sdpa(query, key, value, **EMPTY[kind], return_lse=True)
        return jnp.sum(output**2) + jnp.sum(jnp.where(jnp.isfinite(lse), lse, 0.0))

    gradient = np.asarray(jax.jit(jax.grad(loss))(query))
    assert (gradient[empty] == 0).all()
    assert (gradient[~empty] != 0).any(-1).all() or kind == "negative offset"


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_poisoned_padding_changes_nothing(poison: float) -> None:
    query, key, value = operands()
    mask = padding(jnp.array([4, 6]), jnp.array([3, 5]))
    given = {"mask": mask, "is_causal": True}

    @jax.jit
    def everything(query: jax.Array, key: jax.Array, value: jax.Array) -> tuple:
        output, pull = jax.vjp(lambda *x: sdpa(*x, **given), query, key, value)
        return output, weights_of(query, key, **given), *pull(jnp.ones_like(output))

    poisoned = (
        query.at[0, :, 3:].set(poison),
        key.at[0, :, 3:].set(poison).at[1, :, 5:].set(poison),  # causal: three queries, three keys
        value.at[0, :, 3:].set(poison).at[1, :, 5:].set(poison),
    )
    for clean, other in zip(everything(query, key, value), everything(*poisoned), strict=True):
        np.testing.assert_array_equal(clean, other)


# --- properties of the operation ----------------------------------------------------------------


def test_order_of_the_keys_does_not_matter() -> None:
    query, key, value = operands()
    order = np.random.default_rng(0).permutation(S)
    expected = sdpa(query, key, value)
    got = sdpa(query, key[..., order, :], value[..., order, :])
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    weights = weights_of(query, key)
    permuted = weights_of(query, key[..., order, :])
    np.testing.assert_allclose(permuted, weights[..., order], rtol=1e-5, atol=1e-7)


def test_order_of_the_queries_is_that_of_the_rows() -> None:
    query, key, value = operands()
    order = np.random.default_rng(1).permutation(T)
    expected = sdpa(query, key, value)[..., order, :]
    got = sdpa(query[..., order, :], key, value)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_a_shift_of_all_scores_of_a_row_does_not_matter() -> None:
    query, key, _ = operands()
    shift = 50.0 * draw(B, N, T, 1)
    expected = weights_of(query, key)
    got = weights_of(query, key, bias=jnp.broadcast_to(shift, (B, N, T, S)))
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-6)


def test_scale_is_a_factor_of_the_query() -> None:
    query, key, value = operands()
    expected = sdpa(3.0 * query, key, value, scale=1.0)
    got = sdpa(query, key, value, scale=3.0)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    default = sdpa(query, key, value)
    given = sdpa(query, key, value, scale=1 / math.sqrt(H))
    np.testing.assert_array_equal(default, given)


def test_outputs_lie_between_the_values() -> None:
    query, key, value = operands()
    output = sdpa(4.0 * query, key, value)
    lifted = jnp.repeat(value, N // K, axis=1)
    assert (output <= lifted.max(2, keepdims=True) + 1e-6).all()
    assert (output >= lifted.min(2, keepdims=True) - 1e-6).all()


def test_linear_in_the_values() -> None:
    query, key, value = operands()
    other = draw(B, K, S, C, seed=9)
    both = sdpa(query, key, 2.0 * value - other)
    apart = [sdpa(query, key, v) for v in (value, other)]
    np.testing.assert_allclose(both, 2.0 * apart[0] - apart[1], rtol=1e-4, atol=1e-5)


def test_decoding_step_by_step_gives_the_rows_of_the_whole() -> None:
    query, key, value = draw(N, S, H), draw(K, S, H), draw(K, S, C)
    whole = sdpa(query, key, value, is_causal=True)
    step = jax.jit(lambda q, mask: sdpa(q, key, value, mask=mask))
    for i in range(S):
        row = step(query[:, i : i + 1], causal(i))
        np.testing.assert_allclose(row[:, 0], whole[:, i], rtol=1e-5, atol=1e-6)


def test_ways_of_saying_causal_agree() -> None:
    query, key, value = operands()
    expected = sdpa(query, key, value, is_causal=True)
    array = jnp.tril(jnp.ones((T, S), bool))
    bias = jnp.where(array, 0.0, -jnp.inf)
    for given in (
        {"mask": causal()},
        {"mask": sliding_window(None, 0)},
        {"mask": array.reshape(1, 1, T, S)},
        {"bias": bias.reshape(1, 1, T, S)},
        {"mask": causal(), "is_causal": True},
    ):
        got = sdpa(query, key, value, **given)
        np.testing.assert_array_equal(got, expected)


# --- dtypes -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_dtypes(dtype: str) -> None:
    output, lse = sdpa(*operands(dtype), return_lse=True)
    assert output.dtype == dtype
    assert lse.dtype == jnp.float32
    assert weights_of(*operands(dtype)[:2]).dtype == jnp.float32


def test_half_precision_is_computed_in_float32() -> None:
    """The only rounding left is that of the output."""
    half = operands("bfloat16")
    wide = [x.astype(jnp.float32) for x in half]
    expected = sdpa(*wide).astype(jnp.bfloat16)
    np.testing.assert_array_equal(sdpa(*half), expected)


def test_float16_scores_beyond_its_range() -> None:
    """A score of 90,000 is no number of float16."""
    query = jnp.array([[300.0]], jnp.float16)
    weights = weights_of(query, jnp.array([[300.0], [299.0]], jnp.float16))
    assert weights.tolist() == [[1.0, 0.0]]


# --- transformations ----------------------------------------------------------------------------


def test_jit_equals_eager() -> None:
    query, key, value = operands()
    mask = padding(jnp.array([4, 6]))

    def call(query: jax.Array, key: jax.Array, value: jax.Array, mask: object) -> tuple:
        return scaled_dot_product_attention(query, key, value, mask=mask, return_lse=True)

    eager, jitted = call(query, key, value, mask), jax.jit(call)(query, key, value, mask)
    for one, other in zip(eager, jitted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_vmap_equals_batch() -> None:
    query, key, value = operands()
    mask = padding(jnp.array([4, 0]), jnp.array([5, 2]))

    def call(query: jax.Array, key: jax.Array, value: jax.Array, mask: object) -> jax.Array:
        return sdpa(query, key, value, mask=mask, is_causal=True)

    whole = call(query, key, value, mask)
    np.testing.assert_allclose(jax.vmap(call)(query, key, value, mask), whole, rtol=1e-5, atol=1e-6)
    heads = jax.vmap(lambda q: sdpa(q, key[0, 0], value[0, 0]))
    expected = sdpa(query[0, :3], key[0, :1], value[0, :1])
    np.testing.assert_allclose(heads(query[0, :3]), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("float64")
def test_forward_mode_against_finite_differences() -> None:
    x = operands("float64")
    direction = tuple(draw(*a.shape, seed=20 + n, dtype="float64") for n, a in enumerate(x))
    mask = padding(jnp.array([4, 6]))

    def call(*x: jax.Array) -> jax.Array:
        return sdpa(*x, mask=mask)

    _, tangent = jax.jvp(call, x, direction)
    h = 1e-6
    above = call(*(a + h * d for a, d in zip(x, direction, strict=True)))
    below = call(*(a - h * d for a, d in zip(x, direction, strict=True)))
    np.testing.assert_allclose(tangent, (above - below) / (2 * h), rtol=1e-6, atol=1e-8)


@pytest.mark.usefixtures("float64")
def test_second_derivatives() -> None:
    query, key, value = (x[:1, :, :3, :2] for x in operands("float64"))
    call = functools.partial(sdpa, is_causal=True)
    check_grads(call, (query, key, value), order=2, atol=1e-4, rtol=1e-4)


def test_gradient_of_a_gradient_is_finite_with_empty_rows() -> None:
    query, key, value = operands()
    mask = padding(jnp.array([4, 0]))

    def loss(query: jax.Array) -> jax.Array:
        return jnp.sum(sdpa(query, key, value, mask=mask) ** 2)

    second = jax.jit(jax.grad(lambda q: jnp.sum(jax.grad(loss)(q) ** 2)))(query)
    assert jnp.isfinite(second).all()
    assert (second[1] == 0).all()


# --- cost ---------------------------------------------------------------------------------------


def shapes_inside(jaxpr: object) -> Iterator[tuple[int, ...]]:
    """The shapes of all results in a jaxpr, those of inner jaxprs included."""
    for equation in jaxpr.eqns:
        yield from (variable.aval.shape for variable in equation.outvars)
        for inner in jax.tree.leaves(
            list(equation.params.values()),
            is_leaf=lambda x: hasattr(x, "jaxpr") or hasattr(x, "eqns"),
        ):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from shapes_inside(inner)


def repeats_keys(function: Callable, *arguments: jax.Array) -> bool:
    """Whether anything as large as keys or values of all query heads is made on the way."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    sizes = {math.prod(shape) for shape in shapes_inside(jaxpr.jaxpr)}
    return bool(sizes & {B * N * S * H, B * N * S * C})


def test_no_key_or_value_is_repeated_for_its_group() -> None:
    query, key, value = operands()
    bias, mask = draw(1, N, T, S), padding(jnp.array([4, 6])) & causal()

    def call(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return scaled_dot_product_attention(query, key, value, bias=bias, mask=mask)

    def gradients(*x: jax.Array) -> tuple[jax.Array, ...]:
        return jax.grad(lambda *x: call(*x).sum(), argnums=(0, 1, 2))(*x)

    def repeating(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        return call(query, *(jnp.repeat(x, N // K, axis=1) for x in (key, value)))

    assert not repeats_keys(call, query, key, value)
    assert not repeats_keys(gradients, query, key, value)
    assert repeats_keys(repeating, query, key, value)  # the gate can see it
