"""Which implementation runs, and that what was asked for is what runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import (
    Mask,
    attend,
    attention_spec,
    causal,
    explicit,
    padding,
    scaled_dot_product_attention,
    select,
)
from mha_book.attention import dispatch
from mha_book.attention.dispatch import IMPLEMENTATIONS, AttentionSpec, Implementation, Selection
from mha_book.attention.operands import Operands
from tests.attention.contract.cases import ANYWHERE

B, N, K, T, S, H = 2, 6, 2, 5, 7, 3


def request(**changes: object) -> AttentionSpec:
    """A plain request in float32 on a GPU, changed."""
    plain = AttentionSpec((B, N, T, H), (B, K, S, H), (B, K, S, H), "float32", platform="gpu")
    return plain._replace(**changes)


def hopper(**changes: object) -> AttentionSpec:
    """A plain request in bfloat16 on an NVIDIA GPU that cuDNN serves, changed."""
    wide = {"query_shape": (B, N, T, 64), "key_shape": (B, K, S, 64), "value_shape": (B, K, S, 64)}
    return request(**{"dtype": "bfloat16", "compute_capability": (9, 0), **wide, **changes})


LSE, FORWARD = frozenset({"lse"}), frozenset({"forward_mode"})
LONG = {"key_shape": (B, K, 600, H), "value_shape": (B, K, 600, H)}  # more keys than a block has
NEEDS_GPU = "it needs an NVIDIA GPU of compute capability 8.0 or more"
OTHER_DTYPE = "its log-sum-exp comes in the dtype of the output, not in float32"

TABLE = [
    (request(), "jax_nn", ()),
    (hopper(), "cudnn", ()),
    (hopper(dtype="float16", compute_capability=(8, 0)), "cudnn", ()),
    (hopper(mask_kind=frozenset({"causal"})), "cudnn", ()),
    (hopper(query_shape=(B, N, 1, 64)), "jax_nn", ()),
    (hopper(dtype="float32"), "jax_nn", ()),
    (hopper(compute_capability=(7, 5)), "jax_nn", (("cudnn", NEEDS_GPU),)),
    (hopper(compute_capability=None), "jax_nn", (("cudnn", NEEDS_GPU),)),
    (
        hopper(mask_kind=frozenset({"band"})),
        "jax_nn",
        (("cudnn", "it shows the future to a left window, and knows no offset"),),
    ),
    (
        hopper(wants=FORWARD),
        "jax_nn",
        (("cudnn", "it cannot be differentiated in forward mode"),),
    ),
    (request(platform="cpu"), "reference", ()),
    (request(platform="cpu", dtype="float16"), "reference", ()),
    (request(platform="cpu", query_shape=(B, N, 1, H)), "decode", ()),
    (request(platform="gpu", query_shape=(B, N, 1, H)), "jax_nn", ()),
    (request(platform="cpu", query_shape=(B, N, 1, H), key_shape=(B, K, 4, H)), "reference", ()),
    (request(platform="cpu", wants=LSE), "reference", ()),
    (request(platform="cpu", **LONG), "blockwise", ()),
    (request(platform="tpu", **LONG), "blockwise", ()),
    (request(platform="gpu", **LONG), "jax_nn", ()),
    (request(platform="cpu", query_shape=(B, N, 1, H), key_shape=(B, K, 600, H)), "decode", ()),
    (
        request(platform="cpu", wants=FORWARD, **LONG),
        "reference",
        (("blockwise", "it cannot be differentiated in forward mode"),),
    ),
    (
        request(platform="cpu", has_bias=True, **LONG),
        "reference",
        (
            (
                "blockwise",
                "a bias and its gradient are as large as the scores, which blocks are to avoid",
            ),
        ),
    ),
    (
        request(dtype="float16", platform="tpu"),
        "reference",
        (("jax_nn", "its float16 products do not compile on tpu"),),
    ),
    (
        request(dtype="float64"),
        "reference",
        (("jax_nn", "it computes the softmax of float64 scores in float32"),),
    ),
    (
        request(value_shape=(B, K, S, 11)),
        "reference",
        (("jax_nn", "it takes no value width other than the key width"),),
    ),
    (request(wants=LSE), "reference", (("jax_nn", "its log-sum-exp has no gradient"),)),
    (
        hopper(wants=LSE),
        "reference",
        (("cudnn", OTHER_DTYPE), ("jax_nn", OTHER_DTYPE)),
    ),
    (request(wants=FORWARD), "jax_nn", ()),
    (request(has_bias=True), "jax_nn", ()),
    (request(mask_kind=frozenset({"causal"})), "jax_nn", ()),
    (request(mask_kind=frozenset({"band", "lengths", "array"})), "jax_nn", ()),
    (request(platform="gpu"), "jax_nn", ()),
    (request(platform="tpu"), "jax_nn", ()),
]


@pytest.mark.parametrize("asked, name, rejected", TABLE)
def test_choice(asked: AttentionSpec, name: str, rejected: tuple) -> None:
    assert select(asked) == Selection(name, rejected)
    assert select(asked) == select(asked)


def test_choosing_runs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither arrays nor the platform of this machine enter: a request is all there is."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("select is a pure function of the spec")

    monkeypatch.setattr(jax, "default_backend", fail)
    monkeypatch.setattr(jax, "devices", fail)
    for implementation in IMPLEMENTATIONS:
        patched = IMPLEMENTATIONS[implementation]._replace(run=fail)
        monkeypatch.setitem(IMPLEMENTATIONS, implementation, patched)
    for asked, name, _ in TABLE:
        assert select(asked).name == name


def operands(dtype: str = "float32") -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(3)
    shapes = ((B, N, T, H), (B, K, S, H), (B, K, S, H))
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)


@pytest.mark.parametrize(
    "given, changes",
    [
        ({}, {}),
        ({"is_causal": True}, {"mask_kind": frozenset({"causal"})}),
        ({"mask": causal()}, {"mask_kind": frozenset({"causal"})}),
        ({"mask": causal(2)}, {"mask_kind": frozenset({"band"})}),
        (
            {"mask": padding(jnp.array([2, 3])), "is_causal": True},
            {"mask_kind": frozenset({"causal", "lengths"})},
        ),
        ({"mask": explicit(jnp.ones((1, 1, T, S), bool))}, {"mask_kind": frozenset({"array"})}),
        ({"mask": jnp.ones((1, 1, T, S), bool)}, {"mask_kind": frozenset({"array"})}),
        ({"bias": jnp.ones((1, 1, T, S))}, {"has_bias": True}),
        ({"return_lse": True}, {"wants": LSE}),
        ({"forward_mode": True}, {"wants": FORWARD}),
    ],
)
def test_description(given: dict, changes: dict) -> None:
    asked = attention_spec(*operands(), **given)
    assert asked == request(platform=jax.default_backend(), **changes)
    assert hash(asked) == hash(attention_spec(*operands(), **given))


def test_description_is_heads_first_in_either_layout() -> None:
    turned = [jnp.swapaxes(x, 1, 2) for x in operands()]
    assert attention_spec(*turned, layout="TNH") == attention_spec(*operands())


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the implementations that run."""
    ran: list[str] = []

    def watched(name: str, implementation: Implementation) -> Implementation:
        def run(operands: Operands) -> object:
            ran.append(name)
            return implementation.run(operands)

        return implementation._replace(run=run)

    for name, implementation in list(IMPLEMENTATIONS.items()):
        monkeypatch.setitem(dispatch.IMPLEMENTATIONS, name, watched(name, implementation))
    return ran


