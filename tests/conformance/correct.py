"""Correct attentions at random: of every layout, convention and dtype, in NumPy, JAX or torch."""

import itertools
import random

import jax.numpy as jnp
import numpy as np

AXES = {"BNTH": "bn?c", "BTNH": "b?nc", "NTH": "n?c", "TNH": "?nc", "TH": "?c", "BTH": "b?c"}
"""Layout -> the letters of einsum, with ? for the position."""


def einsums(layout):
    q, k = AXES[layout].replace("?", "t"), AXES[layout].replace("?", "s")
    scores = "".join(letter for letter in "bn" if letter in q) + "ts"
    return f"{q},{k}->{scores}", f"{scores},{k}->{q}"


CHOICES = {
    "library": ("numpy", "jax", "torch"),
    "layout": (*AXES, "BTD"),
    "polarity": ("attend", "hide", "additive"),
    "corner": ("top-left", "bottom-right"),
    "empty": ("mean", "zero", "nan"),
    "window": ("W", "W + 1"),
    "kv_heads": ("repeat", "tile"),
    "dtype": ("float32", "float64", "bfloat16", "float16"),
    "order": ("scale first", "scale last"),
    "causal": ("if asked", "always"),
}


def choices(seed):
    rng = random.Random(seed)
    return {name: rng.choice(values) for name, values in CHOICES.items()}


def library(name):
    if name == "torch":
        import torch

        return torch
    return {"numpy": np, "jax": jnp}[name]


def make(library_name, layout, polarity, corner, empty, window, kv_heads, dtype, order, causal):
    """A function that is right, and written without the oracle."""
    xp = library(library_name)
    axes = "BNTH" if layout == "BTD" else layout
    scores_of, values_of = einsums(axes)
    always = causal == "always"

    def cast(x):
        if library_name == "torch":
            return x.to(getattr(xp, dtype))
        if library_name == "numpy" and dtype == "bfloat16":
            return x.astype(np.float16)
        return x.astype(dtype)

    def share(x, like):
        if "N" not in axes:
            return x
        axis = axes.index("N")
        groups = like.shape[axis] // x.shape[axis]
        if kv_heads == "tile":
            return xp.concatenate([x] * groups, axis)
        return xp.stack([x] * groups, axis + 1).reshape(
            *x.shape[:axis], like.shape[axis], *x.shape[axis + 1 :]
        )

    def core(q, k, v, mask, asked, size):
        kind = q.dtype
        q, k, v = cast(q), share(cast(k), q), share(cast(v), q)
        root = q.shape[-1] ** 0.5
        if order == "scale first":
            scores = xp.einsum(scores_of, q / root, k)
        else:
            scores = xp.einsum(scores_of, q, k) / root
        queries, keys = scores.shape[-2:]
        rows = np.arange(queries)[:, None] + (keys - queries) * (corner == "bottom-right")
        seen = np.ones((queries, keys), bool)
        if asked or always:
            seen &= np.arange(keys) <= rows
        if size is not None:
            seen &= np.arange(keys) > rows - size - (window == "W + 1")
        seen = xp.asarray(seen)
        if mask is not None and polarity != "additive":
            seen = seen & (mask if polarity == "attend" else ~mask)
        if mask is not None and polarity == "additive":
            seen = seen & (mask > -1)
        low = float("-inf") if empty != "mean" else -1e4
        scores = xp.where(seen, scores, xp.asarray(low, dtype=scores.dtype))
        top = xp.amax(scores, axis=-1, keepdims=True)
        if empty == "zero":
            top = xp.where(top == low, xp.asarray(0.0, dtype=top.dtype), top)
        powers = xp.exp(scores - top)
        total = powers.sum(axis=-1, keepdims=True)
        if empty == "zero":
            total = xp.where(total == 0, xp.asarray(1.0, dtype=total.dtype), total)
        out = xp.einsum(values_of, powers / total, v)
        return out.to(kind) if library_name == "torch" else out.astype(kind)

    def attention(q, k, v, mask=None, causal=False, window=None):
        return core(q, k, v, mask, causal, window)

    def without_flag(q, k, v, mask=None):
        return core(q, k, v, mask, True, None)

    def side_by_side(q, k, v, num_heads, mask=None):
        q, k, v = (
            x.reshape(*x.shape[:2], -1, q.shape[-1] // num_heads).swapaxes(1, 2) for x in (q, k, v)
        )
        out = core(q, k, v, mask, False, None).swapaxes(1, 2)
        return out.reshape(*out.shape[:2], -1)

    if layout == "BTD":
        return side_by_side
    return without_flag if always else attention


def implementations(count):
    return [choices(seed) for seed in itertools.islice(itertools.count(), count)]
