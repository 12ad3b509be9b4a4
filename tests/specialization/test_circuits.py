"""Patching, QK and OV circuits, and QK attribution, against plain loops in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.layers import swiglu
from mha_book.models import smollm2
from mha_book.models.smollm2 import SmolLM2Config, SmolLM2Layer, SmolLM2Params
from mha_book.multihead.parameters import MultiHeadParams
from mha_book.specialization import circuits, patching

L, N, K, H, D, V, T, B = 3, 4, 2, 6, 11, 17, 7, 2
CONFIG = SmolLM2Config(L, N, K, H, D, V, rope_theta=50.0)
HEAD = 3  # of the key/value head 1
rng = np.random.default_rng(5)


def drawn(*shape):
    return jnp.asarray(rng.normal(size=shape) * 0.4, jnp.float32)


def layer():
    attention = MultiHeadParams(drawn(D, N, H), drawn(D, K, H), drawn(D, K, H), drawn(N, H, D))
    return SmolLM2Layer(
        1 + drawn(D), attention, 1 + drawn(D), drawn(D, 13), drawn(D, 13), drawn(13, D)
    )


PARAMS = SmolLM2Params(drawn(V, D), tuple(layer() for _ in range(L)), 1 + drawn(D))
IDS, OTHER_IDS = (jnp.asarray(rng.integers(0, V, (B, T))) for _ in range(2))
run = jax.jit(lambda params, ids: patching.activations(params, ids, config=CONFIG))
(LOGITS, KEPT), (OTHER_LOGITS, OTHERS) = run(PARAMS, IDS), run(PARAMS, OTHER_IDS)


def mix(site, gates, others, ids=IDS):
    hook = patching.mixed(site, jnp.asarray(gates, jnp.float32), others)
    return patching.hooked_forward(PARAMS, ids, hook, config=CONFIG)


def norm(x, gain, epsilon=CONFIG.epsilon):
    x = np.asarray(x, np.float64)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * np.asarray(gain, np.float64)


def turn(x, position):
    """Rotate pairs as complex numbers."""
    x = np.asarray(x, np.float64)
    pairs = x[..., ::2] + 1j * x[..., 1::2]
    pairs = pairs * np.exp(1j * position * CONFIG.rope_theta ** (-np.arange(0, H, 2) / H))
    return np.stack([pairs.real, pairs.imag], -1).reshape(x.shape)


def test_a_hook_that_changes_nothing_gives_the_model():
    plain, records = smollm2.forward_with_intermediates(PARAMS, IDS, config=CONFIG)
    np.testing.assert_allclose(LOGITS, plain, rtol=1e-4, atol=1e-5)
    for number, record in enumerate(records):
        inside = record.intermediates
        np.testing.assert_allclose(KEPT["residual"][number], record.inputs, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(KEPT["weights"][number], inside.weights, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(KEPT["heads"][number], inside.head_outputs, rtol=1e-4, atol=1e-5)
        every = np.repeat(inside.key, N // K, axis=1)
        np.testing.assert_allclose(KEPT["key"][number], every, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("site", ["residual", "query", "key", "value", "weights", "heads", "mlp"])
def test_patching_everything_gives_the_other_run(site):
    """A site alone is enough where nothing goes around it: the stream, or heads and MLPs."""
    zero = np.zeros((L, 1, 1))
    if site == "residual":
        np.testing.assert_allclose(
            mix(site, zero, OTHERS[site]), OTHER_LOGITS, rtol=1e-4, atol=1e-5
        )
    hook = patching.mixed(site, jnp.asarray(zero), OTHERS[site])
    logits, changed = patching.activations(PARAMS, IDS, hook, config=CONFIG)
    np.testing.assert_allclose(changed[site], OTHERS[site], rtol=1e-5, atol=1e-6)
    assert np.abs(logits - LOGITS).max() > 1e-2
    np.testing.assert_allclose(mix(site, zero + 1, OTHERS[site]), LOGITS, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["zero", "mean", "resample"])
def test_one_ablated_head_is_the_model_with_another_output_of_it(kind):
    """The closed form: its layer's output changes by the difference of outputs times W_O."""
    gates, number = np.ones((L, N, 1, 1)), L - 1
    gates[number, HEAD] = 0
    others = {
        "zero": jnp.zeros_like(KEPT["heads"]),
        "mean": OTHERS["heads"].mean((1, 3), keepdims=True),
        "resample": OTHERS["heads"],
    }[kind]
    own, last = np.asarray(KEPT["heads"], np.float64), PARAMS.layers[number]
    heads = own[number].copy()
    heads[:, HEAD] = np.broadcast_to(others, own.shape)[number][:, HEAD]
    x = np.asarray(KEPT["residual"][number], np.float64)
    for b, t, h in np.ndindex(B, T, N):
        x[b, t] += heads[b, h, t] @ np.asarray(last.attention.w_o[h], np.float64)
    inner = jnp.asarray(norm(x, last.feed_forward_norm), jnp.float32)
    x = x + np.asarray(swiglu(inner, last.w_gate, last.w_up, last.w_down))
    wanted = norm(x, PARAMS.output_norm) @ np.asarray(PARAMS.token_embedding, np.float64).T
    np.testing.assert_allclose(mix("heads", gates, others), wanted, rtol=1e-4, atol=1e-5)


