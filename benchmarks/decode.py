"""Decoding: attention of one new token over a cache, against jax.nn and torch.

B sequences, N query heads, K key/value heads, S cached tokens of width H = C.  Three questions: how
long one step takes beside the peers and beside reading the cache once, how the time of a step grows
with S, and how it changes with K, beside a pass over many queries at once.
"""

import argparse
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from harness import oracle
from harness.comparison import Contender, compare
from harness.fields import fields
from harness.options import Parser
from harness.report import TIMES, Recorder, benchmark, progress_line
from harness.timing import Run, interleave, per_round_ratios, summarize
from mha_book.attention.dispatch import attend
from mha_book.models import smollm2
from mha_book.multihead.cache import KVCache, append, attend_cached
from peers.attention import cudnn, jax_nn, torch_tensor

BASELINE = "cache"
READ = "read"


class Setting(fields(length=8192, batch=8, heads=32, kv_heads=8, head_dim=128, dtype="float32")):
    @property
    def label(self) -> str:
        heads = f"N={self.heads} K={self.kv_heads} H={self.head_dim}"
        dtype = "" if self.dtype == "float32" else f" {self.dtype}"
        return f"B={self.batch} {heads} S={self.length}{dtype}"

    @property
    def cache_bytes(self) -> int:
        entries = 2 * self.batch * self.kv_heads * self.length * self.head_dim
        return entries * jnp.dtype(self.dtype).itemsize


class Inputs(NamedTuple):
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray


def inputs_of(setting: Setting) -> Inputs:
    rng = np.random.default_rng(setting.length)
    kv_shape = (setting.batch, setting.kv_heads, setting.length, setting.head_dim)
    query_shape = (setting.batch, setting.heads, 1, setting.head_dim)
    shapes = (query_shape, kv_shape, kv_shape)
    drawn = (rng.standard_normal(shape, np.float32) for shape in shapes)
    return Inputs(*(x.astype(jnp.dtype(setting.dtype), copy=False) for x in drawn))


def expected_of(inputs: Inputs) -> np.ndarray:
    """The float64 output (B, N, 1, C): the queries of a group are rows over the same keys."""
    rows = inputs.query.reshape(*inputs.key.shape[:2], -1, inputs.key.shape[-1])  # (B, K, G, H)
    (output,) = oracle.attention_float64(rows, inputs.key, inputs.value, is_causal=False)
    return output.reshape(*inputs.query.shape[:3], -1)


def filled_cache(inputs: Inputs, lengths: int | None = None) -> KVCache:
    batch, _, capacity, _ = inputs.key.shape
    keys = jnp.asarray(np.ascontiguousarray(np.swapaxes(inputs.key, 2, 3)))
    count = capacity if lengths is None else lengths
    return KVCache(keys, jnp.asarray(inputs.value), jnp.full((batch,), count, jnp.int32))


def _cache(inputs: Inputs, implementation: str | None = None) -> Run:
    call = jax.jit(functools.partial(attend_cached, implementation=implementation))
    return functools.partial(call, jnp.asarray(inputs.query), filled_cache(inputs))


def stepping(inputs: Inputs) -> Run:
    """One step with the cache donated: the last token is appended, then attended to."""

    def step(query, key, value, cache):
        grown = append(cache, key, value)
        return attend_cached(query, grown), dataclasses.replace(grown, lengths=cache.lengths)

    compiled = jax.jit(step, donate_argnums=3)
    query, key, value = (jnp.asarray(x[:, :, -1:]) for x in inputs)
    held = [filled_cache(inputs, inputs.key.shape[2] - 1)]

    def run():
        output, held[0] = compiled(query, key, value, held[0])
        return output

    return run


def reading(setting: Setting) -> Run:
    """A causal pass over as many queries as keys, as when a prompt is read."""
    _, key, value = inputs_of(setting)
    shape = (setting.batch, setting.heads, setting.length, setting.head_dim)
    query = np.random.default_rng(1).standard_normal(shape, np.float32)
    call = jax.jit(functools.partial(attend, is_causal=True))
    return functools.partial(call, *map(jnp.asarray, (query.astype(key.dtype), key, value)))


