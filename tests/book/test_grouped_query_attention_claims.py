"""The evidence for the claims of the chapter on sharing keys and values."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import MultiHeadParams, attend, multi_head_attention, scaled_dot_product_attention
from mha_book.costs import attention_size, kv_cache_bytes
from mha_book.multihead.grouped import kv_head_index, repeat_kv_heads
from mha_book.specialization.intervals import mean_interval
from tests import oracles
from tests.book.verdicts import decides
from tests.stored.files import result

B, T, N, K, H, D = 2, 5, 6, 3, 7, 11
run = jax.jit(multi_head_attention)


def far(one, other):
    return float(np.abs(np.asarray(one) - np.asarray(other)).max())


def arrays():
    rng = np.random.default_rng(0)
    shapes = ((B, N, T, H), (B, K, T, H), (B, K, T, H))
    return tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)


def layer(num_kv_heads):
    rng = np.random.default_rng(num_kv_heads)
    shapes = ((D, N, H), (D, num_kv_heads, H), (D, num_kv_heads, H), (N, H, D))
    params = MultiHeadParams(*(jnp.asarray(rng.normal(size=s) / 3, jnp.float32) for s in shapes))
    return params, jnp.asarray(rng.normal(size=(T, D)), jnp.float32)


def head_by_head(q, k, v, key_heads):
    """Attention of each query head with the key head named for it, by loops."""
    return oracles.attention(q, k[:, key_heads], v[:, key_heads])[0]


REPEATED = [h // (N // K) for h in range(N)]
TILED = [h % K for h in range(N)]


def test_c28_repeated_not_tiled():
    q, k, v = arrays()
    expected, wrong = (head_by_head(q, k, v, heads) for heads in (REPEATED, TILED))
    assert far(expected, wrong) > 0.1
    assert kv_head_index(N, K).tolist() == REPEATED
    ours = jax.jit(scaled_dot_product_attention)(*map(jnp.asarray, (q, k, v)))
    assert far(ours, expected) < 1e-5
    sequence_first = (jnp.asarray(np.swapaxes(x, 1, 2)) for x in (q, k, v))
    theirs = jax.jit(jax.nn.dot_product_attention)(*sequence_first)
    assert far(np.swapaxes(theirs, 1, 2), expected) < 1e-5
    params, x = layer(K)
    w_k, w_v = (jnp.asarray(np.tile(w, (1, N // K, 1))) for w in (params.w_k, params.w_v))
    tiled = params._replace(w_k=w_k, w_v=w_v)
    assert far(run(repeat_kv_heads(params), x), run(params, x)) < 1e-5
    assert far(run(tiled, x), run(params, x)) > 0.1
    decides("C28", "confirmed", far(ours, expected) < 1e-5)


@pytest.mark.needs_torch
def test_c28_torch_shares_by_the_same_rule():
    import torch

    q, k, v = arrays()
    attention = torch.nn.functional.scaled_dot_product_attention
    theirs = attention(*map(torch.from_numpy, (q, k, v)), enable_gqa=True).numpy()
    assert far(theirs, head_by_head(q, k, v, REPEATED)) < 1e-5
    assert far(theirs, head_by_head(q, k, v, TILED)) > 0.1


def test_c51_the_printed_loop_is_multi_query():
    params, x = layer(K)
    w_q, w_k, w_v, w_o = map(np.asarray, params[:4])

    def loop(key_head):
        """The printed loop over groups; ``key_head`` says which key head a round has made."""
        total = 0.0
        for h in range(N):
            n = key_head(h // (N // K))
            arrays = (x @ w for w in (w_q[:, h], w_k[:, n], w_v[:, n]))
            total = total + head_by_head(*(y[None, None] for y in arrays), [0])[0, 0] @ w_o[h]
        return total

    x = np.asarray(x)
    grouped = run(params, x)
    # A function of the input alone: whichever it is, it is the same one in every round.
    for chosen in range(K):
        unnumbered = loop(lambda _, n=chosen: n)
        one = params._replace(w_k=jnp.asarray(w_k[:, [chosen]]), w_v=jnp.asarray(w_v[:, [chosen]]))
        assert far(unnumbered, run(one, x)) < 1e-5
        assert far(unnumbered, grouped) > 0.01
    numbered = far(loop(lambda k: k), grouped)
    decides("C51", "corrected", numbered < 1e-5, far(unnumbered, grouped) < 0.01)


@pytest.mark.optimized
def test_c29_the_cache_shrinks_and_the_scores_do_not():
    length, heads, width = 256, 32, 32
    kept, room, scores = {}, {}, 4 * heads * length**2
    for k in (32, 8, 1):
        q, kv = (jax.ShapeDtypeStruct((n, length, width), jnp.float32) for n in (heads, k))
        attention = jax.jit(lambda q, k, v: attend(q, k, v, implementation="reference"))
        plan = attention.lower(q, kv, kv).compile().memory_analysis()
        kept[k] = plan.argument_size_in_bytes - 4 * heads * length * width
        room[k] = plan.temp_size_in_bytes
        size = attention_size(heads * width, heads, k)
        assert kept[k] == kv_cache_bytes(size, position_count=length, bytes_per_element=4)
        assert room[k] >= scores
    assert kept[32] == 4 * kept[8] == 32 * kept[1]
    assert min(room.values()) > 0.9 * room[32]
    decides("C29", "corrected", kept[32] == 4 * kept[8], room[8] < room[32] / 2)


def test_c30_six_intervals_of_tiny_models_do_not_decide():
    study = result("sharing.json")
    base = np.array(study["scratch"]["multi-head"]["last"])
    assert len(base) == 5
    for name, row in study["scratch"].items():
        if name == "multi-head":
            continue
        middle, half = mean_interval(100 * (np.array(row["last"]) / base - 1))
        assert abs(middle) < half, name  # no difference is seen,
        assert (abs(middle) + half < 2) == name.startswith("4"), name  # nor excluded with fewer
    decides("C30", "undecided")
