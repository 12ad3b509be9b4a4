"""What must hold between two calls, on trained heads: no oracle is needed, and none is trusted.

Queries, keys and values are those that a trained layer makes of a sentence. The reference is asked
daily, the other implementations of this machine where slow tests run.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import array_mask, attend, causal, multi_head_attention, padding
from mha_book.attention.online_softmax import finalize, init, merge, update
from mha_book.models.minilm import load_minilm
from mha_book.models.tokens import tokenize
from mha_book.multihead.layer import project_qkv

NAMES = [
    "reference",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("blockwise", "jax_nn", "recompute")),
]
TEXTS = ["The animal did not cross the street because it was too tired.", "A second sentence."]


@pytest.fixture(scope="module")
def heads() -> dict[str, Any]:
    """A trained layer, what it is given, and what it makes of that."""
    model = load_minilm()
    ids, lengths = tokenize(model, TEXTS)
    layer = model.params.layers[2].attention
    x = model.params.embeddings.word[ids] * 4
    query, key, value = project_qkv(layer, x)
    return {"params": layer, "x": x, "qkv": (query, key, value), "lengths": lengths}


def close(got: Any, wanted: Any, atol: float = 2e-6) -> None:
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=atol)


RELATIONS: dict[str, Callable[..., tuple[Any, Any]]] = {}


def relation(function: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
    RELATIONS[function.__name__] = function
    return function


@relation
def permuted_heads(run: Callable[..., Any], q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    order = np.random.default_rng(0).permutation(q.shape[1])
    return run(q[:, order], k[:, order], v[:, order]), run(q, k, v)[:, order]


@relation
def permuted_keys(run: Callable[..., Any], q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    order = np.random.default_rng(1).permutation(k.shape[2])
    return run(q, k[:, :, order], v[:, :, order]), run(q, k, v)


@relation
def permuted_queries(run: Callable[..., Any], q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    order = np.random.default_rng(2).permutation(q.shape[2])
    return run(q[:, :, order], k, v), run(q, k, v)[:, :, order]


@relation
def permuted_batch(run: Callable[..., Any], q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    return run(q[::-1], k[::-1], v[::-1]), run(q, k, v)[::-1]


@relation
def one_sentence_at_a_time(run: Callable[..., Any], q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    alone = [run(q[i : i + 1], k[i : i + 1], v[i : i + 1]) for i in range(len(q))]
    return jnp.concatenate(alone), run(q, k, v)


@relation
def scores_shifted_by_a_bias(run: Callable[..., Any], q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    shift = 7.0 * jnp.ones((1, 1, q.shape[2], 1)).at[0, 0, 1, 0].set(-30.0)
    bias = jnp.broadcast_to(shift, (1, 1, q.shape[2], k.shape[2]))
    return run(q, k, v, bias=bias), run(q, k, v)


@relation
def values_scaled_and_shifted(run: Callable[..., Any], q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    return run(q, k, 2.0 * v + 3.0), 2.0 * run(q, k, v) + 3.0


@relation
def scale_moved_to_the_query(run: Callable[..., Any], q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    return run(4.0 * q, k, v, scale=0.25), run(q, k, v, scale=1.0)


@relation
def every_key_twice(run: Callable[..., Any], q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    return run(q, jnp.concatenate([k, k], 2), jnp.concatenate([v, v], 2)), run(q, k, v)


@relation
def hidden_keys_left_out(run: Callable[..., Any], q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    size = k.shape[2]
    seen = jnp.arange(size) % 3 != 1
    mask = array_mask(jnp.broadcast_to(seen, (1, 1, q.shape[2], size)))
    return run(q, k, v, mask=mask), run(q, k[:, :, seen], v[:, :, seen])


@relation
def causal_prefix(run: Callable[..., Any], q: Any, k: Any, v: Any) -> tuple[Any, Any]:
    """What comes later changes nothing before it."""
    short = run(q[:, :, :5], k[:, :, :5], v[:, :, :5], mask=causal())
    return run(q, k, v, mask=causal())[:, :, :5], short


@pytest.mark.needs_models
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("relation", RELATIONS)
def test_relations_hold_on_trained_heads(heads: dict[str, Any], relation: str, name: str) -> None:
    def run(q: Any, k: Any, v: Any, **options: Any) -> Any:
        return attend(q, k, v, implementation=name, **options)

    try:
        found = RELATIONS[relation](run, *heads["qkv"])
    except NotImplementedError:  # it says so, and is not asked
        assert name == "blockwise"
        assert relation == "scores_shifted_by_a_bias"
        return
    close(*found)


@pytest.mark.needs_models
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("poison", [jnp.nan, jnp.inf, -jnp.inf])
def test_what_is_hidden_may_be_anything(heads: dict[str, Any], name: str, poison: float) -> None:
    """NaN and Inf behind the length of a sentence spread neither forward nor backward."""
    query, key, value = heads["qkv"]
    lengths = jnp.array([4, 3])
    hidden = (jnp.arange(key.shape[2])[None] >= lengths[:, None])[:, None, :, None]

    def total(value: Any, key: Any) -> Any:
        out = attend(query, key, value, mask=padding(lengths), implementation=name)
        return jnp.sum(out * jnp.cos(jnp.arange(out.size)).reshape(out.shape))

    step = jax.value_and_grad(total, (0, 1))
    clean = step(value, key)
    got = step(jnp.where(hidden, poison, value), jnp.where(hidden, poison, key))
    jax.tree.map(close, got, clean)
    assert not np.asarray(jnp.where(hidden, got[1][0], 0)).any()


@pytest.mark.needs_models
def test_a_sequence_split_in_two_is_merged(heads: dict[str, Any]) -> None:
    """The states of two halves of the keys, merged, are the state of all."""
    query, key, value = (x[0, 3] for x in heads["qkv"])
    scores = query @ key.T / np.sqrt(query.shape[-1])

    def state(part: slice) -> Any:
        empty = init((*query.shape[:1], value.shape[-1]), value.dtype)
        return update(empty, scores[:, part], value[part])

    whole = attend(query, key, value)
    for cut in (1, 6, key.shape[0] - 1):
        output, _ = finalize(merge(state(slice(cut)), state(slice(cut, None))))
        close(output, whole)


@pytest.mark.needs_models
def test_the_layer_with_its_heads_in_another_order(heads: dict[str, Any]) -> None:
    params, x = heads["params"], heads["x"]
    order = np.random.default_rng(3).permutation(params.w_q.shape[1])
    moved = params._replace(
        **{n: getattr(params, n)[:, order] for n in ("w_q", "w_k", "w_v")},
        **{n: getattr(params, n)[order] for n in ("b_q", "b_k", "b_v", "w_o")},
    )
    close(multi_head_attention(moved, x), multi_head_attention(params, x), atol=2e-5)


SMALLEST = np.finfo(np.float32).smallest_subnormal


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (1, 3, 1, 2), (3, 1, 2, 1)], ids=str)
@pytest.mark.parametrize("value", [1.0, 1e30, 1e-30, SMALLEST])
def test_lengths_and_widths_of_one(name: str, sizes: tuple[int, ...], value: float) -> None:
    """Whatever the keys: constant values come out as they went in, of any size."""
    queries, keys, width, value_width = sizes
    if name == "jax_nn":
        value_width = width  # it takes no others
    query = jnp.full((1, 1, queries, width), 1e3)
    key = jnp.linspace(-1e3, 1e3, keys * width).reshape(1, 1, keys, width)
    out = attend(query, key, jnp.full((1, 1, keys, value_width), value, jnp.float32),
                 implementation=name)  # fmt: skip
    assert out.shape == (1, 1, queries, value_width)
    # The smallest numbers may be flushed to zero, as processors do: never to anything else.
    flushed = value < np.finfo(np.float32).tiny
    assert np.isin(np.asarray(out), [0, np.float32(value)]).all() if flushed else True
    if not flushed:
        np.testing.assert_allclose(out, value, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_long_accumulation(name: str) -> None:
    """65,536 keys for a few queries, against float64: the error does not grow with the length."""
    length, width = 65_536, 8
    rng = np.random.default_rng(0)
    query, key, value = (rng.standard_normal((n, width)) for n in (4, length, length))
    key[::1000] += 3.0
    scores = query @ key.T / np.sqrt(width)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = (weights / weights.sum(-1, keepdims=True)) @ (value + 1.0)
    got = attend(*(jnp.asarray(x, jnp.float32)[None] for x in (query, key, value + 1.0)),
                 implementation=name)  # fmt: skip
    np.testing.assert_allclose(np.asarray(got)[0], wanted, rtol=2e-6, atol=2e-6)
