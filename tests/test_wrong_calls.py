"""Wrong calls, run as a user would: no type checks, JAX's own promotion."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import attend, init_multi_head, multi_head_attention
from mha_book.multihead.dropout import Dropout
from mha_book.multihead.grouped import reinitialize_groups

pytestmark = [pytest.mark.usefixtures("no_type_checks"), pytest.mark.loose_promotion]


def test_every_mistake_has_its_words() -> None:
    from tests.wrong_calls import ROWS, judge  # here, as it draws parameters

    wrong = []
    for words, call in ROWS:
        verdict, said = judge(call)
        argument, _, expected = words.partition(": ")
        got = said.partition(": ")[2]
        fits = got.startswith(argument) and expected in got.partition("; got ")[0]
        if verdict != "good" or not fits:
            wrong.append(f"{words}: {verdict}, {said[:150]}")
    assert not wrong, "\n".join(wrong)


def test_no_argument_of_another_kind_is_taken_or_left_to_jax() -> None:
    from tests.wrong_calls import changed_calls, judge

    wrong = []
    for name, argument, must_raise, call in changed_calls():
        verdict, said = judge(call)
        is_named = argument in said.partition(": expected ")[0]
        if verdict == "poor" or (must_raise and (verdict == "silent" or not is_named)):
            wrong.append(f"{name}: {verdict}, {said[:150]}")
    assert not wrong, "\n".join(wrong)


def test_scales_are_numbers_of_any_kind() -> None:
    from tests.wrong_calls import KEY, VALUE, Q

    wanted = attend(Q, KEY, VALUE, scale=0.5)
    for scale in (np.float32(0.5), np.float64(0.5), np.array(0.5), jnp.array(0.5)):
        np.testing.assert_array_equal(attend(Q, KEY, VALUE, scale=scale), wanted)
    assert attend(Q, KEY, VALUE, scale=2, is_causal=np.True_).shape == wanted.shape


def test_wide_numpy_arrays_are_what_jax_makes_of_them() -> None:
    """A NumPy array of float64 is one of float32 outside jax.jit, too, as it is inside."""
    from tests.wrong_calls import KEY, PARAMS, VALUE, Q, X

    wanted, of_layer = attend(Q, KEY, VALUE), multi_head_attention(PARAMS, X)
    for found, expected in (
        (attend(np.asarray(Q, np.float64), KEY, np.asarray(VALUE, np.float64)), wanted),
        (jax.jit(attend)(np.asarray(Q, np.float64), KEY, VALUE), wanted),
        (multi_head_attention(PARAMS, np.asarray(X, np.float64)), of_layer),
    ):
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_seeds_and_keys_of_both_styles() -> None:
    from tests.wrong_calls import PARAMS, X

    for draw in (
        lambda key: multi_head_attention(PARAMS, X, dropout=Dropout(weights=0.5), rng_key=key),
        lambda key: init_multi_head(key, 6, 2).w_q,
        lambda key: reinitialize_groups(key, PARAMS, 1).w_k,
    ):
        raw, wanted = jax.random.PRNGKey(42), draw(jax.random.key(42))
        for key in (42, np.int64(42), raw, np.asarray(raw)):
            np.testing.assert_array_equal(draw(key), wanted)
