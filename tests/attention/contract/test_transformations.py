"""Every implementation under what JAX does to a function, held to the reference under the same."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import array_mask, attend, causal, padding, sliding_window
from mha_book.attention.dispatch import IMPLEMENTATIONS
from tests.attention.contract.cases import ANYWHERE
from tests.attention.contract.suite import SMALL_BLOCKS
from tests.oracles import close

B, N, K, T, S, H = 2, 6, 2, 11, 13, 3
MASKS: dict[str, Any] = {
    "none": None,
    "causal": causal(2),
    "window": sliding_window(4),
    "lengths": padding(jnp.array([5, 0]), jnp.array([11, 4])),
    "array": array_mask(jnp.asarray(np.random.default_rng(3).random((B, N, T, S)) < 0.4)),
}
UNKNOWN = {"splash": {"array"}}  # what an implementation does not take
Loss = Callable[..., jax.Array]


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(IMPLEMENTATIONS, "blockwise", SMALL_BLOCKS)


def operands(seed: int = 0) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(seed)
    shapes = ((B, N, T, H), (B, K, S, H), (B, K, S, H))
    return tuple(jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes)


def loss_of(name: str, mask: Any, **options: Any) -> Loss:
    def loss(*x: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(attend(*x, mask=mask, implementation=name, **options)))

    return loss


def forward_mode(loss: Loss) -> Any:
    return jax.jvp(loss, operands(), operands(1))


def forward_over_reverse(loss: Loss) -> Any:
    return jax.jvp(jax.grad(loss, (0, 1, 2)), operands(), operands(1))


def reverse_over_reverse(loss: Loss) -> Any:
    def along(*x: jax.Array) -> jax.Array:
        pairs = zip(operands(1), jax.grad(loss, (0, 1, 2))(*x), strict=True)
        return sum(jnp.vdot(d, g) for d, g in pairs)

    return jax.grad(along, (0, 1, 2))(*operands())


def checkpointed(loss: Loss) -> Any:
    return jax.grad(jax.checkpoint(loss), (0, 1, 2))(*operands())


DIFFERENTIATED = (forward_mode, forward_over_reverse, reverse_over_reverse, checkpointed)


FEW = ["lengths", *(pytest.param(m, marks=pytest.mark.slow) for m in MASKS if m != "lengths")]


@pytest.mark.parametrize("transform", DIFFERENTIATED, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mask", FEW)
@pytest.mark.parametrize("name", [name for name in ANYWHERE if name != "reference"])
def test_differentiated(name: str, mask: str, transform: Callable[[Loss], Any]) -> None:
    if mask in UNKNOWN.get(name, ()):
        with pytest.raises(NotImplementedError, match="no array"):
            transform(loss_of(name, MASKS[mask]))
        return
    got, expected = (
        jax.jit(lambda n=n: transform(loss_of(n, MASKS[mask])))() for n in (name, "reference")
    )
    close(got, expected, 5e-5)


@pytest.mark.parametrize("mask", FEW)
@pytest.mark.parametrize("name", ANYWHERE)
def test_mapped_over_the_batch_and_differentiated(name: str, mask: str) -> None:
    """What is mapped over is one more batch axis; keys that are not mapped over are shared."""
    if mask in UNKNOWN.get(name, ()):
        return
    query, key, _ = operands()
    structure, axes = MASKS[mask], MASKS[mask]
    if mask == "lengths" or mask == "array":
        axes = jax.tree.map(lambda _: 0, structure)

    def one(q: jax.Array, k: jax.Array, mask: Any) -> jax.Array:
        return attend(q, k, k, mask=mask, implementation=name)

    def mapped(q: jax.Array, k: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(jax.vmap(one, (0, None, axes))(q, k, structure)))

    def whole(q: jax.Array, k: jax.Array) -> jax.Array:
        shared = jnp.broadcast_to(k[None], (B, *k.shape))
        return jnp.sum(
            jnp.sin(attend(q, shared, shared, mask=structure, implementation="reference"))
        )

    got, expected = (jax.jit(jax.value_and_grad(f, (0, 1)))(query, key[0]) for f in (mapped, whole))
    close(got, expected, 5e-5)


@pytest.mark.parametrize("name", [n for n in ANYWHERE if IMPLEMENTATIONS[n].dropout_multiplier])
def test_dropout_multiplier(name: str) -> None:
    factors = jnp.asarray(np.random.default_rng(9).integers(0, 3, (B, N, T, S)), jnp.float32)
    for transform in (forward_mode, forward_over_reverse):
        got, expected = (
            transform(loss_of(n, causal(), dropout_multiplier=factors)) for n in (name, "reference")
        )
        close(got, expected, 5e-5)


EMPTY = {
    "no query": ((B, N, 0, H), (B, K, S, H), (B, N, 0, H)),
    "no key": ((B, N, T, H), (B, K, 0, H), (B, N, T, H)),
    "no batch": ((0, N, T, H), (0, K, S, H), (0, N, T, H)),
    "no head": ((B, 0, T, H), (B, 0, S, H), (B, 0, T, H)),
    "no width": ((B, N, T, 0), (B, K, S, 0), (B, N, T, 0)),
}


@pytest.mark.parametrize("sizes", EMPTY)
@pytest.mark.parametrize("name", ANYWHERE)
def test_empty_sizes_have_one_rule(name: str, sizes: str) -> None:
    """No key is an empty row: zeros. What has no entries is an array of no entries."""
    query, key, expected = EMPTY[sizes]

    def call(q: jax.Array, k: jax.Array) -> jax.Array:
        return attend(q, k, k, is_causal=True, implementation=name)

    output, gradients = jax.vjp(call, jnp.ones(query), jnp.ones(key))
    assert output.shape == expected
    assert not output.any()
    assert [g.shape for g in gradients(output)] == [query, key]


@pytest.mark.parametrize("name", [n for n in ANYWHERE if n != "jax_nn"])  # it takes one width
def test_keys_without_width_weigh_alike(name: str) -> None:
    value = np.random.default_rng(8).normal(size=(B, K, S, 3)).astype(np.float32)
    query, key = jnp.ones((B, N, T, 0)), jnp.ones((B, K, S, 0))
    got = attend(query, key, jnp.asarray(value), is_causal=True, implementation=name)
    means = np.stack([value[:, :, : i + 1].mean(2) for i in range(T)], 2)
    np.testing.assert_allclose(got, means.repeat(N // K, 1), rtol=0, atol=1e-6)
