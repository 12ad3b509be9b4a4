"""Which implementation runs, and that what was asked for is what runs."""

from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import attend, attend_with_lse, attention_spec, padding, select
from mha_book.attention import dispatch
from mha_book.attention.decode import FEW_QUERIES
from mha_book.attention.dispatch import IMPLEMENTATIONS, AttentionSpec, Implementation
from mha_book.attention.operands import Operands
from mha_book.attention.platform import target_platform
from tests.attention.contract.cases import ANYWHERE

B, N, K, T, S, H = 2, 6, 2, 5, 7, 3


def request(**changes: object) -> AttentionSpec:
    """A plain spec in float32 on a CPU, changed."""
    return AttentionSpec((B, N, T, H), (B, K, S, H), (B, K, S, H), "float32")._replace(**changes)


def half(platform: str, **changes: object) -> AttentionSpec:
    """The same in bfloat16 elsewhere."""
    return request(**{"dtype": "bfloat16", "platform": platform, **changes})


def hopper(**changes: object) -> AttentionSpec:
    """A plain spec in bfloat16 on an NVIDIA GPU that cuDNN serves, changed."""
    wide = {"query_shape": (B, N, T, 64), "key_shape": (B, K, S, 64), "value_shape": (B, K, S, 64)}
    return half("gpu", **{"compute_capability": (9, 0), **wide, **changes})


LSE, FORWARD = frozenset({"lse"}), frozenset({"forward_mode"})
LONG = {"key_shape": (B, K, 600, H), "value_shape": (B, K, 600, H)}  # more keys than a block has
ONE = {"query_shape": (B, N, 1, H)}


def kinds(*names: str) -> dict[str, frozenset[str]]:
    return {"mask_kind": frozenset(names)}


TABLE = [  # the spec, what is chosen, and what was preferred and cannot serve
    # Full precision, and few keys: the reference everywhere.
    *((request(platform=name), "reference", "") for name in ("cpu", "gpu", "tpu", "neuron")),
    (request(dtype="float16"), "reference", ""),
    (request(wants=LSE), "reference", ""),
    (request(**ONE), "decode", ""),
    (request(query_shape=(B, N, FEW_QUERIES, H)), "decode", ""),
    (request(query_shape=(B, N, FEW_QUERIES + 1, H)), "reference", ""),
    (request(platform="gpu", **ONE), "decode", ""),
    (request(key_shape=(B, K, 4, H), **ONE), "reference", ""),
    # More keys than a block has.
    (request(**LONG), "blockwise", ""),
    (request(wants=FORWARD, **LONG), "blockwise", ""),
    (request(platform="tpu", **LONG), "splash", ""),
    (half("tpu", wants=FORWARD, **LONG), "splash", ""),
    (half("tpu", **kinds("band", "lengths"), **LONG), "splash", ""),
    (half("tpu", **kinds("segments"), has_softcap=True, **LONG), "splash", ""),
    (request(platform="tpu", **LONG, **ONE), "jax_nn", ""),
    (half("tpu", wants=LSE, **LONG), "blockwise", "splash"),
    (half("tpu", **kinds("array"), **LONG), "blockwise", "splash"),
    (half("tpu", **kinds("offsets"), **LONG), "blockwise", "splash"),
    (request(platform="tpu", is_partitioned=True, **LONG), "blockwise", "splash"),
    (request(platform="tpu", dtype="float64", **LONG), "blockwise", "splash"),
    (request(platform="tpu", **LONG | {"value_shape": (B, K, 600, 300)}), "blockwise", "splash"),
    (request(platform="gpu", **LONG), "jax_nn", ""),
    *((request(platform="gpu", **given, **LONG), "blockwise", "") for given in (  # no scores held
        {"wants": LSE}, {"has_softcap": True}, kinds("causal", "segments"),
    )),
    (half("gpu", wants=LSE, **LONG), "blockwise", "cudnn"),
    (request(**LONG, **ONE), "decode", ""),
    (request(has_bias=True, **LONG), "reference", "blockwise"),
    (request(platform="gpu", dtype="float64", **LONG), "reference", "jax_nn"),
    (half("neuron", **LONG), "blockwise", ""),
    # Half precision on accelerators.
    *((half("tpu", **given), "jax_nn", "") for given in (
        {}, {"wants": FORWARD}, {"has_bias": True}, kinds("band", "lengths", "array"), ONE
    )),
    *((half("tpu", **given), "reference", "jax_nn") for given in (
        {"value_shape": (B, K, S, 11)}, {"wants": LSE}, {"dtype": "float16"}, {"has_softcap": True}
    )),
    (hopper(), "cudnn", ""),
    (hopper(dtype="float16", compute_capability=(8, 0)), "cudnn", ""),
    (hopper(**kinds("causal")), "cudnn", ""),
    (hopper(**kinds("window", "lengths")), "cudnn", ""),
    (hopper(query_shape=(B, N, 1, 64)), "decode", ""),
    *((hopper(**given), "jax_nn", "cudnn") for given in (
        {"compute_capability": (7, 5)}, {"compute_capability": None}, kinds("band"),
        kinds("offsets"), kinds("segments"), {"wants": FORWARD},
    )),
    (hopper(wants=LSE), "reference", "cudnn jax_nn"),
    # Lengths that an exported program leaves open.
    (request(query_shape=(B, N, "t", H), key_shape=(B, K, "s", H)), "reference", ""),
]  # fmt: skip


