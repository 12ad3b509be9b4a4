"""Attention by blocks: their sizes, what is skipped, memory. The contract suite has the rest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import attend
from mha_book.attention.blocks import (
    BlockSizes,
    key_ranges,
    loop_over_keys,
    merge_queries,
    split_keys,
    split_mask,
    split_queries,
    visible_block,
)
from mha_book.attention.blockwise import blockwise_attention
from mha_book.attention.operands import prepare
from mha_book.masks import Mask, array_mask, causal, padding, segments, sliding_window
from tests import oracles

B, N, K, T, S, H = 2, 6, 2, 23, 29, 5
MASKS = {
    "none": None,
    "causal": causal(6),
    "window": sliding_window(5, 2, query_offset=3),
    "lengths": padding(jnp.array([13, 29]), jnp.array([23, 5])) & causal(3),
    "offset by entry": causal(jnp.array([0, 6])),
    "segments": causal(3)
    & segments(
        jnp.asarray(np.repeat([[0, 1, 2], [5, 3, 3]], [9, 9, 5], axis=1)),
        jnp.asarray(np.tile([[0, 1, 7], [3, 5, 4]], 10)[:, :S]),
    ),
    "array": array_mask(jnp.asarray(np.random.default_rng(3).random((B, N, T, S)) < 0.5)),
}


def operands(dtype: str = "float32") -> tuple[jax.Array, ...]:
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = ((B, N, T, H), (B, K, S, H), (B, K, S, H), (B, N, T, H))
    return tuple(
        jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes, strict=True)
    )


def test_the_gradient_of_the_log_sum_exp() -> None:
    """By several blocks, with keys that share a mean; against loops in float64."""
    query, key, value, d_output = operands()
    key, d_lse = key + 3.0, d_output[..., 0]
    visible = np.broadcast_to(MASKS["lengths"].materialize(T, S), (B, N, T, S))
    wanted = oracles.attention_gradients(
        *(np.asarray(x, np.float64) for x in (query, key, value)), visible, None, None,
        d_output=np.asarray(d_output), d_lse=np.asarray(d_lse),
    )  # fmt: skip

    def by_blocks(query, key, value):
        given = prepare(query, key, value, mask=MASKS["lengths"])
        return blockwise_attention(given, BlockSizes(5, 7, 1))

    got = jax.jit(lambda *x: jax.vjp(by_blocks, *x)[1]((d_output, d_lse)))(query, key, value)
    for mine, exact in zip(got, wanted[:3], strict=True):
        np.testing.assert_allclose(mine, exact, rtol=0, atol=2e-5)


def test_cutting_is_undone_by_joining() -> None:
    sizes = BlockSizes(5, 7, 1)
    query, key, *_ = operands()
    shape = (B, K, N // K, T, H)
    rows = jnp.reshape(query, shape)
    cut = split_queries(rows, sizes)
    assert cut.shape == (K, 5, B, 1, 3 * 5, H)
    np.testing.assert_array_equal(merge_queries(cut, shape, sizes), rows)
    # Row 1·5 + 2 of block 3 is the third of the block's queries in the group's second head.
    np.testing.assert_array_equal(cut[1, 3, 0, 0, 7], rows[0, 1, 1, 17])
    keys = split_keys(key, sizes)
    np.testing.assert_array_equal(keys[1, 2, 1, 0, 4], key[1, 1, 18])
    assert not keys[:, 4, ..., 1:, :].any()  # 29 = 4·7 + 1: the rest is padding


@pytest.mark.parametrize("mask", MASKS)
def test_every_visible_pair_is_visited_once_and_no_block_in_vain(mask: str) -> None:
    structure, sizes = Mask() if MASKS[mask] is None else MASKS[mask], BlockSizes(5, 7, 1)
    rows = key_ranges(structure, (B,), T, S)
    ids = structure.query_segments, structure.key_segments
    hidden = split_mask(rows, structure.array, K, S, sizes, None if ids[0] is None else ids)
    visible = np.broadcast_to(structure.materialize(T, S), (B, N, T, S))
    visible = np.pad(visible, [(0, 0), (0, 0), (0, 2), (0, 6)])

    def step(u, seen, masked, x, p):
        block = jnp.ones((B, 1, 15, 7), bool)
        if masked:
            block = jnp.broadcast_to(visible_block(hidden, (x, p, u), (15, 7)), block.shape)
        return seen.at[u].add(block.astype(jnp.int32))

    for chunk, number in np.ndindex(K, 5):
        x, p = jnp.asarray(chunk), jnp.asarray(number)
        start = jnp.zeros((5, B, 1, 15, 7), jnp.int32)
        seen = loop_over_keys(
            hidden, p, lambda u, seen, masked, x=x, p=p: step(u, seen, masked, x, p), start
        )
        seen = np.moveaxis(np.asarray(seen[:, :, 0]), 0, 2).reshape(B, 3, 5, 35)  # (B, G, q, S)
        expected = visible[:, 3 * chunk : 3 * chunk + 3, 5 * number : 5 * number + 5]
        np.testing.assert_array_equal(seen, expected)
        first, whole_first, whole_last, last = np.asarray(hidden.bounds[number])
        assert first <= whole_first <= whole_last <= last
        if structure.array is None and ids[0] is None:
            needed = [expected[..., 7 * u : 7 * u + 7] for u in range(5)]
            any_seen = [u for u, pairs in enumerate(needed) if pairs.any()]
            assert (first, last) == ((any_seen[0], any_seen[-1] + 1) if any_seen else (last, last))
            whole = [u for u, pairs in enumerate(needed) if pairs.all()]
            assert list(range(whole_first, whole_last)) == whole


def test_half_of_a_causal_square_is_skipped() -> None:
    hidden = split_mask(key_ranges(causal(), (1,), 64, 64), None, 1, 64, BlockSizes(8, 8, 1))
    first, whole_first, whole_last, last = np.asarray(hidden.bounds).T
    assert (last - first).sum() == 8 * 9 // 2
    assert (whole_last - whole_first).sum() == 8 * 7 // 2


@pytest.mark.optimized
@pytest.mark.parametrize("backward", [False, True])
def test_no_array_of_the_size_of_the_scores(backward: bool) -> None:
    length = 4096
    x = jax.ShapeDtypeStruct((1, 2, length, 16), jnp.float32)

    def call(query, key, value):
        return attend(query, key, value, is_causal=True).sum()

    function = jax.grad(call, (0, 1, 2)) if backward else call
    compiled = jax.jit(function).lower(x, x, x).compile()
    scores = 4 * 2 * length**2
    assert compiled.memory_analysis().temp_size_in_bytes < scores / 8
