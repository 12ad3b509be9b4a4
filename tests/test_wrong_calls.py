"""The catalogue of wrong calls, run as a user would: no type checks, JAX's own promotion."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mha_book
from mha_book import (
    FusedMultiHeadParams,
    MultiHeadParams,
    attend,
    attention_spec,
    multi_head_attention,
    select,
)
from mha_book.attention.dispatch import IMPLEMENTATIONS
from mha_book.attention.flash import flash_attention
from mha_book.attention.gradient import backward, forward
from mha_book.attention.operands import prepare
from mha_book.multihead.dropout import Dropout
from mha_book.multihead.gradient import multi_head_attention_vjp
from tests.wrong_calls import (
    CASES,
    KEY,
    PARAMS,
    UNSEEN,
    VALUE,
    B,
    D,
    H,
    K,
    N,
    Q,
    S,
    T,
    X,
    judge,
)
from tests.wrong_calls_of_models import MORE_CASES
from tests.wrong_calls_of_variants import FOUND_CASES

pytestmark = [pytest.mark.usefixtures("no_type_checks"), pytest.mark.loose_promotion]


VERDICTS = ("good", "poor", "silent")


def test_catalogue() -> None:
    """Nobody is left without an error, and no error is left without the argument's name."""
    counts, wrong, mended = Counter[str](), [], []
    cases = [*CASES, *MORE_CASES, *FOUND_CASES]
    for case in cases:
        verdict, said = judge(case)
        counts[verdict] += 1
        line = f"{verdict}: {case.name} ({case.argument}): {said}"
        if verdict != "good" and not case.known:
            wrong.append(line)
        if verdict == "good" and case.known:
            mended.append(line)
    print(f"{len(cases)} wrong calls: {', '.join(f'{counts[v]} {v}' for v in VERDICTS)}")
    assert not wrong, "\n".join(wrong)
    assert not mended, "good by now, so no longer known:\n" + "\n".join(mended)
    assert len(cases) >= 1200
    assert len({case.name for case in cases}) == len(cases)


def test_every_public_function_is_here() -> None:
    """Functions alone: what a class takes is checked where it is used."""
    ids = {case.name.split(":")[0] for case in CASES}
    tested = {
        "attend": "attend", "attention_weights": "weights", "causal": "causal",
        "combine_heads": "combine", "attention_spec": "attention_spec", "array_mask": "explicit",
        "fuse": "fuse",
        "identity_params": "identity", "init_multi_head": "init", "multi_head_attention": "layer",
        "padding": "padding", "scaled_dot_product_attention": "reference",
        "segments": "segments", "sliding_window": "window", "split_heads": "split",
        "unfuse": "unfuse",
    }  # fmt: skip
    public = {name for name in mha_book.__all__ if not isinstance(getattr(mha_book, name), type)}
    passed_on = {"select", "multi_head_attention_with_intermediates"}
    assert public - passed_on == set(tested)  # choose takes a request that describe has checked
    counts = {
        name: sum(c.name.startswith(f"{word}:") for c in CASES) for name, word in tested.items()
    }
    assert set(tested.values()) <= ids
    assert {name: count for name, count in counts.items() if count < 5} == {}


def test_choose_takes_what_describe_gives() -> None:
    assert select(attention_spec(Q, KEY, VALUE)).name == "reference"


def test_fused_parameters_of_the_wrong_head_width() -> None:
    fused = FusedMultiHeadParams(jnp.ones((D, 10, H)), jnp.ones((N, 4, D)))
    with pytest.raises(ValueError, match=r"w_o: expected .*\(6, 3, any\); got shape \(6, 4, 10\)"):
        multi_head_attention(fused, X)


def test_numpy_arrays_are_arrays() -> None:
    """They are taken where their shapes and dtypes fit, and refused by the same messages."""
    q, k = np.ones((N, T, H), np.float32), np.ones((K, S, H), np.float32)
    assert attend(q, k, k).shape == (N, T, H)
    with pytest.raises(ValueError, match="key: expected axis -1"):
        attend(q, k[..., :2], k)


@pytest.mark.parametrize("name", UNSEEN)
def test_what_no_program_sees(name: str) -> None:
    """If one of these raises, it is a case of the catalogue."""
    UNSEEN[name]()


