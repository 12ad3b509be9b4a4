"""One step of SmolLM2 taken apart: what its weights take, its caches, and the writing of them.

One sequence with S tokens in its caches.  Beside the whole step stand steps that leave something
out, the reading of all weights and of all caches alone, and the step as it was before
`append` wrote a single entry in place.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness import oracle
from harness.comparison import Contender, compare
from harness.fields import fields
from harness.options import Parser
from harness.report import TIMES, Recorder, benchmark
from harness.timing import Run
from mha_book.layers import linear
from mha_book.models import smollm2
from mha_book.multihead.cache import KVCache, append, attend_cached
from mha_book.multihead.layer import project_output, project_qkv
from mha_book.rope import rotary_angles

BASELINE, READ = "step", "read"
PARTS = {
    "step": "append, attend and all the rest",
    "step, one write": "the same, the new entry written as one slice",
    "without append": "attends to what is there; writes nothing",
    "without attention": "projections, feed-forward, output",
    "read": "the sum of all caches",
    "read weights": "the sum of all weights",
}
TOLERANCE = 1e-3


class Setting(fields("length", layers=30)):
    @property
    def label(self) -> str:
        return f"SmolLM2 B=1 S={self.length}"


def one_write(cache: KVCache, key: jax.Array, value: jax.Array) -> KVCache:
    """Writes the entry of one new token of one sequence as one slice."""
    row, slot = jnp.arange(1)[:, None], cache.lengths[:, None]
    key, value = (jnp.swapaxes(x, 1, 2) for x in (key, value))
    keys = cache.keys.at[row, :, :, slot].set(key, mode="drop")
    values = cache.values.at[row, :, slot].set(value, mode="drop")
    return KVCache(keys, values, cache.lengths + 1, cache.window)


def step(params: Any, token_ids: Any, caches: Any, *, part: str, config: Any) -> Any:
    """A step of one sequence, or what a part leaves of it; the lengths stay as they are."""
    position = caches[0].lengths[:, None, None]
    angles = rotary_angles(position, config.head_dim, config.rope_theta)
    grown = []

    def attention(number, layer, x, normalized):
        query, key, value = project_qkv(layer.attention, normalized, angles=angles)
        cache = caches[number]
        longer = dataclasses.replace(cache, lengths=cache.lengths + 1)
        if part in ("step", "step, one write"):
            longer = (append if part == "step" else one_write)(cache, key, value)
        grown.append(dataclasses.replace(longer, lengths=cache.lengths))
        if part == "without attention":
            heads = jnp.repeat(value, query.shape[1] // value.shape[1], axis=1)
        else:
            heads = attend_cached(query, longer)
        return project_output(layer.attention, heads)

    x = smollm2.hidden_states(params, token_ids[:, None], attention, config)
    return linear(x[:, 0], params.token_embedding.T), tuple(grown)


@functools.cache
def model_of(layers: int) -> Any:
    model = smollm2.load_smollm2()
    return model._replace(
        config=model.config._replace(num_layers=layers),
        params=model.params._replace(layers=model.params.layers[:layers]),
    )


def caches_of(setting: Setting) -> Any:
    model, rng = model_of(setting.layers), np.random.default_rng(0)

    def filled(cache):
        keys, values = (
            jnp.asarray(rng.standard_normal(x.shape, np.float32))
            for x in (cache.keys, cache.values)
        )
        return KVCache(keys, values, cache.lengths + setting.length - 1, cache.window)

    return tuple(filled(c) for c in smollm2.init_caches(1, setting.length, config=model.config))


@functools.cache
def compiled_step(setting: Setting, part: str) -> Any:
    model = model_of(setting.layers)
    shapes = jax.eval_shape(lambda: (jnp.ones((1,), jnp.int32), caches_of(setting)))
    run = functools.partial(step, part=part, config=model.config)
    return jax.jit(run, donate_argnums=2).lower(model.params, *shapes).compile()


def prepare(setting: Setting, part: str) -> Run:
    params = model_of(setting.layers).params
    if part == "read":
        total = jax.jit(lambda caches: sum(jnp.sum(c.keys) + jnp.sum(c.values) for c in caches))
        return functools.partial(total, caches_of(setting))
    if part == "read weights":
        total = jax.jit(lambda tree: sum(jnp.sum(x) for x in jax.tree.leaves(tree)))
        return functools.partial(total, params)
    compiled, tokens = compiled_step(setting, part), jnp.ones((1,), jnp.int32)
    held = [caches_of(setting)]

    def run():
        logits, held[0] = compiled(params, tokens, held[0])
        return logits

    return run


def room(setting: Setting, part: str) -> int:
    return int(compiled_step(setting, part).memory_analysis().temp_size_in_bytes)


def measure(setting: Setting, options: Any) -> dict[str, Any]:
    model = model_of(setting.layers)
    expected, _ = smollm2.decode_step(
        model.params, jnp.ones((1,), jnp.int32), caches_of(setting),
        config=model.config, implementation="reference",
    )  # fmt: skip

    def error(contender: Contender, output: Any) -> float:
        if not contender.name.startswith("step"):
            return 0.0
        return oracle.verify(contender.name, [np.asarray(output)], [expected], TOLERANCE)

    sizes = jax.eval_shape(lambda: (model.params, caches_of(setting)))
    weight_bytes, cache_bytes = (
        sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(part)) for part in sizes
    )
    found = compare(
        setting,
        [Contender(name, prepare(setting, name), remark=said) for name, said in PARTS.items()],
        error=error,
        numbers=lambda one: (
            {} if one.name.startswith("read") else {"temp_bytes": room(setting, one.name)}
        ),
        baseline=BASELINE,
        options=options,
        weight_bytes=weight_bytes,
        cache_bytes=cache_bytes,
        tolerance=TOLERANCE,
    )
    return found


def _add(parser: Parser) -> None:
    parser.sized("--length", 4096, 64, help="slots of the caches")
    parser.clock()


@benchmark("the whole step's", add=_add, inputs=lambda options: {smollm2.PACKAGE: smollm2.FILE[1]})
def main(recorder: Recorder, options: Any) -> Any:
    setting = Setting(options.length, 1 if options.quick else 30)
    found = measure(setting, options)
    recorder.add(found, TIMES, note=f", caches {found['cache_bytes'] / 1e6:.0f} MB")