@pytest.mark.parametrize("asked, name, rejected", TABLE)
def test_choice(asked: AttentionSpec, name: str, rejected: str) -> None:
    selection = select(asked)
    assert selection.name == name
    assert [rejection[0] for rejection in selection.rejected] == rejected.split()
    assert all(reason for _, reason in selection.rejected)


def operands(dtype: str = "float32") -> tuple[jax.Array, jax.Array, jax.Array]:
    rng = np.random.default_rng(3)
    shapes = ((B, N, T, H), (B, K, S, H), (B, K, S, H))
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for shape in shapes)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the implementations that run."""
    ran: list[str] = []

    def watched(name: str, implementation: Implementation) -> Implementation:
        def run(operands: Operands) -> object:
            ran.append(name)
            return implementation.run(operands)

        return implementation._replace(run=run, by_platform=False)

    for name, implementation in list(IMPLEMENTATIONS.items()):
        monkeypatch.setitem(dispatch.IMPLEMENTATIONS, name, watched(name, implementation))
    return ran


def test_attend_runs_the_choice(spy: list[str]) -> None:
    for given in ({}, {"is_causal": True}):
        attend(*operands(), **given)
        assert spy[-1] == select(attention_spec(*operands(), **given)).name
    if jax.default_backend() == "cpu":
        assert spy == ["reference"] * 2


@pytest.mark.parametrize("name", ANYWHERE)
def test_a_named_implementation_is_the_one_that_runs(name: str, spy: list[str]) -> None:
    attend(*operands(), implementation=name)
    assert spy == [name]


def test_a_named_implementation_that_cannot_serve_never_falls_back(spy: list[str]) -> None:
    query, key, value = operands()
    wide = jnp.concatenate((value, value), -1)
    asked = attention_spec(query, key, wide)._replace(platform="tpu", dtype="bfloat16")
    ((name, reason),) = select(asked).rejected
    with pytest.raises(NotImplementedError, match=f"got 'jax_nn': {reason}"):
        attend(query, key, wide, implementation=name)
    with pytest.raises(NotImplementedError, match="its log-sum-exp has no gradient"):
        attend_with_lse(query, key, value, implementation=name)
    assert spy == []


def test_a_length_may_stay_open_in_an_exported_program() -> None:
    batch, length = jax.export.symbolic_shape("b, t")
    x = jax.ShapeDtypeStruct((batch, length, 8), jnp.float32)
    exported = jax.export.export(jax.jit(lambda x: attend(x, x, x, is_causal=True)))(x)
    drawn = jnp.asarray(np.random.default_rng(0).standard_normal((2, 7, 8)), jnp.float32)
    expected = attend(drawn, drawn, drawn, is_causal=True, implementation="reference")
    np.testing.assert_allclose(exported.call(drawn), expected, rtol=1e-5, atol=1e-6)


def test_a_guard_of_few_queries_stays_one_branch_under_vmap() -> None:
    """With a predicate for each entry ``lax.cond`` would run both branches for all of them."""
    query, key, value = operands()

    def call(query: jax.Array, length: jax.Array) -> jax.Array:
        return attend(query[:, :1], key[0], value[0], mask=padding(length), implementation="decode")

    lengths = jnp.array([3, 7])
    program = str(jax.make_jaxpr(jax.vmap(call))(query, lengths))
    assert program.count("cond[") == 1
    hidden = jnp.where(jnp.arange(S)[:, None] >= 3, jnp.nan, value)
    poisoned = jax.vmap(
        lambda q, v: attend(
            q[:, :1], key[0], v, mask=padding(jnp.array(3)), implementation="decode"
        )
    )(query, hidden)
    assert jnp.isfinite(poisoned).all()


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu", "portable"])
def test_one_implementation_is_traced_for_the_platform_that_is_named(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one function under jit has a trace for each platform, whichever came first."""
    ran: list[str] = []

    def watched(name: str) -> Any:
        def run(operands: Operands, platform: str = "") -> tuple[jax.Array, None]:
            ran.append(name)
            return operands.query, None

        return run

    for name, implementation in list(IMPLEMENTATIONS.items()):
        patched = implementation._replace(run=watched(name))
        monkeypatch.setitem(IMPLEMENTATIONS, name, patched)
    x = jax.ShapeDtypeStruct((2, 600, 8), jnp.bfloat16)
    function = jax.jit(lambda x: attend(x, x, x))
    function.trace(x)
    with target_platform(platform, (9, 0) if platform == "gpu" else None):
        function.trace(x)
    expected = {"cpu": "blockwise", "gpu": "cudnn", "tpu": "splash", "portable": "blockwise"}
    default = {"cpu": "blockwise", "gpu": "cudnn", "tpu": "splash"}[jax.default_backend()]
    assert ran == [default, expected[platform]]


def test_the_second_layer_of_the_same_shapes_is_not_traced_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced: list[int] = []

    def run(operands: Operands) -> tuple[jax.Array, None]:
        traced.append(1)
        return operands.query, None

    patched = IMPLEMENTATIONS["reference"]._replace(run=run)
    monkeypatch.setitem(IMPLEMENTATIONS, "reference", patched)
    query, key, value = operands()
    jax.jit(lambda q: attend(attend(attend(q, key, value), key, value), key, value)).trace(query)
    assert traced == [1]


def test_a_program_for_several_platforms_is_made_on_request() -> None:
    x = jax.ShapeDtypeStruct((2, 600, 8), jnp.float32)
    with target_platform("portable"):
        exported = jax.export.export(jax.jit(attend), platforms=["cpu", "cuda", "tpu"])(x, x, x)
    assert exported.platforms == ("cpu", "cuda", "tpu")
