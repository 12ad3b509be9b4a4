"""Attention over eight devices of a CPU, run in a process of its own: prints one line a case.

``python -m tests.attention.sharded [--quick]``: what is sharded, how, and the collectives of the
compiled program; an operand that is gathered, or a result that differs, ends it with an error.
"""

import functools
import re
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from mha_book import attend, causal, init_multi_head, multi_head_attention, padding
from mha_book.multihead.parameters import MultiHeadParams

COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")
SPECS = {"batch": P("d"), "heads": P(None, "d"), "both": P("d", "e")}
MASKS: dict[str, Any] = {"none": None, "causal": causal()}


def collectives(function: Callable[..., Any], *arguments: Any) -> dict[str, int]:
    """Count the collectives of the program compiled for sharded arguments."""
    return collectives_of(jax.jit(function).lower(*arguments).compile())


def collectives_of(program: Any) -> dict[str, int]:
    """Count the collectives of a compiled program."""
    text = program.as_text()
    found = {name: len(re.findall(rf"\b{name}(?:-start)?\(", text)) for name in COLLECTIVES}
    return {name: count for name, count in found.items() if count}


def mesh_of(sharded: str, kind: AxisType) -> Any:
    shape, names = ((4, 2), ("d", "e")) if sharded == "both" else ((8,), ("d",))
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(names))


def operands(length: int) -> tuple[jax.Array, ...]:
    rng = np.random.default_rng(length)
    return tuple(jnp.asarray(rng.standard_normal((8, 8, length, 8)), jnp.float32) for _ in "qkv")


@functools.cache
def on_one_device(length: int, mask: str) -> Any:
    """Output and gradients, the output's cotangent being the query."""

    def both(*x: jax.Array) -> Any:
        output, pull = jax.vjp(lambda *x: attend(*x, mask=MASKS[mask]), *x)
        return output, *pull(x[0])

    return jax.jit(both)(*operands(length))


def check_attention(length: int, sharded: str, mask: str, how: str) -> None:
    """Compare forward and gradients with one device's, and demand that nothing is sent."""
    spec, x = SPECS[sharded], operands(length)

    def call(*x: jax.Array) -> jax.Array:
        return attend(*x, mask=MASKS[mask])

    mesh = mesh_of(sharded, AxisType.Explicit if how == "explicit" else AxisType.Auto)
    inner = jax.shard_map(call, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    function = inner if how == "shard_map" else call

    def both(*x: jax.Array) -> Any:
        output, pull = jax.vjp(function, *x)
        return output, *pull(x[0])

    placed = tuple(jax.device_put(a, NamedSharding(mesh, spec)) for a in x)
    with jax.set_mesh(mesh):
        program = jax.jit(both).lower(*placed).compile()
        got, sent = program(*placed), collectives_of(program)
    for mine, theirs in zip(got, on_one_device(length, mask), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=2e-5)
    print(f"attention {length:5d} {sharded:6s} {mask:7s} {how:10s} sends {sent}")
    assert sent == {}, f"{length} {sharded} {mask} {how}: {sent}"


def check_layer(length: int) -> None:
    """Heads over devices: the sum of the output projection is all that is sent."""
    mesh = mesh_of("heads", AxisType.Auto)
    params = init_multi_head(jax.random.key(0), 64, 8)
    by_head = MultiHeadParams(P(None, "d"), P(None, "d"), P(None, "d"), P("d"))
    placed = jax.tree.map(
        lambda a, spec: jax.device_put(a, NamedSharding(mesh, spec)), params[:4], by_head[:4]
    )
    x = jnp.asarray(np.random.default_rng(0).standard_normal((2, length, 64)), jnp.float32)
    x = jax.device_put(x, NamedSharding(mesh, P()))

    def call(weights: Any, x: jax.Array) -> jax.Array:
        return multi_head_attention(MultiHeadParams(*weights), x, is_causal=True)

    sent = collectives(call, placed, x)
    expected = multi_head_attention(params, x, is_causal=True)
    np.testing.assert_allclose(jax.jit(call)(placed, x), expected, rtol=0, atol=2e-5)
    print(f"layer     {length:5d} heads  causal  automatic  sends {sent}")
    assert sent == {"all-reduce": 1}


def check_lengths() -> None:
    """A padded batch: the longest of its sequences is all that devices tell one another."""
    mesh, x = mesh_of("batch", AxisType.Auto), operands(600)
    lengths = jnp.arange(8) * 70 + 20

    def call(lengths: jax.Array, *x: jax.Array) -> jax.Array:
        return attend(*x, mask=padding(lengths))

    place = NamedSharding(mesh, P("d"))
    placed = [jax.device_put(a, place) for a in (lengths, *x)]
    sent = collectives(call, *placed)
    np.testing.assert_allclose(
        jax.jit(call)(*placed), attend(*x, mask=padding(lengths)), rtol=0, atol=2e-5
    )
    print(f"attention   600 batch  lengths automatic  sends {sent}")
    assert set(sent) <= {"all-reduce"}


def main(quick: bool) -> None:
    """Run all cases, or a few of them."""
    jax.config.update("jax_num_cpu_devices", 8)  # before the first array is made
    for length in (600,) if quick else (512, 2048):
        for sharded in ("both",) if quick else SPECS:
            for mask in ("causal",) if quick else MASKS:
                for how in ("automatic", "explicit", "shard_map"):
                    check_attention(length, sharded, mask, how)
        check_layer(length)
    if not quick:
        check_lengths()


if __name__ == "__main__":
    main("--quick" in sys.argv)
