"""The forms of SmolLM2 that the benchmark of removed heads compares, and their arithmetic."""

import json
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import MultiHeadParams, costs
from mha_book.models import smollm2
from mha_book.models.smollm2_params import SmolLM2Config, SmolLM2Layer, SmolLM2Params
from mha_book.pruning.order import keep_without, removal_order
from mha_book.pruning.removal import fold_gates, prune_heads, prune_model

__all__ = [
    "BASELINE",
    "FRACTION",
    "Subject",
    "Variant",
    "Workload",
    "cost_of",
    "made_up",
    "trained",
    "variants_of",
]

BASELINE = "whole"
FRACTION = 0.3
HEADS = Path(__file__).resolve().parents[1] / "book" / "data" / "heads.json"


class Workload(NamedTuple):
    """How much is computed: a prompt of `length` tokens, or one more token after as many."""

    phase: str  # "prefill" or "decode"
    batch: int
    length: int


class Subject(NamedTuple):
    """A model, and how much its heads matter: importance (L, N)."""

    params: SmolLM2Params
    config: SmolLM2Config
    importance: np.ndarray


class Variant(NamedTuple):
    """A form of the model: its parameters, which heads are left, and which key heads it caches.

    `closed` is the whole model with the rows of W_O of removed heads at zero, `key_heads` the
    number of the key head of `closed` that each key head is, layer by layer.
    """

    params: SmolLM2Params
    keep: np.ndarray
    closed: SmolLM2Params
    key_heads: list[np.ndarray]
    remark: str


def trained() -> Subject:
    """SmolLM2, its heads ranked by the stored gradients of their gates."""
    model = smollm2.load_smollm2()
    scores = json.loads(HEADS.read_text())["importance"]["gate gradient"]
    return Subject(model.params, model.config, np.array(scores))


def made_up() -> Subject:
    """Two small layers of random numbers, to see that all of it runs."""
    config = SmolLM2Config(2, 6, 2, 4, 12, 11, 64)
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> jax.Array:
        return jnp.asarray(rng.normal(size=shape) / 3, jnp.float32)

    n, k, h, d = config.num_heads, config.num_kv_heads, config.head_dim, config.d_model

    def layer() -> SmolLM2Layer:
        attention = MultiHeadParams(draw(d, n, h), draw(d, k, h), draw(d, k, h), draw(n, h, d))
        return SmolLM2Layer(draw(d), attention, draw(d), draw(d, 20), draw(d, 20), draw(20, d))

    params = SmolLM2Params(draw(config.vocab_size, d), (layer(), layer()), draw(d))
    # One head of a group of three, and a whole group: left uneven and left even.
    return Subject(params, config, np.array([[0.1, 9, 9, 9, 9, 9], [9, 9, 9, 0.1, 0.1, 0.1]]))


def variants_of(subject: Subject) -> dict[str, Variant]:
    """All forms of a model: whole, closed by W_O, three smaller ones.

    30% of the heads go: one by one in `heads`, uneven groups being padded or their key heads
    repeated, and with all query heads of a key head in `groups`.
    """
    params, config, importance = subject
    group = config.num_heads // config.num_kv_heads
    keeps = {
        size: keep_without(
            removal_order(importance, size),
            round(FRACTION * importance.size / size) * size,
            importance.shape,
        )
        for size in (1, group)
    }
    keys = np.arange(config.num_kv_heads, dtype=np.float32)[None, :, None]
    numbered = MultiHeadParams(
        *(jnp.ones((1, config.num_heads, 1)), jnp.asarray(keys), jnp.asarray(keys)),
        jnp.ones((config.num_heads, 1, 1)),
    )

    def closed(keep: np.ndarray) -> SmolLM2Params:
        return fold_gates(params, jnp.asarray(keep, jnp.float32))

    def smaller(keep: np.ndarray, uneven: str, remark: str) -> Variant:
        key_heads = [
            np.asarray(prune_heads(numbered, row, uneven=uneven).w_k)[0, :, 0].astype(int)
            for row in keep
        ]
        pruned = prune_model(params, keep, uneven=uneven)
        return Variant(pruned, keep, closed(keep), key_heads, remark)

    every = np.ones_like(keeps[1])
    all_keys = [np.arange(config.num_kv_heads)] * config.num_layers
    single = closed(keeps[1])
    return {
        BASELINE: Variant(params, every, params, all_keys, "all heads"),
        "masked": Variant(single, keeps[1], single, all_keys, "rows of W_O at zero"),
        "heads, pad": smaller(keeps[1], "pad", "removed; smaller groups padded"),
        "heads, repeat": smaller(keeps[1], "repeat", "removed; key heads repeated"),
        "groups": smaller(keeps[group], "raise", "removed with their key heads"),
    }


def cost_of(
    variant: Variant, config: SmolLM2Config, workload: Workload, layers: list[int]
) -> dict[str, int]:
    """What a form of the model computes and reads, as arithmetic.

    Returns:
        FLOPs and bytes, of the attention of the given layers and of the whole model: every weight
        read once, and every cached number where there is a cache. All pairs are counted, those that
        a causal mask hides too, since they are computed.
    """
    batch, length = workload.batch, workload.length
    is_prompt = workload.phase == "prefill"
    tokens = batch * (length if is_prompt else 1)
    found = {"attention_flops": 0, "attention_bytes": 0}
    for number in layers:
        w_q, w_k = variant.params.layers[number].attention[:2]
        if not w_q.shape[1]:
            continue
        size = costs.attention_size(config.d_model, w_q.shape[1], w_k.shape[1], config.head_dim)
        found["attention_flops"] += costs.forward_matmul_flops(
            size, token_count=tokens, pair_count=tokens * length
        )
        cached = 0 if is_prompt else batch * length
        found["attention_bytes"] += 4 * size.weight_count
        found["attention_bytes"] += costs.cache_bytes(
            size, position_count=cached, bytes_per_number=4
        )
    hidden = variant.params.layers[0].w_gate.shape[1]
    forward = costs.feed_forward_parameter_count(config.d_model, hidden, is_gated=True)
    forward *= config.num_layers
    embedding = config.vocab_size * config.d_model
    others = 2 * (tokens * forward + batch * embedding)
    found["model_flops"] = found["attention_flops"] + others
    found["model_bytes"] = found["attention_bytes"] + 4 * (forward + embedding)
    return found
