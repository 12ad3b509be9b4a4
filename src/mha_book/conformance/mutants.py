"""The bugs that people really make, each as a wrong attention of a few lines.

A bug replaces one step of the formula (:class:`~mha_book.conformance.oracle.Steps`) by a wrong one;
two bugs of different steps make a pair. This is the one catalog: the checker names what it finds by
it, and what else needs a wrong attention takes it from here. What is said of a bug is in
``catalog.toml``.
"""

from collections.abc import Callable, Iterator
from functools import reduce
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mha_book._checks import check
from mha_book.conformance.oracle import (
    TEXTS,
    USUAL,
    Case,
    Conventions,
    Numbers,
    Steps,
    attend,
    flat,
    frequencies,
    heads,
    softmax,
    turn,
)

__all__ = ["CATALOG", "Mutant", "mutant"]


class Mutant(NamedTuple):
    """A known bug.

    Args:
        id: its lasting name, such as ``softmax-over-queries``.
        sentence: what the implementation does, as the diagnosis says it.
        symptom: what one notices in use, if anything.
        read: the page of the book that explains what is right, or its section on the bug.
        steps: the steps that it replaces, by name.
        within: where it can happen: in any attention (""), where features of all heads come in one
            axis ("flat"), or in a layer with weights ("layer").
        seen: public threads in which it was found, such as ``reczoo/FuxiCTR#30``.
    """

    id: str
    sentence: str
    symptom: str
    read: str
    steps: dict[str, Callable[..., Any]]
    within: str = ""
    seen: tuple[str, ...] = ()

    def attend(self, case: Case, conventions: Conventions = USUAL) -> Float[np.ndarray, "B N T C"]:
        """Return what attention with this bug gives.

        Example:
            >>> one = np.ones((1, 1, 2, 4))
            >>> mutant("weights-do-not-sum").attend(Case(one, one, one)).max().round(3).item()
            14.778
        """
        return attend(case, conventions, Steps(**self.steps))


def mutant(id: str) -> Mutant:
    """Return a bug, or a pair of bugs written ``first + second``.

    Raises:
        ValueError: the catalog does not have it.

    Example:
        >>> mutant("scale-missing").sentence
        'the scores are not scaled'
    """
    names = id.split(" + ")
    for name in names:
        check(name in CATALOG, "id", f"one of {', '.join(CATALOG)}", repr(name))
    return reduce(both, (CATALOG[name] for name in names))


def both(first: Mutant, second: Mutant) -> Mutant:
    """Return the two bugs at once."""
    return first._replace(
        id=f"{first.id} + {second.id}",
        sentence=f"{first.sentence}; and {second.sentence}",
        steps=first.steps | second.steps,
        within=max(first.within, second.within, key=("", "flat", "layer").index),
        seen=(),
    )


def pairs(within: tuple[str, ...] = ("",)) -> Iterator[Mutant]:
    """Return every two bugs that replace different steps, of those that can happen there.

    Example:
        >>> len(list(pairs())) > 1000
        True
    """
    possible = [one for one in CATALOG.values() if one.within in within]
    for first, second in combinations(possible, 2):
        if not first.steps.keys() & second.steps.keys():
            yield both(first, second)


def _split_wrongly(which: str) -> Callable[..., Any]:
    return lambda *operands: tuple(
        flat(x).reshape(x.shape) if name in which else x
        for name, x in zip("qkv", operands, strict=True)
    )


def _interleaved(x: Numbers, *shape: int) -> Numbers:
    order = np.arange(flat(x).shape[-1]).reshape(shape).T.ravel()
    return heads(flat(x)[..., order], x.shape[1])


def _reads(chosen: Callable[[Numbers, int], Numbers]) -> Callable[..., Any]:
    def shared(x: Numbers, num_heads: int, c: Conventions) -> Numbers:
        num_kv_heads = x.shape[1]
        return x[:, chosen(np.arange(num_heads), num_kv_heads)] if num_kv_heads < num_heads else x

    return shared


