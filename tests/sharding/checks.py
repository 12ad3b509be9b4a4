"""What is checked over eight devices, by name; run by ``python -m tests.sharding.checks``.

A process of its own, since the number of devices has to be asked for before the first array is
made: ``[--all | --exhaustive] [NAME …]``, a line of JSON for each check.
"""

import json
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

CHECKS: dict[str, Callable[[], Any]] = {}
SLOW: set[str] = set()
EVERY = "--all" in sys.argv  # not only the first of several meshes


def check(function: Callable[[], Any], *, slow: bool = False) -> Callable[[], Any]:
    name = function.__name__.replace("_", " ")
    CHECKS[name] = function
    SLOW.update([name] if slow else [])
    return function


def slow(function: Callable[[], Any]) -> Callable[[], Any]:
    """A check that runs with ``--all`` alone."""
    return check(function, slow=True)


def some(meshes: Sequence[Any], number: int) -> Sequence[Any]:
    return meshes if EVERY else meshes[:number]


def close(got: Any, expected: Any, tolerance: float = 1e-5) -> None:
    """Hold every array to what is expected, by a part of its largest entry (1 at least)."""
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        size = max(1.0, float(np.max(np.abs(theirs), initial=0.0)))
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance * size)


def layer(num_kv_heads: int = 8, use_bias: bool = True) -> tuple[Any, Any]:
    """Weights with biases that are not zero, and an input."""
    from mha_book.multihead.parameters import init_multi_head, normal

    params = init_multi_head(
        0, 16, 8, num_kv_heads=num_kv_heads, head_dim=3, value_dim=5, use_bias=use_bias
    )
    keys = iter(jax.random.split(jax.random.key(7), 20))
    params = jax.tree.map(lambda w: w + 10 * normal(next(keys), 1, 1, w.shape, w.dtype), params)
    return params, jax.random.normal(jax.random.key(1), (4, 16, 16))


def with_gradients(function: Callable[..., Any], *arguments: Any) -> Any:
    def loss(*x: Any) -> Any:
        output = function(*x)
        return jnp.sum(jnp.sin(output)), output

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(*arguments)


@check
def layers_over_heads_and_positions() -> None:
    """Every number of key heads, replicated and split, with biases, gates, angles and masks."""
    from mha_book.masks import causal, padding
    from mha_book.multihead.layer import multi_head_attention
    from mha_book.rope import rotary_angles
    from mha_book.sharding.heads import shard_params, sharded_multi_head_attention
    from mha_book.sharding.mesh import MeshAxes
    from tests.sharding.contract import mesh_for

    gates = jnp.linspace(0.5, 1.5, 8)
    mask = causal() & padding(jnp.array([16, 9, 1, 12]))
    axes = MeshAxes("batch", "heads", "sequence")
    meshes = (
        ((1, 4, 2), 2, "split", "ring"),
        ((1, 4, 2), 2, "replicate", "all_to_all"),
        ((1, 8, 1), 8, "replicate", "ring"),
        ((2, 4, 1), 2, "replicate", "ring"),
        ((1, 4, 2), 1, "split", "ring"),
    )
    for shape, num_kv_heads, kv_heads, method in some(meshes, 2):
        params, x = layer(num_kv_heads)
        mesh = mesh_for(shape, tuple(axes), is_explicit=kv_heads == "split")
        options = {"mask": mask, "gates": gates, "scale": 0.3}
        if num_kv_heads == 2:
            params = params._replace(w_q=params.w_q[..., :2], w_k=params.w_k[..., :2])
            params = params._replace(b_q=params.b_q[..., :2], b_k=params.b_k[..., :2])
            options["angles"] = rotary_angles(jnp.arange(16), 2)
        plain = with_gradients(lambda p, x, o=options: multi_head_attention(p, x, **o), params, x)
        placed = shard_params(params, "heads", mesh, kv_heads)
        x = jax.device_put(x, NamedSharding(mesh, P("batch", "sequence")))
        more = {"mesh": mesh, "axes": axes, "method": method, "kv_heads": kv_heads, **options}
        over = with_gradients(
            lambda p, x, o=more: sharded_multi_head_attention(p, x, **o), placed, x
        )
        close(over, plain)


