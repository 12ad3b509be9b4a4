"""The arithmetic of costs: by hand, against counted parameters, traces and compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import init_multi_head, multi_head_attention
from mha_book.costs import (
    attention_size,
    compiled_matmul_flops,
    forward_matmul_flops,
    kv_cache_bytes,
    latent_size,
    traced_matmul_flops,
    visible_pair_count,
)
from mha_book.multihead.latent import absorbed_attention, compress, expanded_attention, init_latent
from mha_book.rope import rotary_angles

SIZES = {  # D, N, K, H, C
    "multi-head": (35, 5, 5, 7, 7),
    "grouped": (33, 6, 2, 13, 13),
    "multi-query": (21, 3, 1, 7, 7),
    "other values": (29, 6, 3, 5, 11),
}
B, T = 2, 17


def layer(name):
    d, n, k, h, c = SIZES[name]
    params = jax.eval_shape(
        lambda key: init_multi_head(key, d, n, num_kv_heads=k, head_dim=h, value_dim=c),
        jax.random.key(0),
    )
    return attention_size(d, n, k, h, c), params, jax.ShapeDtypeStruct((B, T, d), jnp.float32)


def causal_layer(params, x):
    return multi_head_attention(params, x, is_causal=True)


def test_a_layer_small_enough_to_count_on_paper():
    size = attention_size(6, 4, 2, 3, 5, has_input_biases=True, has_output_bias=True)
    assert size.weight_count == 6 * 12 + 6 * 6 + 6 * 10 + 20 * 6
    assert size.bias_count == 12 + 6 + 10 + 6
    assert size.parameter_count == 288 + 34
    assert forward_matmul_flops(size, token_count=7) == 2 * 7 * 288
    assert forward_matmul_flops(size, pair_count=49) == 2 * 49 * 4 * 8
    assert kv_cache_bytes(size, position_count=7, bytes_per_element=4) == 7 * 2 * 8 * 4
    assert forward_matmul_flops(size, token_count=7, pair_count=49) == 4032 + 3136


@pytest.mark.parametrize("name", SIZES)
def test_products_of_its_gradient(name):
    size, params, x = layer(name)

    def squared(params, x):
        return jnp.sum(jnp.square(causal_layer(params, x)))

    expected = 3 * forward_matmul_flops(size, token_count=B * T, pair_count=B * T * T)
    gradient = jax.value_and_grad(squared, argnums=(0, 1))
    assert traced_matmul_flops(gradient, params, x) == expected
    assert compiled_matmul_flops(gradient, params, x) == expected


@pytest.mark.parametrize("query_latent_dim", [None, 12])
@pytest.mark.parametrize("is_absorbed", [False, True])
def test_latent_attention(is_absorbed, query_latent_dim):
    sizes = {"latent_dim": 10, "head_dim": 7, "rotary_dim": 4, "value_dim": 3}
    params = jax.eval_shape(
        lambda key: init_latent(key, 22, 5, **sizes, query_latent_dim=query_latent_dim),
        jax.random.key(0),
    )
    size = latent_size(22, 5, *sizes.values(), query_latent_dim, is_absorbed=is_absorbed)
    norms = 10 + (query_latent_dim or 0)
    assert size.parameter_count == sum(x.size for x in jax.tree.leaves(params)) - norms

    def run(params, x):
        angles = rotary_angles(jnp.arange(T), 4)
        attention = absorbed_attention if is_absorbed else expanded_attention
        return attention(params, x, compress(params, x, angles), angles, is_causal=True)

    x = jax.ShapeDtypeStruct((B, T, 22), jnp.float32)
    expected = forward_matmul_flops(size, token_count=B * T, pair_count=B * T * T)
    assert traced_matmul_flops(run, params, x) == expected
    assert compiled_matmul_flops(run, params, x) == expected
    kept = jax.eval_shape(lambda p, x: compress(p, x, rotary_angles(jnp.arange(T), 4)), params, x)
    numbers = sum(x.size for x in jax.tree.leaves(kept))
    assert kv_cache_bytes(size, position_count=B * T, bytes_per_element=4) == 4 * numbers


def test_the_counters_see_through_calls_and_loops():
    x = jnp.ones((3, 3))

    @jax.custom_vjp
    def product(x):
        return x @ x

    product.defvjp(lambda x: (product(x), x), lambda x, g: (g @ x.T + x.T @ g,))
    assert traced_matmul_flops(jax.jit(lambda x: product(x) @ x), x) == 2 * 54
    assert traced_matmul_flops(jax.grad(lambda x: product(x).sum()), x) == 3 * 54

    def loop(x):
        return jax.lax.scan(lambda c, _: (c @ x, None), x, length=5)[0]

    assert traced_matmul_flops(loop, x) == 5 * 54
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.sharding.AbstractMesh((4,), ("devices",), axis_types=auto)
    spec = jax.sharding.PartitionSpec("devices")
    divided = jax.shard_map(lambda x: x @ x.T, mesh=mesh, in_specs=spec, out_specs=spec)
    assert traced_matmul_flops(jax.jit(divided), jnp.ones((12, 3))) == 4 * 54

    def grouped(rows, matrices):  # each row meets the matrix of its group
        return jax.lax.ragged_dot(rows, matrices, jnp.array([2, 4])).sum()

    rows, matrices = jnp.ones((6, 3)), jnp.ones((2, 3, 5))
    assert traced_matmul_flops(grouped, rows, matrices) == 2 * 6 * 3 * 5
    gradient = jax.grad(grouped, argnums=(0, 1))
    assert traced_matmul_flops(gradient, rows, matrices) == 3 * 2 * 6 * 3 * 5
    with pytest.raises(NotImplementedError, match="while"):
        traced_matmul_flops(lambda x: jax.lax.while_loop(lambda c: False, lambda c: c @ c, x), x)
    with pytest.raises(NotImplementedError, match="convolution"):
        traced_matmul_flops(lambda x: jax.lax.conv(x, x, (1,), "SAME"), x[None])
    with pytest.raises(NotImplementedError, match="cond"):
        traced_matmul_flops(lambda x: jax.lax.cond(x.sum() > 0, lambda: x @ x, lambda: x), x)
    with pytest.raises(NotImplementedError, match="while"):
        compiled_matmul_flops(loop, x)


def test_visible_pairs_of_every_small_size():
    for s in range(9):
        for t in range(s + 1):
            for window in (None, *range(s + 3)):  # W keys, the query's own among them
                limit = s if window is None else window
                pairs = [(i, j) for i in range(s - t, s) for j in range(s) if i - limit < j <= i]
                assert visible_pair_count(t, s, window) == len(pairs)


def test_no_integer_of_numpy_overflows(no_type_checks):
    large = 30_000_000
    assert visible_pair_count(np.int32(large), np.int32(large)) == large * (large + 1) // 2
    assert attention_size(*np.array([2**17, 4], np.int32)).parameter_count == 4 * 2**34
    sizes = [2**17, 128, 2**12, 2**10, 2**6, 2**10, 2**12]
    found = latent_size(*np.array(sizes, np.int32), is_absorbed=True)
    assert found == latent_size(*sizes, is_absorbed=True)
    size = attention_size(512, np.int8(8))
    assert size == attention_size(512, 8)
    kept = kv_cache_bytes(size, position_count=np.int32(2**30), bytes_per_element=np.int32(4))
    assert kept == 2**30 * 4 * 1024