def _along(*axis: int) -> Callable[..., Any]:
    return lambda scores, c: softmax(scores, c, axis)


def _powers(scores: Numbers, c: Conventions | None = None) -> Numbers:
    return np.exp(np.where(scores > 88.7, np.inf, scores))  # where float32 overflows


def _unstable(scores: Numbers, c: Conventions) -> Numbers:
    weights = _powers(scores) / _powers(scores).sum(-1, keepdims=True)
    return np.where(np.isneginf(scores).all(-1, keepdims=True), softmax(scores, c), weights)


def _tiled_masks(mask: Numbers, num_heads: int) -> Numbers:
    whole = np.broadcast_to(mask, (len(mask), num_heads, *mask.shape[-2:]))
    return np.tile(whole[:, 0], (num_heads, 1, 1)).reshape(whole.shape)


def _empty_rows(fill: Callable[[Numbers], Numbers]) -> Callable[..., Any]:
    return lambda weights, visible: np.where(visible.any(-1, keepdims=True), weights, fill(weights))


def _dropped(weights: Numbers, visible: Numbers) -> Numbers:
    return weights * (np.random.default_rng().random(weights.shape) < 0.5) * 2


def _kind(c: Conventions) -> str:
    return "half" if c.rope == "none" else c.rope


def _at(q: Numbers, k: Numbers, v: Numbers, kind: str, speeds: Numbers) -> Numbers:
    return turn(q, kind, speeds), turn(k, kind, speeds), v