@check
def the_plain_layer_follows_the_types_of_its_weights() -> None:
    """Called with placed weights, the layer itself runs over the devices: one sum is sent."""
    from mha_book.multihead.layer import multi_head_attention
    from mha_book.sharding.heads import shard_params
    from tests.attention.sharded import collectives
    from tests.sharding.contract import mesh_for

    params, x = layer()
    mesh = mesh_for((8,), ("heads",), is_explicit=False)
    placed = shard_params(params, "heads", mesh)
    x_placed = jax.device_put(x, NamedSharding(mesh, P()))
    assert placed.w_k.addressable_shards[0].data.shape == (16, 1, 3)
    assert collectives(multi_head_attention, placed, x_placed) == {"all-reduce": 1}
    close(jax.jit(multi_head_attention)(placed, x_placed), multi_head_attention(params, x))


@slow
def latent_attention_over_heads() -> None:
    """Both forms over eight devices; the latent is made from whole weights by every device."""
    from mha_book.multihead.latent import (
        absorbed_attention,
        compress,
        expanded_attention,
        init_latent,
    )
    from mha_book.rope import rotary_angles
    from mha_book.sharding.heads import shard_params, sharded_latent_attention
    from mha_book.sharding.mesh import MeshAxes
    from tests.sharding.contract import mesh_for

    params = init_latent(
        0, 16, 8, latent_dim=7, head_dim=5, rotary_dim=2, value_dim=3, query_latent_dim=11
    )
    x, angles = jax.random.normal(jax.random.key(1), (4, 13, 16)), rotary_angles(jnp.arange(13), 2)
    mesh = mesh_for((2, 4), ("batch", "heads"), is_explicit=True)
    placed = shard_params(params, "heads", mesh)
    assert placed.w_uk.addressable_shards[0].data.shape == (7, 2, 5)
    assert placed.w_c.addressable_shards[0].data.shape == (16, 7)
    x_placed = jax.device_put(x, NamedSharding(mesh, P("batch")))
    for form, attend in (("expanded", expanded_attention), ("absorbed", absorbed_attention)):

        def plain(params: Any, x: Any, attend: Any = attend) -> Any:
            return attend(params, x, compress(params, x, angles), angles, is_causal=True)

        def over(params: Any, x: Any, form: str = form) -> Any:
            axes = MeshAxes("batch", "heads")
            return sharded_latent_attention(
                params, x, angles, mesh=mesh, axes=axes, form=form, is_causal=True
            )

        close(with_gradients(over, placed, x_placed), with_gradients(plain, params, x))


@slow
def what_nobody_sees_may_be_anything() -> None:
    """NaN and infinity behind the lengths spread nowhere, forward or backward."""
    from mha_book.masks import padding
    from mha_book.sharding.mesh import MeshAxes
    from mha_book.sharding.ring import ring_attention
    from tests.sharding.contract import mesh_for

    mesh = mesh_for((4,), ("ring",), is_explicit=False)
    lengths = jnp.array([3, 8])
    clean = jax.random.normal(jax.random.key(0), (3, 2, 2, 8, 4))
    late = jnp.arange(8)[None, :] >= lengths[:, None]
    bad = jnp.where(late[None, :, None, :, None], jnp.nan, clean)
    for implementation in ("reference", "blockwise"):

        def both(x: Any, implementation: str = implementation) -> Any:
            def call(q: Any, k: Any, v: Any) -> Any:
                return ring_attention(
                    q, k, v, mesh=mesh, axes=MeshAxes(sequence="ring"),
                    mask=padding(lengths, lengths), implementation=implementation,
                )  # fmt: skip

            output, pull = jax.vjp(call, *x)
            return output, pull(output)

        poisoned, whole = jax.jit(both)(bad), jax.jit(both)(clean)
        close(poisoned, whole)