def test_scales_are_numbers_of_any_kind() -> None:
    wanted = attend(Q, KEY, VALUE, scale=0.5)
    for scale in (np.float32(0.5), np.float64(0.5), np.array(0.5), jnp.array(0.5)):
        np.testing.assert_array_equal(attend(Q, KEY, VALUE, scale=scale), wanted)
    assert attend(Q, KEY, VALUE, scale=2, is_causal=np.True_).shape == wanted.shape


def test_wide_numpy_arrays_are_what_jax_makes_of_them() -> None:
    """A NumPy array of float64 is one of float32 outside jax.jit, too, as it is inside."""
    q, k, v = (np.asarray(x, np.float64) for x in (Q, KEY, VALUE))
    x = np.asarray(X, np.float64)
    wanted, of_layer = attend(Q, KEY, VALUE), multi_head_attention(PARAMS, X)
    calls = {
        "all wide": (attend(q, k, v), wanted),
        "query wide": (attend(q, KEY, VALUE), wanted),
        "values wide": (attend(Q, KEY, v), wanted),
        "under jit": (jax.jit(attend)(q, KEY, v), wanted),
        "bias wide": (attend(Q, KEY, VALUE, bias=np.zeros((1, 1, T, S))), wanted),
        "layer": (multi_head_attention(PARAMS, x), of_layer),
        "weights": (
            multi_head_attention(PARAMS._replace(w_q=np.asarray(PARAMS.w_q, np.float64)), X),
            of_layer,
        ),
    }
    for name, (got, expected) in calls.items():
        assert got.dtype == jnp.float32, name
        np.testing.assert_allclose(got, expected, rtol=1e-6, err_msg=name)


SIZES = {"B": 2, "N": 2, "T": 3, "S": 3, "H": 4, "C": 4}


@pytest.mark.parametrize("empty", SIZES)
@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_empty_axes(name: str, empty: str) -> None:
    """One rule for all implementations: an empty row gives zeros, an axis of size 0 stays one."""
    sizes = {**SIZES, empty: 0}
    query, key, value = (jnp.ones([sizes[a] for a in axes]) for axes in ("BNTH", "BNSH", "BNSC"))
    shape = tuple(sizes[a] for a in "BNTC")
    reason = IMPLEMENTATIONS[name].why_unsupported
    if reason is not None and reason(attention_spec(query, key, value)) is not None:
        with pytest.raises(NotImplementedError, match="expected one that serves"):
            attend(query, key, value, implementation=name)
        return
    for is_causal in (False, True):
        output = attend(query, key, value, implementation=name, is_causal=is_causal)
        assert output.shape == shape
        if empty != "H":  # without width all scores are 0: that may be the mean, or zeros
            assert not output.any()


@pytest.mark.parametrize("empty", SIZES)
@pytest.mark.parametrize("recompute", [False, True])
def test_empty_axes_of_the_gradient(empty: str, recompute: bool) -> None:
    sizes = {**SIZES, empty: 0}
    operands = [jnp.ones([sizes[a] for a in axes]) for axes in ("BNTH", "BNSH", "BNSC")]
    output, _, saved = forward(prepare(*operands), recompute=recompute)
    found = backward(saved, output)
    assert [x.shape for x in found[:3]] == [x.shape for x in operands]
    assert all(not jnp.isnan(x).any() for x in found[:3])


@pytest.mark.parametrize("axes", [(0, T, D), (B, 0, D), (B, T, 0)], ids=["B", "T", "D"])
def test_empty_layers(axes: tuple[int, int, int]) -> None:
    params = PARAMS
    if axes[-1] == 0:
        params = MultiHeadParams(*(jnp.ones((0, n, H)) for n in (N, K, K)), jnp.ones((N, H, 0)))
    x = jnp.ones(axes)
    output, pull = multi_head_attention_vjp(params, x)
    assert multi_head_attention(params, x).shape == output.shape == axes
    assert pull(output).query.shape == axes


def test_empty_flash() -> None:
    for axes in ((0, 8, 4), (2, 0, 4), (2, 8, 0)):
        x = jnp.ones(axes)
        assert flash_attention(x, x, x, block=4).shape == axes


def test_keys_of_both_styles() -> None:
    for key in (jax.random.key(0), jax.random.PRNGKey(0)):
        output = multi_head_attention(PARAMS, X, dropout=Dropout(weights=0.5), rng_key=key)
        assert output.shape == X.shape