KV_HEADS = {
    "kv-heads-tiled": _reads(lambda h, num_kv_heads: h % num_kv_heads),
    "kv-first-head": _reads(lambda h, num_kv_heads: 0 * h),
    "kv-divided-by-kv-heads": _reads(lambda h, num_kv_heads: h // num_kv_heads),
}

WRONG: dict[str, dict[str, Callable[..., Any]]] = {
    "inputs": {"memory-ignored": lambda x, y, z: (x, x, x)},
    "weights": {
        "keys-projected-as-queries": lambda w: w._replace(k=w.q, k_bias=w.q_bias),
        "values-projected-as-keys": lambda w: w._replace(v=w.k, v_bias=w.k_bias),
        "values-projected-as-queries": lambda w: w._replace(v=w.q, v_bias=w.q_bias),
        "biases-missing": lambda w: w._replace(
            q_bias=0 * w.q_bias, k_bias=0 * w.k_bias, v_bias=0 * w.v_bias
        ),
    },
    "split": {
        "split-without-transpose": lambda x: flat(x).reshape(x.shape),
        "split-interleaved": lambda x: _interleaved(x, x.shape[-1], x.shape[1]),
        "one-head": lambda x: flat(x)[:, None],
    },
    "operands": {
        "queries-without-transpose": _split_wrongly("q"),
        "keys-without-transpose": _split_wrongly("k"),
        "values-without-transpose": _split_wrongly("v"),
        "queries-keys-without-transpose": _split_wrongly("qk"),
        "kv-without-transpose": _split_wrongly("kv"),
        "attention-over-heads": lambda q, k, v: tuple(x.swapaxes(1, 2) for x in (q, k, v)),
        "attention-over-batch": lambda q, k, v: tuple(x.swapaxes(0, 2) for x in (q, k, v)),
        "keys-values-exchanged": lambda q, k, v: (q, v, k),
        "queries-keys-exchanged": lambda q, k, v: (k, q, v),
        "queries-values-exchanged": lambda q, k, v: (v, k, q),
        "keys-are-queries": lambda q, k, v: (q, q, v),
        "queries-are-keys": lambda q, k, v: (k, k, v),
        "values-are-keys": lambda q, k, v: (q, k, k),
        "values-are-queries": lambda q, k, v: (q, k, q),
        "keys-are-values": lambda q, k, v: (q, v, v),
        "first-sequence-for-all": lambda q, k, v: (q, *(x[[0] * len(x)] for x in (k, v))),
    },
    "share_keys": KV_HEADS | {"kv-keys-tiled": KV_HEADS["kv-heads-tiled"]},
    "share_values": KV_HEADS | {"kv-values-tiled": KV_HEADS["kv-heads-tiled"]},
    "rotate": {
        "rope-half-with-adjacent-frequencies": lambda q, k, v, c: _at(
            q, k, v, "half", np.repeat(frequencies(q.shape[-1]), 2)
        ),
        "rope-adjacent-with-half-frequencies": lambda q, k, v, c: _at(
            q, k, v, "adjacent", np.tile(frequencies(q.shape[-1]), 2)
        ),
        "rope-queries-only": lambda q, k, v, c: (turn(q, _kind(c)), k, v),
        "rope-keys-only": lambda q, k, v, c: (q, turn(k, _kind(c)), v),
        "rope-values-too": lambda q, k, v, c: tuple(turn(x, _kind(c)) for x in (q, k, v)),
        "rope-opposite": lambda q, k, v, c: (turn(q, _kind(c)), turn(k, _kind(c), None, -1), v),
        "rope-pairs-differ": lambda q, k, v, c: (turn(q, "half"), turn(k, "adjacent"), v),
        "rope-exponent": lambda q, k, v, c: _at(q, k, v, _kind(c), frequencies(q.shape[-1]) ** 0.5),
    },
    "scale": {
        "scale-missing": lambda q, k: 1.0,
        "scale-d-model": lambda q, k: (q.shape[1] * q.shape[-1]) ** -0.5,
        "scale-heads": lambda q, k: q.shape[1] ** -0.5,
        "scale-no-root": lambda q, k: 1 / q.shape[-1],
        "scale-multiplied": lambda q, k: q.shape[-1] ** 0.5,
        "scale-keys": lambda q, k: k.shape[-2] ** -0.5,
        "scale-queries": lambda q, k: q.shape[-2] ** -0.5,
        "scale-batch": lambda q, k: q.shape[0] ** -0.5,
        "scale-half-width": lambda q, k: (q.shape[-1] / 2) ** -0.5,
        "scale-fourth-root": lambda q, k: q.shape[-1] ** -0.25,
        "scale-sign": lambda q, k: -(q.shape[-1] ** -0.5),
        "scale-after-softmax": lambda q, k: 1.0,
    },
    "causal": {
        "causal-ignored": lambda distance: np.ones_like(distance, bool),
        "causal-one-ahead": lambda distance: distance >= -1,
        "causal-strict": lambda distance: distance > 0,
        "causal-reversed": lambda distance: distance <= 0,
        "causal-inverted": lambda distance: distance < 0,
        "causal-top-left": lambda distance: np.tril(np.ones_like(distance, bool)),
        "causal-bottom-right": lambda distance: np.tril(
            np.ones_like(distance, bool), distance.shape[1] - distance.shape[0]
        ),
    },
    "window": {
        "window-ignored": lambda distance, size: np.ones_like(distance, bool),
        "window-one-more": lambda distance, size: distance <= size,
        "window-one-less": lambda distance, size: distance < size - 1,
        "window-inverted": lambda distance, size: distance >= size,
        "window-halved": lambda distance, size: distance <= size // 2,
    },
    "mask": {
        "mask-inverted": lambda mask, num_heads: ~mask,
        "mask-ignored": lambda mask, num_heads: np.ones_like(mask),
        "mask-transposed": lambda mask, num_heads: mask.swapaxes(-1, -2),
        "mask-first-sequence": lambda mask, num_heads: np.repeat(mask[:1], len(mask), 0),
        "mask-heads-order": _tiled_masks,
        "mask-first-head-only": lambda mask, num_heads: (
            mask | (np.arange(num_heads)[:, None, None] > 0)
        ),
    },
    "segments": {
        "documents-leak": lambda s: np.ones((1, 1, 1, 1), bool),
        "documents-see-earlier": lambda s: s[:, None, :, None] >= s[:, None, None, :],
        "documents-inverted": lambda s: s[:, None, :, None] != s[:, None, None, :],
    },
    "hide": {
        "hidden-scores-zero": lambda scores, visible, c: np.where(visible, scores, 0),
        "mask-added-as-numbers": lambda scores, visible, c: scores + visible,
        "hidden-scores-raised": lambda scores, visible, c: scores + 1e9 * ~visible,
        "hide-nothing": lambda scores, visible, c: scores,
        "mask-after-softmax": lambda scores, visible, c: scores,
    },
    "softmax": {
        "softmax-over-queries": _along(-2),
        "softmax-over-heads": _along(1),
        "softmax-over-batch": _along(0),
        "softmax-over-queries-and-keys": _along(-2, -1),
        "softmax-over-heads-and-keys": _along(1, -1),
        "softmax-over-all": _along(1, 2, 3),
        "softmax-missing": lambda scores, c: np.where(np.isneginf(scores), 0, scores),
        "softmax-unstable": _unstable,
        "softmax-twice": lambda scores, c: softmax(softmax(scores, c), c),
        "weights-do-not-sum": _powers,
        "sigmoid": lambda scores, c: 1 / (1 + np.exp(-scores)),
        "log-softmax": lambda scores, c: np.log(softmax(scores, c)),
        "softmax-base-two": lambda scores, c: softmax(scores * np.log(2), c),
        "relu": lambda scores, c: (
            np.maximum(scores, 0) / np.maximum(scores, 0).sum(-1, keepdims=True)
        ),
        "softmax-one-more": lambda scores, c: (
            _powers(scores) / (1 + _powers(scores).sum(-1, keepdims=True))
        ),
        "argmax": lambda scores, c: np.eye(scores.shape[-1])[scores.argmax(-1)],
    },
    "after": {
        "mask-after-softmax": lambda weights, visible: weights * visible,
        "empty-row-nan": _empty_rows(lambda weights: np.nan),
        "empty-row-mean": _empty_rows(lambda weights: 1 / weights.shape[-1]),
        "dropout-in-evaluation": _dropped,
    },
    "mix": {
        "scale-after-softmax": lambda weights, v: weights @ v * v.shape[-1] ** -0.5,
        "dropout-factor": lambda weights, v: weights @ v / 2,
        "weights-transposed": lambda weights, v: weights.swapaxes(-1, -2) @ v,
        "heads-averaged": lambda weights, v: weights.mean(1, keepdims=True) @ v,
        "heads-share-weights": lambda weights, v: weights[:, :1] @ v,
    },
    "join": {
        "join-without-transpose": lambda out: heads(out.reshape(flat(out).shape), out.shape[1]),
        "join-interleaved": lambda out: _interleaved(out, out.shape[1], out.shape[-1]),
        "join-heads-reversed": lambda out: out[:, ::-1],
        "attention-over-heads": lambda out: out.swapaxes(1, 2),
        "attention-over-batch": lambda out: out.swapaxes(0, 2),
    },
    "output": {
        "output-projection-missing": lambda joined, w: joined,
        "output-bias-missing": lambda joined, w: joined @ w.o,
        "output-projection-transposed": lambda joined, w: joined @ w.o.T + w.o_bias,
        "output-projected-twice": lambda joined, w: (joined @ w.o + w.o_bias) @ w.o + w.o_bias,
    },
}
"""What takes the place of each step: step -> bug -> function; some bugs replace two steps."""

CATALOG: dict[str, Mutant] = {
    id: Mutant(
        id,
        sentence,
        family["symptom"],
        f"bugs-in-the-wild#{id}" if id in TEXTS["seen"] else family["read"],
        {step: wrong[id] for step, wrong in WRONG.items() if id in wrong},
        family.get("within", ""),
        tuple(TEXTS["seen"].get(id, ())),
    )
    for family in TEXTS["families"]
    for id, sentence in family["bugs"].items()
}
"""Every bug by its id."""
