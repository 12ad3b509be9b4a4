"""What is checked over eight devices besides the contract, by name."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from mha_book import attend, init_multi_head, multi_head_attention
from mha_book.masks import causal, padding, sliding_window
from mha_book.multihead.cache import cached_multi_head_attention, init_cache
from mha_book.rope import rotary_angles
from mha_book.sharding import (
    MeshAxes,
    MeshSizes,
    all_to_all_attention,
    compiled_transfers,
    make_placement,
    place,
    plan_cost,
    restore,
    ring_attention,
    shard_cache,
    shard_params,
    sharded_cached_attention,
    sharded_multi_head_attention,
)
from mha_book.sharding.mesh import operand_specs
from mha_book.sharding.tensor_parallel import head_specs
from tests import oracles
from tests.sharding.contract import AXES, CASES, MORE_CASES, mesh_for, run

close = partial(oracles.close, tolerance=1e-5)
CHECKS: dict[str, Callable[[], Any]] = {}
SLOW: dict[str, Callable[[], Any]] = {}


def check(function: Callable[[], Any]) -> Callable[[], Any]:
    CHECKS[function.__name__.replace("_", " ")] = function
    return function


def slow(function: Callable[[], Any]) -> Callable[[], Any]:
    SLOW[function.__name__.replace("_", " ")] = function
    return function


def chosen(is_slow: bool) -> dict[str, Callable[[], Any]]:
    checks, cases = (SLOW, MORE_CASES) if is_slow else (CHECKS, CASES)
    return checks | {f"{c.method} with {c.mask}": lambda case=c: run(case) for c in cases}


def layer(num_kv_heads: int, head_dim: int = 2) -> tuple[Any, Any]:
    """Weights with biases that are not zero, and an input."""
    params = init_multi_head(
        0, 16, 8, num_kv_heads=num_kv_heads, head_dim=head_dim, value_dim=5, use_bias=True
    )
    draw = np.random.default_rng(7).standard_normal
    params = jax.tree.map(lambda w: jnp.asarray(draw(w.shape) / 5, w.dtype), params)
    return params, jnp.asarray(draw((4, 16, 16)), jnp.float32)


def with_gradients(function: Callable[..., Any], *arguments: Any) -> Any:
    def loss(*x: Any) -> Any:
        output = function(*x)
        return jnp.sum(jnp.sin(output)), output

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(*arguments)


def layer_over(
    shape: tuple[int, int, int], num_kv_heads: int, is_explicit: bool, method: str, placement: str
) -> None:
    params, x = layer(num_kv_heads)
    mask = ~padding(jnp.array([0, 9, 1, 12])) | causal()
    options = {"mask": mask, "gates": jnp.linspace(0.5, 1.5, 8), "scale": 0.3}
    angles = rotary_angles(jnp.arange(16), 2)

    def alone(p: Any, x: Any) -> Any:
        return multi_head_attention(p, x, angles=angles, **options)

    mesh = mesh_for(shape, tuple(AXES), is_explicit=is_explicit)
    lies = make_placement(placement, 16, shape[2])

    def over(p: Any, x: Any) -> Any:
        return sharded_multi_head_attention(
            p, x, mesh=mesh, axes=AXES, method=method, placement=placement,
            angles=place(angles, lies), **options,
        )  # fmt: skip

    placed = shard_params(params, "heads", mesh)
    x_placed = jax.device_put(place(x, lies), NamedSharding(mesh, P("batch", "sequence")))
    (_, output), (d_params, d_x) = with_gradients(over, placed, x_placed)
    found = restore(jnp.asarray(np.asarray(output)), lies), d_params
    (_, wanted), (d_params, wanted_x) = with_gradients(alone, params, x)
    close((*found, restore(jnp.asarray(np.asarray(d_x)), lies)), (wanted, d_params, wanted_x))


@check
def the_layer_over_heads_and_positions() -> None:
    """With biases, gates, angles and a union of masks; fewer key heads than devices."""
    layer_over((1, 4, 2), 2, True, "ring", "zigzag")
    layer_over((1, 4, 2), 2, False, "all_to_all", "contiguous")


@slow
def the_layer_over_other_meshes() -> None:
    layer_over((2, 4, 1), 1, False, "ring", "contiguous")
    layer_over((1, 4, 2), 1, True, "ring", "striped")


@check
def the_plain_layer_follows_the_types_of_its_weights() -> None:
    """Called with placed weights, the layer itself runs over the devices: one sum is sent."""
    params, x = layer(8)
    mesh = mesh_for((8,), ("heads",), is_explicit=False)
    placed = shard_params(params, "heads", mesh)
    x_placed = jax.device_put(x, NamedSharding(mesh, P()))
    assert placed.w_k.addressable_shards[0].data.shape == (16, 1, 2)
    program = jax.jit(multi_head_attention).lower(placed, x_placed).compile()
    sent = compiled_transfers(program.as_text())
    assert {kind: calls for kind, (calls, _) in sent.items()} == {"all-reduce": 1}
    close(program(placed, x_placed), multi_head_attention(params, x))


@check
def attention_over_batch_and_heads_sends_nothing() -> None:
    """By blocks, forward and backward, whoever divides: the compiler, types, or ``shard_map``."""
    spec = P("batch", "heads")
    x = tuple(jax.random.normal(jax.random.key(n), (4, 4, 600, 8)) for n in range(3))

    def causal_attention(q: Any, k: Any, v: Any) -> Any:
        return attend(q, k, v, is_causal=True)

    def both(function: Callable[..., Any], *x: Any) -> Any:
        output, pull = jax.vjp(function, *x)
        return output, *pull(x[0])

    expected = jax.jit(partial(both, causal_attention))(*x)
    for is_explicit, by_hand in ((False, False), (True, False), (False, True)):
        mesh = mesh_for((4, 2), ("batch", "heads"), is_explicit)
        divided = jax.shard_map(causal_attention, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
        function = divided if by_hand else causal_attention
        placed = tuple(jax.device_put(a, NamedSharding(mesh, spec)) for a in x)
        with jax.set_mesh(mesh):
            program = jax.jit(partial(both, function)).lower(*placed).compile()
            found = program(*placed)
        assert compiled_transfers(program.as_text()) == {}
        close(found, expected, tolerance=2e-5)


@check
def grouped_heads_in_explicit_types() -> None:
    """``attend`` takes few key heads whose division, or the queries', stands in their types."""
    mesh = mesh_for((2,), ("heads",), is_explicit=True)
    draw = np.random.default_rng(0).standard_normal
    q, k = (jnp.asarray(draw((heads, 6, 3)), jnp.float32) for heads in (4, 2))
    expected = attend(q, k, k, layout="NTH", is_causal=True)
    q = jax.device_put(q, NamedSharding(mesh, P("heads")))
    for spec in (P("heads"), P()):
        placed = jax.device_put(k, NamedSharding(mesh, spec))
        found = jax.jit(lambda q, k: attend(q, k, k, layout="NTH", is_causal=True))(q, placed)
        assert jax.typeof(found).sharding.spec[0] == "heads"
        close(found, expected)