def _jax_nn(inputs: Inputs, *, convert: bool, attention: Callable[..., jax.Array] = jax_nn) -> Run:
    swap = functools.partial(jnp.swapaxes, axis1=1, axis2=2)

    def call(query, key, value):
        if convert:
            query, key, value = map(swap, (query, key, value))
        output = attention(query, key, value, is_causal=False)
        return swap(output) if convert else output

    arrays = [jnp.asarray(x if convert else np.swapaxes(x, 1, 2).copy()) for x in inputs]
    return functools.partial(jax.jit(call), *arrays)


def _torch(inputs: Inputs) -> Run:
    import torch

    arrays = [torch_tensor(x) for x in inputs]
    attention = torch.nn.functional.scaled_dot_product_attention

    def run():
        with torch.inference_mode():
            return attention(*arrays, enable_gqa=True)

    return run


def _read(inputs: Inputs) -> Run:
    call = jax.jit(lambda cache: jnp.sum(cache.keys) + jnp.sum(cache.values))
    return functools.partial(call, filled_cache(inputs))


# Of each `run` makes the function to time from the inputs; the layout is that of the keys.
CONTENDERS = (
    Contender(BASELINE, _cache, "mha_book", "BKHS", "attend_cached on a full KVCache"),
    Contender(
        "cache, jax_nn", functools.partial(_cache, implementation="jax_nn"), "mha_book", "BKHS",
        "the same by the implementation that empties hidden keys before",
    ),
    Contender("cache, step", stepping, "mha_book", "BKHS", "append and attend, cache donated"),
    Contender(
        "jax.nn", functools.partial(_jax_nn, convert=False), "jax", "BSKH",
        "jax.nn.dot_product_attention",
    ),
    Contender(
        "jax.nn, converted", functools.partial(_jax_nn, convert=True), "jax", "BKSH",
        "jax.nn.dot_product_attention; with the conversion from heads first and back",
    ),
    Contender(
        "jax.nn cudnn", functools.partial(_jax_nn, convert=False, attention=cudnn), "jax", "BSKH",
        "jax.nn's cuDNN",
    ),
    Contender(
        "torch", _torch, "torch", "BKSH", "scaled_dot_product_attention(enable_gqa=True), as called"
    ),
    Contender(READ, _read, "jax", "BKHS", "the sum of all keys and values: the cache read once"),
)  # fmt: skip


def _error(contender: Contender, output: Any, expected: np.ndarray, tolerance: float) -> float:
    """The checked error of an output; of the sum that reads the cache none is asked."""
    if contender.name == READ:
        return 0.0
    got = oracle.as_numpy(output)
    got = np.swapaxes(got, 1, 2) if contender.layout == "BSKH" else got
    return oracle.verify(contender.name, [got], [expected], tolerance)


def measure(setting, options) -> dict[str, Any]:
    inputs = inputs_of(setting)
    expected, tolerance = expected_of(inputs), oracle.TOLERANCES[setting.dtype]
    case = compare(
        setting, CONTENDERS, prepare=lambda one: one.run(inputs),
        error=lambda one, output: _error(one, output, expected, tolerance), baseline=BASELINE,
        options=options, cache_bytes=setting.cache_bytes, tolerance=tolerance,
    )  # fmt: skip
    rows = {row["name"]: row for row in case["rows"] if row["status"] == "measured"}
    ours, read = (rows[name]["seconds_per_round"] for name in (case["baseline"], READ))
    for row in rows.values():
        seconds, rate = row["seconds_per_round"], setting.cache_bytes / row["seconds"]["median"]
        row["cache_bytes_per_s"] = rate
        row["fraction_of_stream_rate"] = rate / case["rates"]["stream_bytes_per_s"]
        row["cache_over_this"] = summarize(per_round_ratios(ours, seconds))._asdict()
        row["fraction_of_read_rate"] = summarize(per_round_ratios(read, seconds)).median
    return case