def test_attend_runs_the_choice(spy: list[str]) -> None:
    for given in ({}, {"return_lse": True}, {"is_causal": True}):
        attend(*operands(), **given)
        assert spy[-1] == select(attention_spec(*operands(), **given)).name
    if jax.default_backend() == "cpu":
        assert spy == ["reference"] * 3


@pytest.mark.parametrize("name", ANYWHERE)
def test_a_named_implementation_is_the_one_that_runs(name: str, spy: list[str]) -> None:
    attend(*operands(), implementation=name)
    assert spy == [name]


def test_a_named_implementation_that_cannot_serve_never_falls_back(spy: list[str]) -> None:
    query, key, value = operands()
    wide = jnp.concatenate((value, value), -1)
    asked = attention_spec(query, key, wide)._replace(platform="gpu")
    ((name, reason),) = select(asked).rejected
    with pytest.raises(NotImplementedError, match=f"'jax_nn' cannot serve: {reason}"):
        attend(query, key, wide, implementation=name)
    with pytest.raises(NotImplementedError, match="its log-sum-exp has no gradient"):
        attend(query, key, value, implementation=name, return_lse=True)
    assert spy == []


def test_forward_mode_is_refused_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    patched = IMPLEMENTATIONS["jax_nn"]._replace(forward_mode=False)
    monkeypatch.setitem(IMPLEMENTATIONS, "jax_nn", patched)
    asked = request(wants=FORWARD)
    reason = "it cannot be differentiated in forward mode"
    assert select(asked) == Selection("reference", (("jax_nn", reason),))
    assert select(request()).name == "jax_nn"


