"""Splash attention over several tiles, interpreted, against a loop in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import attend, causal, padding, sliding_window
from mha_book.attention import splash
from mha_book.attention.splash import tile_size
from mha_book.masks import Mask
from tests import oracles

B, N, K, H, C = 2, 2, 1, 8, 7
MASKS = {
    "causal": (causal(), 200, 200),  # two tiles of 128, of which one of four is hidden
    "rows of tiles that see nothing": (causal(-150), 200, 200),
    "a window": (sliding_window(71), 200, 200),
    "no tile at all": (causal(-300), 200, 200),
    "keys after the query alone": (Mask(lower=20), 30, 200),
    "lengths": (padding(jnp.array([0, 130]), jnp.array([30, 13])), 30, 200),
}


@pytest.mark.parametrize("given", MASKS)
def test_several_tiles(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splash, "TILE", 128)
    mask, length, key_length = MASKS[given]
    rng = np.random.default_rng(11)
    shapes = ((B, N, length, H), (B, K, key_length, H), (B, K, key_length, C), (B, N, length, C))
    query, key, value, d_output = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    visible = np.broadcast_to(mask.materialize(length, key_length), (B, N, length, key_length))
    expected = oracles.attention(query, key, value, visible, None, None)[0]
    wanted = oracles.attention_gradients(
        query, key, value, visible, None, None, d_output=d_output, d_lse=None
    )
    unseen = ~visible.any((1, 2))  # (B, S)
    key[np.broadcast_to(unseen[:, None], key.shape[:-1])] = np.nan
    value[np.broadcast_to(unseen[:, None], key.shape[:-1])] = np.inf

    @jax.jit
    def both(*x: jax.Array) -> tuple:
        output, pull = jax.vjp(lambda *x: attend(*x, mask=mask, implementation="splash"), *x[:3])
        return output, *pull(x[3])

    for got, exact in zip(both(query, key, value, d_output), (expected, *wanted[:3]), strict=True):
        np.testing.assert_allclose(got, exact, rtol=0, atol=2e-5 * max(1, np.abs(exact).max()))


@pytest.mark.parametrize("length", [1, 127, 128, 129, 511, 513, 640, 2048, 4097])
def test_tiles_are_whole_registers_and_fill_up_little(length: int) -> None:
    tile = tile_size(length)
    assert tile % 128 == 0
    assert tile <= 512
    tiles = -(-length // tile)
    assert tiles == -(-length // 512)  # no more of them than of the largest
    assert tile * tiles - length < 128 * tiles