def grow(prepare, lengths, *, rounds) -> dict[str, Any]:
    """The time of a step against the cache length, and the straight line through the medians."""
    runs = {str(length): prepare(length) for length in lengths}
    progress = progress_line("time against length")
    times = interleave(runs, rounds=rounds, progress=progress)
    medians = [summarize(times.seconds[str(length)]).median for length in lengths]
    slope, intercept = (float(x) for x in np.polyfit(lengths, medians, 1))
    fitted = slope * np.asarray(lengths) + intercept
    return {
        "lengths": list(lengths),
        "seconds_per_round": [times.seconds[str(length)] for length in lengths], "seconds": medians,
        "slope_s_per_token": slope, "intercept_s": intercept,
        "largest_residual": float((np.abs(np.asarray(medians) - fitted) / fitted).max()),
    }  # fmt: skip


def share(prepare: Callable[[Setting], Run], setting: Setting, *, rounds: int) -> dict[str, Any]:
    """The time against the number of key/value heads, all else equal."""
    heads = setting.heads
    settings = [setting._replace(kv_heads=k) for k in range(1, heads + 1) if heads % k == 0]
    runs = {str(one.kv_heads): prepare(one) for one in settings}
    progress = progress_line("time against key/value heads")
    times = interleave(runs, rounds=rounds, progress=progress).seconds
    ratios = {k: per_round_ratios(seconds, times[str(heads)]) for k, seconds in times.items()}
    return {
        "case": setting._asdict(),
        "kv_heads": [one.kv_heads for one in settings],
        "cache_bytes": [one.cache_bytes for one in settings],
        "seconds_per_round": list(times.values()),
        "seconds": [summarize(seconds).median for seconds in times.values()],
        "ratio": [summarize(ratio)._asdict() for ratio in ratios.values()],
    }


COLUMNS = {
    **TIMES,
    "GB/s": lambda row: f"{row['cache_bytes_per_s'] / 1e9:.1f}",
    "of read": lambda row: f"{row['fraction_of_read_rate']:.2f}",
}


def _add(parser: Parser) -> None:
    parser.sized("--lengths", (8192,), (64,), help="cached tokens")
    parser.dtype()
    action = argparse.BooleanOptionalAction
    parser.sized("--model", True, False, action=action, help="time SmolLM2 too")


def _read_files(options: Any) -> dict[str, str]:
    return {smollm2.PACKAGE: smollm2.FILE[1]} if options.model else {}


@benchmark("the cache's", add=_add, inputs=_read_files)
def main(recorder: Recorder, options: Any) -> Any:
    usual = Setting(64, 2, 6, 2, 16) if options.quick else Setting()
    settings = [usual._replace(length=n, dtype=options.dtype) for n in options.lengths]
    for setting in settings:
        note = f", cache {setting.cache_bytes / 1e6:.0f} MB"
        recorder.add(measure(setting, options), COLUMNS, note=note)
    setting = settings[0]
    lengths = [setting.length * eighths // 8 for eighths in range(1, 9)]
    steps = {"attention": lambda n: stepping(inputs_of(setting._replace(length=n)))}
    if options.model:
        import pruned  # which needs the trained model

        subject = pruned.trained()
        model, of_one = (pruned.whole_of(subject), subject.config), ("model", "decode", 1)
        steps["SmolLM2"] = lambda n: pruned.model_run(*model, pruned.Setting(*of_one, n))
    shorter = setting._replace(length=setting.length // 4)
    prompt = shorter._replace(length=setting.length // 8, batch=1)
    rounds = options.rounds
    return {
        "growth": {name: grow(step, lengths, rounds=rounds) for name, step in steps.items()},
        "sharing": {
            "decode": share(lambda one: stepping(inputs_of(one)), shorter, rounds=rounds),
            "prefill": share(reading, prompt, rounds=rounds),
        },
    }