def test_nothing_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in IMPLEMENTATIONS:
        patched = IMPLEMENTATIONS[name]._replace(why_unsupported=lambda spec: "it rests")
        monkeypatch.setitem(IMPLEMENTATIONS, name, patched)
    with pytest.raises(NotImplementedError, match=r"no implementation serves .*it rests"):
        select(request())


@pytest.mark.parametrize("name", ANYWHERE)
def test_declared_forward_mode_is_there(name: str) -> None:
    x = operands()
    if IMPLEMENTATIONS[name].forward_mode:
        _, tangent = jax.jvp(lambda *x: attend(*x, implementation=name), x, x)
        _, expected = jax.jvp(scaled_dot_product_attention, x, x)
        np.testing.assert_allclose(tangent, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ANYWHERE)
def test_layouts_agree(name: str) -> None:
    first = attend(*operands(), is_causal=True, implementation=name)
    turned = [jnp.swapaxes(x, 1, 2) for x in operands()]
    second = attend(*turned, is_causal=True, implementation=name, layout="TNH")
    np.testing.assert_allclose(jnp.swapaxes(second, 1, 2), first, rtol=1e-6, atol=1e-6)


def test_log_sum_exp_has_one_layout() -> None:
    turned = [jnp.swapaxes(x, 1, 2) for x in operands()]
    output, lse = attend(*turned, layout="TNH", return_lse=True)
    assert output.shape == (B, T, N, H)
    assert lse.shape == (B, N, T)


@pytest.mark.parametrize("name", ANYWHERE)
def test_structure_is_not_materialized_before_it_is_needed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an implementation is handed is the structure, whatever the caller gave."""
    seen = []

    def run(operands: Operands) -> object:
        seen.append(operands.mask)
        return operands.query, None

    patched = IMPLEMENTATIONS[name]._replace(run=run)
    monkeypatch.setitem(IMPLEMENTATIONS, name, patched)
    given = {"mask": padding(jnp.array([2, 3])), "is_causal": True, "implementation": name}
    attend(*operands(), **given)
    assert isinstance(seen[0], Mask)
    assert seen[0].array is None
    assert seen[0].parts == {"causal", "lengths"}


@pytest.mark.parametrize("name", ANYWHERE)
def test_under_vmap_and_jit_with_lengths(name: str) -> None:
    query, key, value = operands()
    mask = padding(jnp.array([4, 0]))

    def call(*x: object) -> jax.Array:
        return attend(*x[:3], mask=x[3], implementation=name)

    whole = call(query, key, value, mask)
    mapped = jax.jit(jax.vmap(call))(query, key, value, mask)
    np.testing.assert_allclose(mapped, whole, rtol=1e-5, atol=1e-6)
    assert (whole[1] == 0).all()


@pytest.mark.loose_promotion
@pytest.mark.parametrize("name", sorted({*ANYWHERE} - {"blockwise"}))
def test_a_bias_in_half_precision(name: str) -> None:
    query, key, value = operands()
    bias = jnp.asarray(np.random.default_rng(4).standard_normal((1, N, T, S)), jnp.bfloat16)
    output = attend(query, key, value, bias=bias, implementation=name)
    expected = attend(query, key, value, bias=bias.astype(jnp.float32), implementation="reference")
    assert output.dtype == jnp.float32
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