@slow
def forward_mode() -> None:
    """A ring has a forward mode and a second derivative."""
    mesh, striped = mesh_for((2,), ("ring",), is_explicit=False), make_placement("striped", 8, 2)
    x = jax.random.normal(jax.random.key(0), (3, 2, 8, 4))

    def over(q: Any, k: Any, v: Any) -> Any:
        q, k, v = (place(a, striped) for a in (q, k, v))
        options = {"axes": MeshAxes(sequence="ring"), "placement": striped, "is_causal": True}
        return restore(ring_attention(q, k, v, mesh=mesh, **options), striped)

    def plain(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("nth,nsh->nts", q, k) / 2 + jnp.where(jnp.tri(8), 0, -jnp.inf)[None]
        weights = jax.nn.softmax(scores, axis=-1)
        return jnp.einsum("nts,nsc->ntc", weights, v)

    found = []
    for function in (over, plain):

        def loss(*x: Any, function: Any = function) -> Any:
            return jnp.sum(jnp.sin(function(*x)))

        def everything(*x: Any, function: Any = function, loss: Any = loss) -> Any:
            gradient = jax.grad(loss, (0, 1, 2))
            return function(*x), gradient(*x), jax.jvp(function, x, x), jax.jvp(gradient, x, x)[1]

        found.append(jax.jit(everything)(*x))
    close(*found)


@check
def placing_and_restoring_what_is_divided() -> None:
    """On a mesh whose axes are in the types, what comes out of a ring goes into natural order."""
    x = jax.random.normal(jax.random.key(0), (2, 8, 3))
    axes, zigzag = MeshAxes(heads="heads", sequence="ring"), make_placement("zigzag", 8, 2)
    mesh = mesh_for((2, 2), ("heads", "ring"), is_explicit=True)

    @jax.jit
    def there_and_back(x: Any) -> Any:
        placed = place(x, zigzag)
        options = {"mesh": mesh, "axes": axes, "placement": zigzag, "is_causal": True}
        output = ring_attention(placed, placed, placed, **options)
        return placed, restore(output, zigzag)

    placed, found = there_and_back(jax.device_put(x, NamedSharding(mesh, P("heads", "ring"))))
    np.testing.assert_array_equal(placed, x[:, np.array([0, 1, 6, 7, 2, 3, 4, 5])])
    close(found, attend(x, x, x, layout="NTH", is_causal=True))
    assert jax.typeof(found).sharding.spec == P("heads", "ring", None)


def total(transfers: Any) -> dict[str, tuple[int, int]]:
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for transfer in transfers:
        counts[transfer.kind] += transfer.calls
        sizes[transfer.kind] += transfer.operand_bytes
    return {kind: (counts[kind], sizes[kind]) for kind in counts}


def plan_of_attention(
    shape: tuple[int, int, int], num_kv_heads: int, method: str, placement: str, mask: Any
) -> None:
    """Hold collectives and bytes of a compiled program to the formulas."""
    mesh = mesh_for(shape, tuple(AXES), is_explicit=False)
    lower, upper = (None, None) if mask is None else (mask.lower, mask.upper)
    plan = plan_cost(
        batch=4, num_heads=8, length=32, head_dim=5, value_dim=3, num_kv_heads=num_kv_heads,
        devices=MeshSizes(*shape), method=method, placement=placement, lower=lower, upper=upper,
        bytes_per_element=4,
    )  # fmt: skip
    options: dict[str, Any] = {"axes": AXES, "mesh": mesh, "mask": mask}

    def forward(*x: Any) -> Any:
        if method == "all_to_all":
            return all_to_all_attention(*x, **options)
        return ring_attention(*x, placement=placement, **options)

    def gradient(*x: Any) -> Any:
        output, pull = jax.vjp(forward, *x[:3])
        return output, *pull(x[3])

    lies = NamedSharding(mesh, operand_specs(4, AXES))
    *operands, d_output = (
        jax.ShapeDtypeStruct((4, heads, 32, width), jnp.float32, sharding=lies)
        for heads, width in ((8, 5), (num_kv_heads, 5), (num_kv_heads, 3), (8, 3))
    )
    program = jax.jit(forward).lower(*operands).compile()
    assert compiled_transfers(program.as_text()) == total(plan.forward)
    memory = program.memory_analysis()
    assert memory.argument_size_in_bytes + memory.output_size_in_bytes == plan.operand_bytes
    both = jax.jit(gradient).lower(*operands, d_output).compile()
    assert compiled_transfers(both.as_text()) == total((*plan.forward, *plan.backward))


def plan_of_layer(shape: tuple[int, int, int], num_kv_heads: int) -> None:
    mesh = mesh_for(shape, tuple(AXES), is_explicit=False)
    sizes = {"num_kv_heads": num_kv_heads, "head_dim": 5, "value_dim": 3}
    params = jax.eval_shape(lambda: init_multi_head(0, 16, 8, **sizes))
    arguments = jax.tree.map(
        lambda w, spec: jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=NamedSharding(mesh, spec)),
        (params, jax.ShapeDtypeStruct((4, 32, 16), jnp.float32)),
        (head_specs(params, shape[1], "heads"), P("batch", "sequence", None)),
    )

    def over(params: Any, x: Any) -> Any:
        return sharded_multi_head_attention(params, x, axes=AXES, mesh=mesh)

    program = jax.jit(over).lower(*arguments).compile()
    plan = plan_cost(
        batch=4, num_heads=8, length=32, d_model=16, devices=MeshSizes(*shape),
        bytes_per_element=4, **sizes,
    )  # fmt: skip
    assert compiled_transfers(program.as_text()) == total((*plan.forward, *plan.layer))
    given = 4 * (4 // shape[0]) * (32 // shape[2]) * 16  # what goes in
    assert program.memory_analysis().argument_size_in_bytes == plan.weight_bytes + given
    if shape[0] * shape[2] == 1:
        return  # a program names the sums over one device, too

    def gradient(params: Any, x: Any, d_output: Any) -> Any:
        output, pull = jax.vjp(over, params, x)
        return output, pull(d_output)

    lies = jax.tree.map(lambda x: x.sharding, (arguments[1], arguments))
    both = jax.jit(gradient, out_shardings=lies).lower(*arguments, arguments[1]).compile()
    sends = (*plan.forward, *plan.layer, *plan.backward, *plan.layer_backward)
    assert compiled_transfers(both.as_text()) == total(sends)


@check
def a_plan_costs_what_the_program_sends() -> None:
    plan_of_attention((1, 2, 2), 2, "ring", "zigzag", causal())
    plan_of_attention((2, 1, 4), 2, "all_to_all", "contiguous", causal())
    plan_of_layer((1, 4, 2), 2)


@slow
def other_plans_cost_what_the_program_sends() -> None:
    plan_of_attention((1, 1, 8), 8, "ring", "contiguous", sliding_window(4, 2))
    plan_of_attention((2, 2, 2), 2, "ring", "striped", None)
    plan_of_attention((1, 2, 4), 4, "all_to_all", "contiguous", None)
    plan_of_attention((1, 1, 1), 8, "ring", "contiguous", causal())
    plan_of_layer((2, 4, 1), 4)
    plan_of_layer((1, 8, 1), 2)


@check
def decoding_over_a_divided_cache() -> None:
    """A prompt and two tokens over heads, slots and sequences, as one device decodes them."""
    params, x = layer(4)
    counts = jnp.array([7, 5, 1, 6])
    steps = [(x[:, :7], counts), *((x[:, n : n + 1], None) for n in (7, 8))]

    def angles(cache: Any, new: Any) -> Any:
        return rotary_angles(cache.lengths[:, None, None] + jnp.arange(new.shape[1])[None, None], 2)

    @jax.jit
    def alone(params: Any, x: Any, cache: Any, counts: Any, angles: Any) -> Any:
        return cached_multi_head_attention(params, x, cache, counts, angles=angles)

    axes = MeshAxes("batch", "heads", "slots")
    mesh = mesh_for((2, 2, 2), tuple(axes), is_explicit=True)
    plain = init_cache(4, 4, 16, 2, value_dim=5)
    cache, placed = shard_cache(plain, axes, mesh), shard_params(params, "heads", mesh)

    @jax.jit
    def over(params: Any, x: Any, cache: Any, counts: Any, angles: Any) -> Any:
        return sharded_cached_attention(
            params, x, cache, counts, angles=angles, axes=axes, mesh=mesh
        )

    for new, real in steps:
        turns = angles(plain, new)
        output, cache = over(placed, new, cache, real, turns)
        expected, plain = alone(params, new, plain, real, turns)
        close(output, expected)
    close((cache.keys, cache.values, cache.lengths), (plain.keys, plain.values, plain.lengths))
    assert cache.values.addressable_shards[0].data.size * 8 == cache.values.size
    with pytest.raises(ValueError, match="key: expected axes"):  # were written to all of them
        sharded_cached_attention(layer(1)[0], x, plain, axes=MeshAxes(sequence="slots"), mesh=mesh)