def test_activation_patching_is_a_loop_and_attribution_its_slope():
    @jax.jit
    def metric(gates):
        return mix("heads", gates[..., None, None], OTHERS["heads"])[0, -1, 5]

    ones = jnp.ones((L, N))
    found = patching.activation_patching(metric, ones)
    slopes = patching.attribution_patching(metric, ones)
    for place in np.ndindex(L, N):
        one = np.ones((L, N), np.float32)
        one[place] = 0
        assert float(found[place]) == pytest.approx(float(metric(one) - metric(ones)), abs=1e-5)
        one[place] = 1 - 1e-2
        half = np.ones((L, N), np.float32)
        half[place] = 1 + 1e-2
        slope = float(metric(one) - metric(half)) / 2e-2
        assert float(slopes[place]) == pytest.approx(slope, abs=2e-3)


@pytest.mark.parametrize("route", patching.ROUTES)
def test_path_patching_changes_what_one_reader_reads(route):
    sender, change = PARAMS.layers[0].attention.w_o[1], np.zeros((B, T, D))
    for b, t in np.ndindex(B, T):
        change[b, t] = (OTHERS["heads"][0, b, 1, t] - KEPT["heads"][0, b, 1, t]) @ sender
    stream = KEPT["residual"][2]
    read = patching.path_patching(
        PARAMS, stream, jnp.asarray(change, jnp.float32), (2, HEAD), route, config=CONFIG
    )
    last = PARAMS.layers[2]
    normalized = norm(np.asarray(stream) + change, last.attention_norm)
    weight = {"query": last.attention.w_q[:, HEAD], "key": last.attention.w_k[:, 1],
              "value": last.attention.w_v[:, 1]}[route]  # fmt: skip
    for b, t in np.ndindex(B, T):
        wanted = normalized[b, t] @ np.asarray(weight, np.float64)
        wanted = wanted if route == "value" else turn(wanted, t)
        np.testing.assert_allclose(read[b, t], wanted, rtol=1e-4, atol=1e-5)
    untouched = patching.path_patching(
        PARAMS, stream, jnp.zeros((B, T, D)), (2, HEAD), route, config=CONFIG
    )
    np.testing.assert_allclose(untouched, KEPT[route][2][:, HEAD], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("theta", "offset"), [(None, 0), (50.0, 0), (50.0, -3)])