@slow
def log_sum_exp_and_forward_mode() -> None:
    """The log-sum-exp has a gradient, and the ring a forward mode and a second derivative."""
    from mha_book import attend_with_lse
    from mha_book.sharding.mesh import MeshAxes
    from mha_book.sharding.placement import make_placement, place, restore
    from mha_book.sharding.ring import ring_attention
    from tests.sharding.contract import mesh_for

    mesh, striped = mesh_for((2,), ("ring",), is_explicit=False), make_placement("striped", 8, 2)
    x = jax.random.normal(jax.random.key(0), (3, 2, 8, 4))

    def over(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (place(a, striped) for a in (q, k, v))
        options = {"axes": MeshAxes(sequence="ring"), "placement": striped, "is_causal": True}
        output, lse = ring_attention(q, k, v, mesh=mesh, return_lse=True, **options)
        return restore(output, striped), restore(lse, striped, -1)

    def plain(q: Any, k: Any, v: Any) -> Any:
        return attend_with_lse(q, k, v, is_causal=True, implementation="reference")

    found = []
    for function in (over, plain):

        def loss(*x: Any, function: Any = function) -> Any:
            output, lse = function(*x)
            return jnp.sum(jnp.sin(output)) + jnp.sum(jnp.cos(lse))

        def everything(*x: Any, function: Any = function, loss: Any = loss) -> Any:
            gradient = jax.grad(loss, (0, 1, 2))
            return function(*x), gradient(*x), jax.jvp(function, x, x), jax.jvp(gradient, x, x)[1]

        found.append(jax.jit(everything)(*x))
    close(*found)


@check
def placing_and_restoring_what_is_divided() -> None:
    """On a mesh whose axes are in the types, what comes out of a ring goes into natural order."""
    from mha_book import attend_with_lse
    from mha_book.sharding.mesh import MeshAxes
    from mha_book.sharding.placement import make_placement, place, restore
    from mha_book.sharding.ring import ring_attention
    from tests.sharding.contract import mesh_for

    x = jax.random.normal(jax.random.key(0), (2, 8, 3))
    axes, zigzag = MeshAxes(heads="heads", sequence="ring"), make_placement("zigzag", 8, 2)
    mesh = mesh_for((2, 2), ("heads", "ring"), is_explicit=True)

    @jax.jit
    def there_and_back(x: Any) -> Any:
        placed = place(x, zigzag)
        options = {"mesh": mesh, "axes": axes, "placement": zigzag, "is_causal": True}
        output, lse = ring_attention(placed, placed, placed, return_lse=True, **options)
        return placed, restore(output, zigzag), restore(lse, zigzag, -1)

    placed, *found = there_and_back(jax.device_put(x, NamedSharding(mesh, P("heads", "ring"))))
    np.testing.assert_array_equal(placed, x[:, np.array([0, 1, 6, 7, 2, 3, 4, 5])])
    close(tuple(found), attend_with_lse(x, x, x, is_causal=True))
    assert jax.typeof(found[0]).sharding.spec == P("heads", "ring", None)


@check
def a_plan_costs_what_the_program_sends() -> None:
    """Collectives of compiled programs, their number and their bytes, equal the formulas."""
    from collections import Counter

    from mha_book.masks import causal, sliding_window
    from mha_book.multihead.parameters import init_multi_head
    from mha_book.sharding.all_to_all import all_to_all_attention
    from mha_book.sharding.heads import head_specs, sharded_multi_head_attention
    from mha_book.sharding.mesh import MeshAxes, MeshSizes, operand_specs
    from mha_book.sharding.plan import compiled_transfers, plan_cost
    from mha_book.sharding.ring import ring_attention
    from tests.sharding.contract import mesh_for

    def total(transfers: Any) -> dict[str, tuple[int, int]]:
        counts: Counter[str] = Counter()
        sizes: Counter[str] = Counter()
        for transfer in transfers:
            counts[transfer.kind] += transfer.calls
            sizes[transfer.kind] += transfer.operand_bytes
        return {kind: (counts[kind], sizes[kind]) for kind in counts}

    def same(got: Any, wanted: Any) -> None:
        assert got == wanted, f"{shape} {num_kv_heads} key heads: {got}, by the plan {wanted}"

    def compiled(function: Any, *arguments: Any) -> Any:
        return jax.jit(function).lower(*arguments).compile()

    axes = MeshAxes("batch", "heads", "sequence")
    sizes = {"batch": 4, "num_heads": 8, "length": 32, "head_dim": 5, "value_dim": 3}
    plans = (
        ((1, 2, 2), 2, "ring", "zigzag", causal()),
        ((2, 1, 4), 4, "all_to_all", "contiguous", causal()),
        ((1, 1, 8), 8, "ring", "contiguous", sliding_window(4, 2)),
        ((2, 2, 2), 2, "ring", "striped", None),
        ((1, 1, 8), 4, "ring", "zigzag", causal()),
        ((1, 1, 8), 8, "ring", "contiguous", sliding_window(6)),
        ((1, 2, 4), 4, "all_to_all", "contiguous", None),
        ((2, 1, 4), 8, "all_to_all", "contiguous", causal()),
        ((1, 1, 1), 8, "ring", "contiguous", causal()),
    )
    for shape, num_kv_heads, method, placement, mask in some(plans, 3):
        mesh = mesh_for(shape, tuple(axes), is_explicit=False)
        lower, upper = (None, None) if mask is None else (mask.lower, mask.upper)
        plan = plan_cost(
            **sizes, num_kv_heads=num_kv_heads, devices=MeshSizes(*shape), method=method,
            placement=placement, lower=lower, upper=upper, bytes_per_number=4,
        )  # fmt: skip
        options: dict[str, Any] = {"axes": axes, "mesh": mesh, "mask": mask}
        if method == "ring":
            options["placement"] = placement

        def attend(q: Any, k: Any, v: Any, options: Any = options, method: str = method) -> Any:
            function = ring_attention if method == "ring" else all_to_all_attention
            return function(q, k, v, **options)

        def gradient(*x: Any, attend: Any = attend) -> Any:
            output, pull = jax.vjp(attend, *x[:3])
            return output, *pull(x[3])

        place = NamedSharding(mesh, operand_specs(4, axes))
        q, k, v, d_output = (
            jax.ShapeDtypeStruct((4, heads, 32, width), jnp.float32, sharding=place)
            for heads, width in ((8, 5), (num_kv_heads, 5), (num_kv_heads, 3), (8, 3))
        )
        program = compiled(attend, q, k, v)
        same(compiled_transfers(program.as_text()), total(plan.forward))
        memory = program.memory_analysis()
        held = memory.argument_size_in_bytes + memory.output_size_in_bytes
        same(held, plan.operand_bytes)
        both = compiled_transfers(compiled(gradient, q, k, v, d_output).as_text())
        same(both, total((*plan.forward, *plan.backward)))

    sizes = {**sizes, "d_model": 16}
    layers = (
        ((1, 8, 1), 2, "split"),
        ((2, 4, 1), 4, "replicate"),
        ((1, 8, 1), 2, "replicate"),
        ((1, 4, 2), 1, "split"),
    )
    for shape, num_kv_heads, kv_heads in some(layers, 2):
        mesh = mesh_for(shape, tuple(axes), is_explicit=False)
        shared = {"num_kv_heads": num_kv_heads, "head_dim": 5, "value_dim": 3}
        params = jax.eval_shape(lambda s=shared: init_multi_head(0, 16, 8, **s))
        specs = head_specs(params, shape[1], "heads", kv_heads)
        placed, x = jax.tree.map(
            lambda w, spec, m=mesh: jax.ShapeDtypeStruct(
                w.shape, w.dtype, sharding=NamedSharding(m, spec)
            ),
            (params, jax.ShapeDtypeStruct((4, 32, 16), jnp.float32)),
            (specs, P("batch", "sequence", None)),
        )
        more = {"axes": axes, "mesh": mesh, "kv_heads": kv_heads}
        program = compiled(lambda p, x, o=more: sharded_multi_head_attention(p, x, **o), placed, x)
        plan = plan_cost(
            **sizes, num_kv_heads=num_kv_heads, devices=MeshSizes(*shape), kv_heads=kv_heads,
            bytes_per_number=4,
        )  # fmt: skip
        same(compiled_transfers(program.as_text()), total((*plan.forward, *plan.layer)))
        given = 4 * (4 // shape[0]) * (32 // shape[2]) * 16  # what goes in
        same(program.memory_analysis().argument_size_in_bytes, plan.weight_bytes + given)


@check
def decoding_over_a_divided_cache() -> None:
    """A prompt and three tokens over heads, slots and sequences, as one device decodes them."""
    from mha_book.multihead.cache import cached_multi_head_attention, init_cache
    from mha_book.rope import rotary_angles
    from mha_book.sharding.decode import shard_cache, sharded_cached_attention
    from mha_book.sharding.heads import shard_params
    from mha_book.sharding.mesh import MeshAxes
    from tests.sharding.contract import mesh_for

    params, x = layer(4)
    params = params._replace(w_q=params.w_q[..., :2], w_k=params.w_k[..., :2])
    params = params._replace(b_q=params.b_q[..., :2], b_k=params.b_k[..., :2])
    counts = jnp.array([7, 5, 1, 6])
    steps = [(x[:, :7], counts), *((x[:, n : n + 1], None) for n in (7, 8))]

    def angles(cache: Any, new: Any) -> Any:
        return rotary_angles(cache.lengths[:, None, None] + jnp.arange(new.shape[1])[None, None], 2)

    @jax.jit
    def alone(params: Any, x: Any, cache: Any, counts: Any, angles: Any) -> Any:
        return cached_multi_head_attention(params, x, cache, counts, angles=angles)

    plain, expected = init_cache(4, 4, 16, 2, value_dim=5), []
    for new, real in steps:
        turns = angles(plain, new)
        output, plain = alone(params, new, plain, real, turns)
        expected.append(output)
    meshes = (
        ((2, 2, 2), MeshAxes("batch", "heads", "slots")),
        ((4,), MeshAxes(heads="heads")),
        ((8,), MeshAxes(sequence="slots")),
    )
    for shape, axes in some(meshes, 1):
        names = tuple(name for name in axes if name is not None)
        mesh = mesh_for(shape, names, is_explicit=True)
        cache = shard_cache(init_cache(4, 4, 16, 2, value_dim=5), axes, mesh)
        placed = params if axes.heads is None else shard_params(params, "heads", mesh)
        step = jax.jit(
            lambda p, x, cache, counts, angles, a=axes, m=mesh: sharded_cached_attention(
                p, x, cache, counts, angles=angles, axes=a, mesh=m
            )
        )
        for (new, real), wanted in zip(steps, expected, strict=True):
            turns = angles(jax.device_get(cache), new)
            output, cache = step(placed, new, cache, real, turns)
            close(output, wanted)
        close((cache.keys, cache.values, cache.lengths), (plain.keys, plain.values, plain.lengths))
        held = cache.values.addressable_shards[0].data.size
        assert held * np.prod(shape) == cache.values.size


def contract(exhaustive: bool) -> dict[str, Callable[[], Any]]:
    """The cases of the contract, each a check of its own."""
    from tests.sharding.contract import full, pairwise, run

    chosen = full() if exhaustive else pairwise()
    return {f"contract {'-'.join(map(str, case))}": lambda case=case: run(case) for case in chosen}


def main(arguments: list[str]) -> None:
    import jaxtyping

    jaxtyping.install_import_hook("mha_book", "beartype.beartype")
    warnings.simplefilter("error")
    jax.config.update("jax_num_cpu_devices", 8)
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    jax.config.update("jax_numpy_rank_promotion", "raise")
    exhaustive = "--exhaustive" in arguments
    wanted = [name for name in arguments if not name.startswith("--")]
    checks = contract(True) if exhaustive else {**CHECKS, **({} if EVERY else contract(False))}
    if not (EVERY or wanted):
        checks = {name: function for name, function in checks.items() if name not in SLOW}
    for name, function in checks.items():
        if wanted and not any(part in name for part in wanted):
            continue
        start, complaint = time.process_time(), ""
        try:
            function()
        except Exception:
            complaint = traceback.format_exc(limit=-6)
        seconds = round(time.process_time() - start, 1)
        print(json.dumps({"name": name, "complaint": complaint, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
