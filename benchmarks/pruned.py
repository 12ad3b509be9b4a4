"""What removing 30% of the heads of SmolLM2 saves: its attention, and the whole model.

The heads with the least gate gradient (book/data/heads.json) are closed by zeros in W_O, removed
one by one, or removed in whole groups with their key/value heads. A prompt of T tokens is read, or
one more token after as many in the caches; float32.
"""

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from harness import oracle
from harness.comparison import Contender, compare
from harness.fields import fields
from harness.report import TIMES, Recorder, benchmark
from harness.timing import Run
from mha_book import MultiHeadParams, multi_head_attention
from mha_book.masks import causal
from mha_book.models import smollm2
from mha_book.models.smollm2 import (
    SmolLM2Config,
    SmolLM2Layer,
    SmolLM2Params,
    decode_step,
    init_caches,
    prefill,
)
from mha_book.multihead.cache import KVCache, cached_multi_head_attention
from mha_book.pruning.order import head_mask, removal_order
from mha_book.pruning.removal import fold_gates, prune_heads, prune_model
from mha_book.rope import rotary_angles
from mha_book.storage import payload_digest

PARTS = ("attention", "model")
TOLERANCE = 1e-4  # largest deviation from what is expected, relative to the largest entry
BASELINE = "whole"
FRACTION = 0.3
HEADS = Path(__file__).resolve().parents[1] / "book" / "data" / "heads.json"


# part: the "attention" of all layers, or the whole "model"; phase: "prefill" or "decode".
class Setting(fields("part phase batch length")):
    """What is computed: a prompt of `length` tokens, or one more token after as many."""

    @property
    def label(self) -> str:
        return f"{self.part}, {self.phase} of {self.batch}"


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
    model = smollm2.load_smollm2()
    scores = json.loads(HEADS.read_text())["importance"]["gate gradient"]
    return Subject(model.params, model.config, np.array(scores))


def made_up() -> Subject:
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


def whole_of(subject: Subject) -> Variant:
    params, config, importance = subject
    all_keys = [np.arange(config.num_kv_heads)] * config.num_layers
    return Variant(params, np.ones(importance.shape, bool), params, all_keys, "all heads")