def test_circuits_in_tokens_are_the_full_matrices(theta, offset):
    attention, x, u = PARAMS.layers[1].attention, drawn(5, D), drawn(V, D)
    w_q, w_k, w_v, w_o = (np.asarray(w, np.float64) for w in attention[:4])
    qk = circuits.qk_circuit(attention, HEAD, x, u, offset=offset, theta=theta)
    ov = circuits.ov_circuit(attention, HEAD, x, u)
    for a, s in np.ndindex(5, V):
        query, key = np.asarray(x[a]) @ w_q[:, HEAD], np.asarray(u[s]) @ w_k[:, 1]
        query, key = turn(query, 10), turn(key, 10 + offset)
        assert float(qk[a, s]) == pytest.approx(query @ key / H**0.5, rel=1e-4, abs=1e-5)
        written = np.asarray(x[a]) @ w_v[:, 1] @ w_o[HEAD]
        assert float(ov[a, s]) == pytest.approx(written @ np.asarray(u[s]), rel=1e-4, abs=1e-5)


def test_copying_score_is_that_of_the_large_matrix():
    attention, x, u = PARAMS.layers[1].attention, drawn(V, D), drawn(V, D)
    whole = np.asarray(circuits.ov_circuit(attention, HEAD, x, u), np.float64)
    values = np.linalg.eigvals(whole)
    found = circuits.copying_score(attention, HEAD, x, u)
    assert found == pytest.approx(values.sum().real / np.abs(values).sum(), abs=1e-5)
    even = attention._replace(w_v=jnp.ones((D, K, H)), w_o=jnp.ones((N, H, D)))
    assert circuits.copying_score(even, 0, jnp.ones((V, D)), jnp.ones((V, D))) == pytest.approx(1)


def test_parts_add_up_to_the_stream_and_the_logit():
    parts = circuits.residual_parts(PARAMS, KEPT, L)
    assert len(parts) == len(circuits.part_names(L, N)) == 1 + L * (N + 1)
    for number in range(L):
        inside = parts[: 1 + number * (N + 1)].sum(0)
        np.testing.assert_allclose(inside, KEPT["residual"][number], rtol=1e-5, atol=1e-5)
    logits = circuits.logit_lens(PARAMS, parts.sum(0), config=CONFIG)
    np.testing.assert_allclose(logits, LOGITS, rtol=1e-4, atol=1e-5)


def test_qk_attribution_is_complete_and_each_pair_a_product():
    attention, gain = PARAMS.layers[2].attention, PARAMS.layers[2].attention_norm
    parts = circuits.residual_parts(PARAMS, KEPT, 2)[:, 0]
    query, key = circuits.qk_attribution(
        attention, HEAD, parts, gain, epsilon=CONFIG.epsilon, theta=CONFIG.rope_theta
    )
    i, j = 5, 2
    share = np.asarray(query[:, i] @ key[:, j].T)
    score = np.asarray(KEPT["query"][2, 0, HEAD, i] @ KEPT["key"][2, 0, HEAD, j]) / H**0.5
    assert abs(share.sum() - score) < 1e-4 * abs(score)
    stream = np.asarray(parts, np.float64).sum(0)
    sigma = np.sqrt((stream**2).mean(-1) + CONFIG.epsilon)
    for p, r in np.ndindex(*share.shape):
        asks = turn(
            np.asarray(parts[p, i] * gain) / sigma[i] @ np.asarray(attention.w_q[:, HEAD]), i
        )
        says = turn(np.asarray(parts[r, j] * gain) / sigma[j] @ np.asarray(attention.w_k[:, 1]), j)
        assert share[p, r] == pytest.approx(asks @ says / H**0.5, rel=1e-3, abs=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: circuits.head_weights(PARAMS.layers[0].attention, N), "head"),
        (lambda: patching.activation_patching(lambda gates: gates, jnp.ones(2)), "scalar"),
        (
            lambda: patching.path_patching(
                PARAMS, KEPT["residual"][0], KEPT["residual"][0], (0, 0), "keys", config=CONFIG
            ),
            "route",
        ),
    ],
)
def test_errors_name_the_argument(call, message):
    with pytest.raises(ValueError, match=message):
        call()
