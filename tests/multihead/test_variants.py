"""The variants of the layer against plain loops, and the identities between them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.masks import causal, padding
from mha_book.models import smollm2
from mha_book.multihead import variants
from mha_book.multihead.latent import (
    absorbed_attention,
    compress,
    expanded_attention,
    init_latent,
)
from mha_book.multihead.layer import multi_head_attention
from mha_book.multihead.parameters import MultiHeadParams
from mha_book.rope import rotary_angles, rotate

pytestmark = pytest.mark.unoptimized

D, N, K, H, C, T, P = 11, 6, 3, 7, 8, 5, 2


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def draw(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def layer(kv_heads=K, into=D):
    shapes = ((into, N, H), (D, kv_heads, H), (D, kv_heads, C), (N, C, D))
    return MultiHeadParams(*(draw(n, *shape) for n, shape in enumerate(shapes)))


X = np.random.default_rng(9).normal(size=(T, D))


def softmax(row):
    e = np.exp(row - row.max())
    return e / e.sum()


def rms(x, w, eps):
    return x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def heads_of(q, k, v, weigh=softmax, scale=None):
    """Outputs of the heads, (N, T, C), one query after the other, causal."""
    count, group = len(q), len(q) // len(k)
    out = np.zeros((count, T, v.shape[-1]))
    for h in range(count):
        for i in range(T):
            row = np.array([q[h, i] @ k[h // group, j] for j in range(i + 1)])
            row = row * (1 / np.sqrt(q.shape[-1]) if scale is None else scale)
            weight = weigh(row) if weigh in (softmax, sigmoid) else weigh(row, h)
            for j in range(i + 1):
                out[h, i] += weight[j] * v[h // group, j]
    return out


def plain(p, x=X):
    """Queries, keys and values of a layer by NumPy, (heads, T, width)."""
    p = jax.tree.map(np.asarray, p)
    q = np.stack([x @ p.w_q[:, h] for h in range(p.w_q.shape[1])])
    k = np.stack([x @ p.w_k[:, h] for h in range(p.w_k.shape[1])])
    v = np.stack([x @ p.w_v[:, h] for h in range(p.w_v.shape[1])])
    return q, k, v


def joined(heads, w_o):
    return sum(heads[h] @ np.asarray(w_o)[h] for h in range(len(heads)))


def run(function, *arguments, **options):
    return np.asarray(jax.jit(lambda *a: function(*a, is_causal=True, **options))(*arguments))


def same(one, other):
    np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("each_feature", [False, True])
def test_gates(each_feature):
    p = layer()
    w = draw(20, D, N, C) if each_feature else draw(20, D, N)
    heads = heads_of(*plain(p))
    for h in range(N):
        for i in range(T):
            heads[h, i] *= sigmoid(X[i] @ np.asarray(w)[:, h])
    same(run(variants.gated_attention, p, w, jnp.asarray(X)), joined(heads, p.w_o))


def test_differential_second_version():
    p, w_q2, w = layer(), draw(21, D, N, H), draw(22, D, N)
    q, k, v = plain(p)
    one, two = heads_of(q, k, v), heads_of(plain(p._replace(w_q=w_q2))[0], k, v)
    share = np.stack([sigmoid(X @ np.asarray(w)[:, h]) for h in range(N)])[..., None]
    wanted = joined(one - share * two, p.w_o)
    same(run(variants.differential_attention, p, w_q2, w, jnp.asarray(X)), wanted)


def test_differential_first_version():
    p, w_q2, w_k2, norm = layer(N), draw(21, D, N, H), draw(22, D, N, H), draw(23, C)
    q, k, v = plain(p)
    q2, k2, _ = plain(p._replace(w_q=w_q2, w_k=w_k2))
    heads = rms(heads_of(q, k, v) - 0.3 * heads_of(q2, k2, v), np.asarray(norm), 1e-5)
    found = run(
        lambda p, q, k, n, x, **s: variants.differential_attention(
            p, q, 0.3, x, w_k2=k, norm=n, **s
        ),
        *(p, w_q2, w_k2, norm, jnp.asarray(X)),
    )
    same(found, joined(heads, p.w_o))


def test_differential_is_a_grouped_layer_and_a_subtraction():
    # 2N query heads on K key heads; the second of a pair writes by -mu times the first's W_O.
    p, w_q2, mu = layer(), draw(21, D, N, H), 0.3
    pairs = jnp.reshape(jnp.stack((p.w_q, w_q2), axis=2), (D, 2 * N, H))
    w_o = jnp.reshape(jnp.stack((p.w_o, -mu * p.w_o), axis=1), (2 * N, C, D))
    grouped = run(multi_head_attention, p._replace(w_q=pairs, w_o=w_o), jnp.asarray(X))
    found = run(
        lambda p, w, x, **s: variants.differential_attention(p, w, mu, x, **s),
        *(p, w_q2, jnp.asarray(X)),
    )
    same(found, grouped)


def test_talking_heads():
    p, mix, blend = layer(N), np.asarray(draw(24, N, N)), np.asarray(draw(25, N, N))
    q, k, v = plain(p)
    out = np.zeros((N, T, C))
    for i in range(T):
        rows = np.array([[q[h, i] @ k[h, j] for j in range(i + 1)] for h in range(N)]) / np.sqrt(H)
        mixed = np.array([sum(mix[g, h] * rows[g] for g in range(N)) for h in range(N)])
        weights = np.array([softmax(row) for row in mixed])
        for h in range(N):
            weight = sum(blend[g, h] * weights[g] for g in range(N))
            out[h, i] = sum(weight[j] * v[h, j] for j in range(i + 1))
    found = run(variants.talking_heads_attention, p, draw(24, N, N), draw(25, N, N), jnp.asarray(X))
    same(found, joined(out, p.w_o))


def test_knocking_heads_are_other_weights():
    p, t_q, t_k, t_v = layer(), draw(26, H, H), draw(27, H, H), draw(28, C, C)
    q, k, v = plain(p)
    heads = heads_of(q @ np.asarray(t_q), k @ np.asarray(t_k), v @ np.asarray(t_v))
    knocked = variants.knocking_heads(p, t_q=t_q, t_k=t_k, t_v=t_v)
    same(run(multi_head_attention, knocked, jnp.asarray(X)), joined(heads, p.w_o))


@pytest.mark.parametrize("rotated", [False, True])
def test_normalized(rotated):
    p, w_q, w_k = layer(), draw(29, H - 1), draw(30, H - 1)
    p = p._replace(w_q=p.w_q[..., 1:], w_k=p.w_k[..., 1:])  # an even width
    angles = rotary_angles(jnp.arange(T), H - 1)
    q, k, v = plain(p)
    q, k = rms(q, np.asarray(w_q), 1e-6), rms(k, np.asarray(w_k), 1e-6)
    if rotated:
        q, k = (np.asarray(rotate(jnp.asarray(y), angles)) for y in (q, k))
    options = {"angles": angles} if rotated else {}
    found = run(variants.normalized_attention, p, w_q, w_k, jnp.asarray(X), **options)
    same(found, joined(heads_of(q, k, v), p.w_o))


def test_clipped_scores():
    p = layer(N)
    q, k, _ = plain(p)
    largest = np.array([(q[h] @ k[h].T).max() / np.sqrt(H) for h in range(N)])
    limit = float(np.median(largest))
    clipped = variants.clip_queries_and_keys(p, jnp.asarray(largest), limit)
    q, k, _ = plain(clipped)
    after = np.array([(q[h] @ k[h].T).max() / np.sqrt(H) for h in range(N)])
    same(after, np.minimum(largest, limit))
    assert 0 < (largest > limit).sum() < N


def test_sink_logit():
    p, s = layer(), np.asarray(draw(31, N))

    def weigh(row, h):
        return np.exp(row) / (np.exp(s[h]) + np.exp(row).sum())

    found = run(variants.sink_logit_attention, p, jnp.asarray(s), jnp.asarray(X))
    same(found, joined(heads_of(*plain(p), weigh), p.w_o))


def test_sigmoid():
    p = layer()
    heads = heads_of(*plain(p), lambda row, h: sigmoid(row - np.log(T)))
    same(run(variants.sigmoid_attention, p, jnp.asarray(X)), joined(heads, p.w_o))
    heads = heads_of(*plain(p), lambda row, h: sigmoid(row + 0.5))
    same(run(variants.sigmoid_attention, p, jnp.asarray(X), offset=0.5), joined(heads, p.w_o))


@pytest.mark.parametrize("active", [1, 4, N])
def test_mixture_of_heads(active):
    p, w = layer(), np.asarray(draw(32, D, N))
    heads = heads_of(*plain(p))
    for i in range(T):
        logits = X[i] @ w
        share, order = softmax(logits), np.argsort(-logits)
        for place, h in enumerate(order):
            heads[h, i] *= share[h] if place < active else 0
    found = run(variants.mixture_of_heads, p, jnp.asarray(w), jnp.asarray(X), num_active=active)
    same(found, joined(heads, p.w_o))


def test_windows():
    p, windows = layer(), (1, 2, None, 3, 5, 9)

    def weigh(row, h):
        seen = len(row) if windows[h] is None else min(len(row), windows[h])
        return np.concatenate((np.zeros(len(row) - seen), softmax(row[len(row) - seen :])))

    mask = variants.head_windows(windows, T)
    found = np.asarray(multi_head_attention(p, jnp.asarray(X), mask=mask))
    same(found, joined(heads_of(*plain(p), weigh), p.w_o))


def test_multi_matrix():
    p, w = layer(1, into=4), draw(33, D, 4)
    short = X @ np.asarray(w)
    q = np.stack([short @ np.asarray(p.w_q)[:, h] for h in range(N)])
    k, v = (np.stack([X @ np.asarray(m)[:, 0]]) for m in (p.w_k, p.w_v))
    found = run(variants.multi_matrix_attention, p, w, jnp.asarray(X))
    same(found, joined(heads_of(q, k, v), p.w_o))


def test_tied():
    p, w_kr = layer(), draw(34, D, P)
    angles = rotary_angles(jnp.arange(T), P)
    q, _, v = plain(p)
    turn = lambda y: np.asarray(rotate(jnp.asarray(y), angles))  # noqa: E731
    q = np.concatenate((q[..., :-P], turn(q[..., -P:])), axis=-1)
    shared = np.broadcast_to(turn(X @ np.asarray(w_kr)), (K, T, P))
    k = np.concatenate((v[..., : H - P], shared), axis=-1)
    found = run(variants.tied_attention, p, w_kr, jnp.asarray(X), angles)
    same(found, joined(heads_of(q, k, v), p.w_o))


@pytest.mark.parametrize("constant", [False, True])
def test_tensor_product(constant):
    m, r, u = 4, 2, 3
    ones = [draw(n, D, N, size) for n, size in ((40, m), (41, r), (42, u))]
    if constant:
        ones[1], ones[2] = ones[1][0], ones[2][0]
    twos = [draw(n, D, size, w) for n, size, w in ((43, m, H), (44, r, H), (45, u, C))]
    p = variants.TensorProductParams(
        *(y for pair in zip(ones, twos, strict=True) for y in pair), draw(46, N, C, D)
    )

    def made(heads, features):
        heads, features = np.asarray(heads), np.asarray(features)
        out = np.zeros((N, T, features.shape[-1]))
        for h in range(N):
            for j in range(T):
                for n in range(features.shape[1]):
                    factor = heads[h, n] if heads.ndim == 2 else X[j] @ heads[:, h, n]
                    out[h, j] += factor * (X[j] @ features[:, n]) / features.shape[1]
        return out

    wanted = heads_of(*(made(*pair) for pair in zip(ones, twos, strict=True)))
    found = run(variants.tensor_product_attention, p, jnp.asarray(X))
    same(found, joined(wanted, p.w_o))


@pytest.mark.parametrize("kv_heads", [N, K, 1])
def test_a_grouped_layer_is_a_tensor_product(kv_heads):
    p = layer(kv_heads)
    found = run(variants.tensor_product_attention, variants.as_tensor_product(p), jnp.asarray(X))
    same(found, joined(heads_of(*plain(p)), p.w_o))


def latent_layer():
    sizes = {"latent_dim": 12, "head_dim": 7, "rotary_dim": P, "value_dim": C}
    return init_latent(3, D, N, **sizes, dtype=jnp.float64)._replace(norm_c=None)


def latent_loops(p, blocks, reads):
    """Heads of a latent layer, over blocks of its latent: head h takes those that it reads."""
    p = jax.tree.map(np.asarray, p)
    angles = rotary_angles(jnp.arange(T), P)
    turn = lambda y: np.asarray(rotate(jnp.asarray(y), angles))  # noqa: E731
    shared, size = turn(X @ p.w_kr), p.w_c.shape[1] // blocks
    total = np.zeros((N, T, C))
    for h in range(N):
        q = X @ p.w_q[:, h]
        q = np.concatenate((q[:, :7], turn(q[:, 7:])), axis=-1)
        for block in range(blocks):
            if not reads(h, block):
                continue
            mine = slice(block * size, (block + 1) * size)
            z = X @ p.w_c[:, mine]
            k = np.concatenate((z @ p.w_uk[mine, h], shared), axis=-1)
            total[h] += heads_of(q[None], k[None], (z @ p.w_uv[mine, h])[None])[0]
    return joined(total, p.w_o)


@pytest.mark.parametrize("blocks", [1, 4])
def test_low_rank(blocks):
    p, angles = latent_layer(), rotary_angles(jnp.arange(T), P)
    found = run(variants.low_rank_attention, p, jnp.asarray(X), angles, num_blocks=blocks)
    same(found, latent_loops(p, blocks, lambda h, block: True) / np.sqrt(blocks))


@pytest.mark.parametrize("groups", [1, 3])
def test_grouped_latent(groups):
    p, angles = latent_layer(), rotary_angles(jnp.arange(T), P)
    found = run(variants.grouped_latent_attention, p, jnp.asarray(X), angles, num_groups=groups)
    same(found, latent_loops(p, groups, lambda h, block: h // (N // groups) == block))


def test_grouped_latent_is_latent_with_zeros():
    p, angles = latent_layer(), rotary_angles(jnp.arange(T), P)
    own = np.zeros((12, N, 1))
    for h in range(N):
        own[4 * (h // 2) : 4 * (h // 2 + 1), h] = 1
    zeros = p._replace(w_uk=p.w_uk * own, w_uv=p.w_uv * own)
    found = run(variants.grouped_latent_attention, p, jnp.asarray(X), angles, num_groups=3)
    latent = compress(zeros, jnp.asarray(X), angles)
    same(found, run(expanded_attention, zeros, jnp.asarray(X), latent, angles))


@pytest.mark.parametrize("form", [expanded_attention, absorbed_attention])
def test_a_grouped_layer_is_a_latent_one(form):
    p = layer()._replace(w_q=draw(1, D, N, 4), w_k=draw(2, D, K, 4))
    angles = rotary_angles(jnp.arange(T), 4)
    q, k, v = plain(p)
    q, k = (np.asarray(rotate(jnp.asarray(y), angles)) for y in (q, k))
    wide, side_by_side = variants.as_latent(p), jnp.tile(angles, (1, K))
    latent = compress(wide, jnp.asarray(X), side_by_side)
    assert sum(y.shape[-1] for y in latent) == K * (4 + C)  # as much as was kept
    found = run(form, wide, jnp.asarray(X), latent, side_by_side)
    same(found, joined(heads_of(q, k, v), p.w_o))


@pytest.mark.needs_models
def test_a_layer_of_smollm2_is_a_latent_one_and_a_tensor_product():
    model = smollm2.load_smollm2()
    x = draw(50, 13, model.config.d_model)
    angles = rotary_angles(jnp.arange(13), 64, theta=model.config.rope_theta)
    attention = model.params.layers[17].attention
    p = jax.tree.map(lambda w: jnp.asarray(w, jnp.float64), attention)
    wanted = run(multi_head_attention, p, x, angles=angles)
    wide, side_by_side = variants.as_latent(p), jnp.tile(angles, (1, 3))
    latent = compress(wide, x, side_by_side)
    assert sum(y.shape[-1] for y in latent) == 2 * 3 * 64
    for form in (expanded_attention, absorbed_attention):
        same(run(form, wide, x, latent, side_by_side), wanted)
    product = variants.as_tensor_product(p)
    same(run(variants.tensor_product_attention, product, x, angles=angles), wanted)


def still():
    return jnp.zeros((T, P // 2))


def latent_with_a_norm():
    return latent_layer()._replace(norm_c=jnp.ones(12))


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda p, x: variants.gated_attention(p, draw(0, D, N + 1), x), "w_gate: expected one"),
        (lambda p, x: variants.gated_attention(p, draw(0, D, N, 3), x), r"w_gate: expected \(D"),
        (lambda p, x: variants.mixture_of_heads(p, draw(0, D, N), x, 7), "num_active: expected at"),
        (lambda p, x: variants.sink_logit_attention(p, draw(0, 3), x), r"sink: expected axes \(N,"),
        (
            lambda p, x: variants.talking_heads_attention(p, draw(0, N, N), draw(0, N, N), x),
            "as many key heads",
        ),
        (lambda p, x: variants.clip_queries_and_keys(p, draw(0, N), 1.0), "as many key heads"),
        (lambda p, x: variants.clip_queries_and_keys(layer(N), draw(0, N), 0.0), "threshold"),
        (lambda p, x: variants.knocking_heads(p, t_v=draw(0, H, H)), "t_v: expected the width"),
        (lambda p, x: variants.differential_attention(p, draw(0, D, 3, H), 0.5, x), "w_"),
        (
            lambda p, x: variants.tied_attention(p, draw(0, D, H), x, jnp.zeros((T, H // 2))),
            "w_kr: expected P",
        ),
        (
            lambda p, x: variants.multi_matrix_attention(p, jnp.ones((D, 2), jnp.float32), x),
            "w_reduce: expected the dtype",
        ),
        (
            lambda p, x: variants.low_rank_attention(latent_layer(), x, still(), 5),
            "divisor of R = 12",
        ),
        (
            lambda p, x: variants.low_rank_attention(latent_with_a_norm(), x, still(), 2),
            "norm_c: expected None",
        ),
        (
            lambda p, x: variants.grouped_latent_attention(latent_layer(), x, still(), 4),
            "divides the 6 heads",
        ),
        (lambda p, x: variants.as_latent(p._replace(b_o=draw(0, D))), "no biases"),
        (lambda p, x: variants.as_tensor_product(p._replace(b_o=draw(0, D))), "no biases"),
        (lambda p, x: variants.head_windows((0,), 3), "windows: expected positive integers"),
    ],
)
def test_what_does_not_fit_is_an_error(call, said):
    with pytest.raises(ValueError, match=said):
        call(layer(), jnp.asarray(X))


@pytest.mark.parametrize("groups", [1, 3])
def test_grouped_latent_attention_takes_a_mask_for_each_head(groups):
    p, angles = latent_layer(), rotary_angles(jnp.arange(T), P)
    sees = np.random.default_rng(4).random((N, T, T)) < 0.6
    zeros = np.zeros((12, N, 1))
    for h in range(N):
        size = 12 // groups
        zeros[size * (h * groups // N) : size * (h * groups // N + 1), h] = 1
    own = p._replace(w_uk=p.w_uk * zeros, w_uv=p.w_uv * zeros)
    latent = compress(own, jnp.asarray(X), angles)
    wanted = expanded_attention(own, jnp.asarray(X), latent, angles, mask=jnp.asarray(sees))
    found = variants.grouped_latent_attention(
        p, jnp.asarray(X), angles, groups, mask=jnp.asarray(sees)
    )
    same(found, np.asarray(wanted))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_sigmoid_attention_is_zero_on_what_nobody_sees(value):
    """Zero times NaN is NaN: hidden positions are emptied before the products."""
    p, x = layer(), jnp.asarray(X)
    filled = x.at[3:].set(value)
    mask = padding(jnp.asarray(3), jnp.asarray(3))
    found = variants.sigmoid_attention(p, filled, mask=mask, offset=-0.7)
    q, k, v = plain(p)
    wanted = np.zeros((N, T, C))
    for h, i, j in np.ndindex(N, 3, 3):
        weight = sigmoid(q[h, i] @ k[h // 2, j] / np.sqrt(H) - 0.7)
        wanted[h, i] += weight * v[h // 2, j]
    same(found, joined(wanted, p.w_o))


def test_sigmoid_attention_of_no_position():
    assert variants.sigmoid_attention(layer(), jnp.zeros((2, 0, D))).shape == (2, 0, D)


def test_a_head_that_is_not_taken_may_be_anything():
    p = layer()
    router = jnp.zeros((D, N)).at[:, 2].set(-jnp.inf)  # x > 0: nobody takes head 2
    x = jnp.abs(jnp.asarray(X))
    wanted = variants.mixture_of_heads(p, router, x, N - 1)
    broken = p._replace(w_q=p.w_q.at[:, 2].set(jnp.nan))
    same(variants.mixture_of_heads(broken, router, x, N - 1), np.asarray(wanted))
    assert np.isfinite(wanted).all()


def test_a_row_without_keys_is_zero_whatever_the_sink():
    nobody = jnp.zeros((1, T, T), bool)
    for sink in (-jnp.inf, 0.0, jnp.inf):
        given = layer(), jnp.full(N, sink), jnp.asarray(X)
        assert not variants.sink_logit_attention(*given, mask=nobody).any()


def test_the_share_of_the_second_query_can_be_learned():
    """A number of JAX has a gradient, where one of Python has none."""
    p, x, w = layer(), jnp.asarray(X), draw(20, D, N, H)
    run_at = lambda share: variants.differential_attention(p, w, share, x)  # noqa: E731
    same(run_at(jnp.asarray(0.3)), np.asarray(run_at(0.3)))
    slope = jax.grad(lambda share: run_at(share).sum())(jnp.asarray(0.3))
    by_difference = (run_at(0.8) - run_at(-0.2)).sum()  # it is linear
    np.testing.assert_allclose(slope, by_difference, rtol=1e-9)


def test_masks_reach_the_variants():
    # A causal mask given as such is that of is_causal.
    p, w = layer(), draw(20, D, N)
    x = jnp.asarray(X)
    for function, *given in (
        (variants.gated_attention, p, w, x),
        (variants.sigmoid_attention, p, x),
    ):
        same(run(function, *given), np.asarray(function(*given, mask=causal())))