def variants_of(subject: Subject) -> dict[str, Variant]:
    """All forms of a model: whole, closed by W_O, three smaller ones.

    30% of the heads go: one by one in `heads`, uneven groups being padded or their key heads
    repeated, and with all query heads of a key head in `groups`.
    """
    params, config, importance = subject
    group = config.num_heads // config.num_kv_heads
    keeps = {
        size: head_mask(
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

    whole, single = whole_of(subject), closed(keeps[1])
    return {
        BASELINE: whole,
        "masked": Variant(single, keeps[1], single, whole.key_heads, "rows of W_O at zero"),
        "heads, pad": smaller(keeps[1], "pad", "removed; smaller groups padded"),
        "heads, repeat": smaller(keeps[1], "repeat", "removed; key heads repeated"),
        "groups": smaller(keeps[group], "raise", "removed with their key heads"),
    }


def inputs_of(config: SmolLM2Config, setting: Setting) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(setting.length + setting.batch)
    is_prompt = setting.phase == "prefill"
    new, held = (setting.length, 0) if is_prompt else (1, setting.length - 1)
    features = rng.standard_normal((setting.batch, new, config.d_model), np.float32)
    shape = (2, setting.batch, config.num_kv_heads, held, config.head_dim)
    return features, [rng.standard_normal(shape, np.float32) for _ in range(config.num_layers)]


def caches_of(variant: Variant, past: list[np.ndarray]) -> tuple[KVCache, ...]:

    def one(held: np.ndarray, heads: np.ndarray) -> KVCache:
        keys, values = np.pad(held[:, :, heads], [(0, 0)] * 3 + [(0, 1), (0, 0)])
        lengths = jnp.full((held.shape[1],), held.shape[3], jnp.int32)
        keys = np.ascontiguousarray(np.swapaxes(keys, 2, 3))
        return KVCache(jnp.asarray(keys), jnp.asarray(values), lengths)

    return tuple(one(*pair) for pair in zip(past, variant.key_heads, strict=True))


def again(compiled: Callable[..., Any], caches: tuple[KVCache, ...], *given: Any) -> Run:
    """The same step every time: caches are donated, then counted back by the compiled step."""
    held = [caches]

    def run():
        output, held[0] = compiled(*given, held[0])
        return output

    return run


def counted_back(grown: tuple[KVCache, ...], caches: tuple[KVCache, ...]) -> tuple[KVCache, ...]:
    pairs = zip(grown, caches, strict=True)
    return tuple(dataclasses.replace(new, lengths=old.lengths) for new, old in pairs)


def attention_run(variant, config, setting, implementation=None) -> Run:
    """The attention of all layers, one after the other, of the same features; their sum."""
    features, past = inputs_of(config, setting)
    attention, x = [layer.attention for layer in variant.params.layers], jnp.asarray(features)
    if setting.phase == "prefill":
        return functools.partial(_compiled(_attention_prompt, config, implementation), attention, x)
    step = _compiled(_attention_step, config, implementation)
    return again(step, caches_of(variant, past), attention, x)


@functools.cache
def _compiled(call: Any, config: SmolLM2Config, implementation: str | None) -> Callable[..., Any]:
    """A compiled function; a step, which has caches as its third argument, may overwrite them."""
    bound = functools.partial(call, config=config, implementation=implementation)
    return jax.jit(bound, donate_argnums=2 if call in (_attention_step, _model_step) else ())


def _attention_prompt(attention, x, config, implementation) -> Any:
    angles = rotary_angles(jnp.arange(x.shape[1]), config.head_dim, config.rope_theta)
    given: Any = {"mask": causal(), "angles": angles, "implementation": implementation}
    return sum(multi_head_attention(params, x, **given) for params in attention)


def _attention_step(attention, x, caches, config, implementation) -> Any:
    angles = rotary_angles(caches[0].lengths[:, None, None], config.head_dim, config.rope_theta)
    given: Any = {"angles": angles, "implementation": implementation}
    pairs = zip(attention, caches, strict=True)
    steps = [cached_multi_head_attention(p, x, c, **given) for p, c in pairs]
    outputs, grown = zip(*steps, strict=True)
    return sum(outputs), counted_back(grown, caches)


def tokens_of(config: SmolLM2Config, setting: Setting) -> jax.Array:
    rng = np.random.default_rng(setting.length)
    shape = (setting.batch, setting.length)[: 2 if setting.phase == "prefill" else 1]
    return jnp.asarray(rng.integers(1, config.vocab_size, shape), jnp.int32)


def model_run(variant, config, setting, implementation=None) -> Run:
    """The whole model: a prompt read into empty caches, or one more token of each sequence."""
    ids = tokens_of(config, setting)
    if setting.phase == "prefill":
        lengths = jnp.full((setting.batch,), setting.length, jnp.int32)
        caches = init_caches(setting.batch, setting.length, config=config, params=variant.params)
        prompt = _compiled(prefill, config, implementation)
        return functools.partial(prompt, variant.params, ids, lengths, caches)
    caches = caches_of(variant, inputs_of(config, setting)[1])
    return again(_compiled(_model_step, config, implementation), caches, variant.params, ids)


def _model_step(params, ids, caches, **options) -> Any:
    logits, grown = decode_step(params, ids, caches, **options)
    return logits, counted_back(grown, caches)


def first_of(output: Any) -> Any:
    """The outputs, without the caches."""
    return np.asarray(output[0] if isinstance(output, tuple) else output)


def plan(quick: bool, rounds: int | None) -> list[tuple[Setting, int]]:
    """All settings, and how many rounds each gets; long prompts get fewer."""
    found = []
    for part in PARTS:
        for phase, batch in (("prefill", 1), ("prefill", 4), ("decode", 1), ("decode", 8)):
            if quick and batch > 1:
                continue
            length = 8 if quick else 512 if phase == "prefill" else 1024
            usual = 20 if phase == "decode" else 10 if batch == 1 else 6
            found.append((Setting(part, phase, batch, length), rounds or (2 if quick else usual)))
    return found


def measure(subject: Subject, setting: Setting, *, rounds: int) -> dict[str, Any]:
    """All forms of the model in one setting; see `compare`.

    What is expected is the output of the whole model with closed heads, its rows of W_O at zero,
    by the reference implementation of attention.
    """
    config, variants = subject.config, variants_of(subject)
    run_of = model_run if setting.part == "model" else attention_run
    runs = {name: run_of(one, config, setting) for name, one in variants.items()}
    expected = {}
    for name, one in variants.items():
        closed = one._replace(params=one.closed, key_heads=variants[BASELINE].key_heads)
        expected[name] = first_of(run_of(closed, config, setting, "reference")())

    def error(contender: Contender, output: Any) -> float:
        wanted = [expected[contender.name]]
        return oracle.verify(contender.name, [first_of(output)], wanted, TOLERANCE)

    def numbers(contender: Contender) -> dict[str, Any]:
        variant = variants[contender.name]
        kept = [layer.attention for layer in variant.params.layers]
        return {
            "heads_left": int(variant.keep.sum()), "query_heads": sum(p.w_q.shape[1] for p in kept),
            "key_heads": sum(p.w_k.shape[1] for p in kept),
        }  # fmt: skip

    return compare(
        setting, [Contender(name, run, remark=variants[name].remark) for name, run in runs.items()],
        error=error, numbers=numbers, baseline=BASELINE, rounds=rounds, tolerance=TOLERANCE,
    )  # fmt: skip


COLUMNS = {"heads": lambda row: str(row["query_heads"]), **TIMES}


def _read_files(options: Any) -> dict[str, str]:
    told = payload_digest(json.loads(HEADS.read_text()))
    return {} if options.quick else {smollm2.PACKAGE: smollm2.FILE[1], HEADS.name: told}


@benchmark("the whole model's", rounds=None, inputs=_read_files, fraction=FRACTION)
def main(recorder: Recorder, options: Any) -> Any:
    subject = made_up() if options.quick else trained()
    for setting, rounds in plan(options.quick, options.rounds):  # 6 to 20
        recorder.add(measure(subject, setting, rounds=rounds), COLUMNS)
