"""The bugs that people really make, each as a wrong attention of a few lines.

A bug replaces one step of the formula (:class:`~mha_book.conformance.oracle.Steps`) by a wrong one;
two bugs of different steps make a pair. This is the one catalog: the checker names what it finds by
it, and what else needs a wrong attention takes it from here.
"""

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mha_book.conformance.oracle import (
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

__all__ = ["CATALOG", "Mutant", "mutant", "pairs"]


class Mutant(NamedTuple):
    """A known bug.

    Args:
        id: its lasting name, such as ``softmax-over-queries``.
        sentence: what the implementation does, as the diagnosis says it.
        symptom: what one notices in use, if anything.
        read: the page of the book that explains what is right.
        steps: the steps that it replaces, by name.
        within: where it can happen: in any attention (""), where features of all heads come in one
            axis ("flat"), or in a layer with weights ("layer").
        seen: public threads in which it was found.
    """

    id: str
    sentence: str
    symptom: str
    read: str
    steps: dict[str, Callable[..., Any]]
    within: str = ""
    seen: str = ""

    def attend(self, case: Case, conventions: Conventions = USUAL) -> Float[np.ndarray, "B N T C"]:
        """Return what attention with this bug gives.

        Example:
            >>> one = np.ones((1, 1, 2, 4))
            >>> mutant("weights-do-not-sum").attend(Case(one, one, one)).max().round(3).item()
            14.778
        """
        return attend(case, conventions, Steps(**self.steps))


Table = dict[str, tuple[Any, ...]]

CATALOG: dict[str, Mutant] = {}
"""Every bug by its id."""


def bug(
    id: str,
    sentence: str,
    symptom: str,
    read: str,
    within: str = "",
    seen: str = "",
    **steps: Callable[..., Any],
) -> None:
    """Enter a bug in the catalog."""
    assert id not in CATALOG, id
    CATALOG[id] = Mutant(id, sentence, symptom, read, steps, within, seen)


def mutant(id: str) -> Mutant:
    """Return a bug, or a pair of bugs written ``first + second``.

    Raises:
        ValueError: the catalog does not have it.

    Example:
        >>> mutant("scale-missing").sentence
        'the scores are not scaled'
    """
    first, *others = id.split(" + ")
    for name in (first, *others):
        if name not in CATALOG:
            raise ValueError(f"id: expected one of {', '.join(CATALOG)}, got {name!r}")
    found = CATALOG[first]
    for name in others:
        found = both(found, CATALOG[name])
    return found


def both(first: Mutant, second: Mutant) -> Mutant:
    """Return the two bugs at once."""
    return Mutant(
        f"{first.id} + {second.id}",
        f"{first.sentence}; and {second.sentence}",
        first.symptom,
        first.read,
        first.steps | second.steps,
        max(first.within, second.within, key=("", "flat", "layer").index),
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


# Splitting and joining heads


def _split_reshaped(x: Numbers) -> Numbers:
    return flat(x).reshape(x.shape)


def _split_interleaved(x: Numbers) -> Numbers:
    batch, num_heads, length, width = x.shape
    return flat(x).reshape(batch, length, width, num_heads).transpose(0, 3, 1, 2)


def _join_reshaped(out: Numbers) -> Numbers:
    batch, num_heads, length, _ = out.shape
    return heads(out.reshape(batch, length, -1), num_heads)


def _join_interleaved(out: Numbers) -> Numbers:
    batch, num_heads, length, width = out.shape
    return heads(out.transpose(0, 2, 3, 1).reshape(batch, length, width * num_heads), num_heads)


MIXED = "the loss falls, a little slower; nothing fails"
FOREIGN = "weights moved from elsewhere give wrong numbers"
bug(
    "split-without-transpose",
    "heads are mixed: the split is a reshape to (B, N, T, H) without the transpose",
    MIXED,
    "split-and-combine",
    "flat",
    "FuxiCTR #30; Chinese-Text-Classification-Pytorch #53",
    split=_split_reshaped,
)
bug(
    "join-without-transpose",
    "heads are mixed: their output is reshaped to (B, T, N·H) without the transpose back",
    MIXED,
    "split-and-combine",
    "flat",
    "jsbaan/transformer-from-scratch PR 6",
    join=_join_reshaped,
)
bug(
    "split-interleaved",
    "the split gives each head every N-th feature: it cuts into (H, N) in place of (N, H)",
    FOREIGN,
    "split-and-combine",
    "flat",
    split=_split_interleaved,
)
bug(
    "join-interleaved",
    "the join interleaves the features of the heads: (H, N) in place of (N, H)",
    FOREIGN,
    "split-and-combine",
    "flat",
    join=_join_interleaved,
)
bug(
    "join-heads-reversed",
    "the heads are joined in the reverse order",
    FOREIGN,
    "split-and-combine",
    "flat",
    join=lambda out: out[:, ::-1],
)
bug(
    "one-head",
    "the heads are not split: one head of the full width attends",
    "as if the number of heads made no difference",
    "one-head-or-two",
    "flat",
    split=lambda x: flat(x)[:, None],
)
bug(
    "attention-over-heads",
    "the heads of a position attend to each other, and positions do not: heads and positions are "
    "exchanged (a transpose is missing)",
    "a model that learns no context",
    "split-and-combine",
    operands=lambda q, k, v: tuple(x.swapaxes(1, 2) for x in (q, k, v)),
    join=lambda out: out.swapaxes(1, 2),
)
bug(
    "attention-over-batch",
    "the sequences of a batch attend to each other, position by position: batch and positions are "
    "exchanged",
    "results depend on the batch",
    "split-and-combine",
    operands=lambda q, k, v: tuple(x.swapaxes(0, 2) for x in (q, k, v)),
    join=lambda out: out.swapaxes(0, 2),
)

# Operands

OPERANDS: Table = {
    "keys-values-exchanged": ("keys and values are exchanged", lambda q, k, v: (q, v, k)),
    "queries-keys-exchanged": ("queries and keys are exchanged", lambda q, k, v: (k, q, v)),
    "queries-values-exchanged": ("queries and values are exchanged", lambda q, k, v: (v, k, q)),
    "keys-are-queries": ("the scores are of queries with queries", lambda q, k, v: (q, q, v)),
    "queries-are-keys": ("the scores are of keys with keys", lambda q, k, v: (k, k, v)),
    "values-are-keys": ("the keys take the place of the values", lambda q, k, v: (q, k, k)),
    "values-are-queries": ("the queries take the place of the values", lambda q, k, v: (q, k, q)),
    "keys-are-values": ("the values take the place of the keys", lambda q, k, v: (q, v, v)),
    "first-sequence-for-all": (
        "keys and values of the first sequence serve the whole batch",
        lambda q, k, v: (q, np.repeat(k[:1], len(k), 0), np.repeat(v[:1], len(v), 0)),
    ),
}
for _id, (_sentence, _wrong) in OPERANDS.items():
    bug(_id, _sentence, "a model that learns, worse", "scaled-attention", operands=_wrong)


# KV heads


def _tiled(x: Numbers, num_heads: int, c: Conventions) -> Numbers:
    return x[:, np.arange(num_heads) % x.shape[1]]


def _first(x: Numbers, num_heads: int, c: Conventions) -> Numbers:
    return np.repeat(x[:, :1], num_heads, 1) if x.shape[1] < num_heads else x


def _divided_by_kv_heads(x: Numbers, num_heads: int, c: Conventions) -> Numbers:
    grouped = x.shape[1] < num_heads
    return x[:, np.arange(num_heads) // x.shape[1]] if grouped else x


KV_HEADS: Table = {
    "kv-heads-tiled": (
        "KV heads are tiled, not repeated: query head h reads KV head h mod K",
        {"share_keys": _tiled, "share_values": _tiled},
    ),
    "kv-keys-tiled": (
        "keys of the KV heads are tiled and values repeated: the two are of different heads",
        {"share_keys": _tiled},
    ),
    "kv-values-tiled": (
        "values of the KV heads are tiled and keys repeated: the two are of different heads",
        {"share_values": _tiled},
    ),
    "kv-first-head": (
        "every query head reads the first KV head",
        {"share_keys": _first, "share_values": _first},
    ),
    "kv-divided-by-kv-heads": (
        "query head h reads KV head h // K, where h // (N / K) is right",
        {"share_keys": _divided_by_kv_heads, "share_values": _divided_by_kv_heads},
    ),
}
for _id, (_sentence, _steps) in KV_HEADS.items():
    _seen = "ONNX PR 7274; jax-js PR 180; axlearn PR 842" if _id == "kv-heads-tiled" else ""
    bug(_id, _sentence, FOREIGN, "grouped-query-attention", seen=_seen, **_steps)

# Scale

SCALES: Table = {
    "scale-missing": ("the scores are not scaled", lambda q, k: 1.0, "tt-metal PR 56789"),
    "scale-d-model": (
        "the scores are divided by √d_model (the width of all heads), not by √d_head",
        lambda q, k: (q.shape[1] * q.shape[-1]) ** -0.5,
        "ng-video-lecture PR 6; set_transformer #18",
    ),
    "scale-heads": (
        "the scores are divided by the root of the number of heads, not by √d_head",
        lambda q, k: q.shape[1] ** -0.5,
        "dfdx #171",
    ),
    "scale-no-root": (
        "the scores are divided by d_head, not by its root (or by the root twice)",
        lambda q, k: 1 / q.shape[-1],
        "",
    ),
    "scale-multiplied": (
        "the scores are multiplied by √d_head, not divided",
        lambda q, k: q.shape[-1] ** 0.5,
        "",
    ),
    "scale-keys": (
        "the scores are divided by the root of the number of keys, not by √d_head",
        lambda q, k: k.shape[-2] ** -0.5,
        "",
    ),
    "scale-queries": (
        "the scores are divided by the root of the number of queries, not by √d_head",
        lambda q, k: q.shape[-2] ** -0.5,
        "",
    ),
    "scale-batch": (
        "the scores are divided by the root of the batch size, not by √d_head",
        lambda q, k: q.shape[0] ** -0.5,
        "",
    ),
    "scale-half-width": (
        "the scores are divided by √(d_head / 2)",
        lambda q, k: (q.shape[-1] / 2) ** -0.5,
        "",
    ),
    "scale-fourth-root": (
        "the scores are divided by the fourth root of d_head: only one of q and k has it",
        lambda q, k: q.shape[-1] ** -0.25,
        "",
    ),
    "scale-sign": ("the scores have the opposite sign", lambda q, k: -(q.shape[-1] ** -0.5), ""),
}
SOFTER = "weights too even or too sharp; training makes up for much of it"
for _id, (_sentence, _wrong, _seen) in SCALES.items():
    bug(_id, _sentence, SOFTER, "scale", seen=_seen, scale=_wrong)
bug(
    "scale-after-softmax",
    "the weights are divided by √d_head after the softmax, not the scores before it",
    "outputs too small by √d_head",
    "scale",
    scale=lambda q, k: 1.0,
    mix=lambda weights, v: weights @ v * v.shape[-1] ** -0.5,
)

# Softmax


def _along(axis: int | tuple[int, ...]) -> Callable[..., Any]:
    return lambda scores, c: softmax(scores, c, axis)


def _powers(scores: Numbers, c: Conventions | None = None) -> Numbers:
    return np.exp(np.where(scores > 88.7, np.inf, scores))  # where float32 overflows


def _unstable(scores: Numbers, c: Conventions) -> Numbers:
    weights = _powers(scores) / _powers(scores).sum(-1, keepdims=True)
    return np.where(np.isneginf(scores).all(-1, keepdims=True), softmax(scores, c), weights)


def _rectified(scores: Numbers, c: Conventions) -> Numbers:
    positive = np.maximum(scores, 0)
    return positive / positive.sum(-1, keepdims=True)


AXES: dict[str, tuple[str, int | tuple[int, ...], str]] = {
    "softmax-over-queries": (
        "the softmax runs over the queries: the weights sum to one for each key, not each query",
        -2,
        "labml annotated implementations #146; PyTorch-NLP #2",
    ),
    "softmax-over-heads": (
        "the softmax runs over the heads: the heads' weights of each query and key sum to one",
        1,
        "",
    ),
    "softmax-over-batch": (
        "the softmax runs over the batch: each sequence depends on the others",
        0,
        "",
    ),
    "softmax-over-queries-and-keys": (
        "one softmax runs over all queries and keys of a head at once",
        (-2, -1),
        "",
    ),
    "softmax-over-heads-and-keys": (
        "one softmax runs over the keys of all heads at once",
        (1, -1),
        "DETR #247",
    ),
    "softmax-over-all": (
        "one softmax runs over all heads, queries and keys at once",
        (1, 2, 3),
        "",
    ),
}
for _id, (_sentence, _axis, _seen) in AXES.items():
    bug(
        _id,
        _sentence,
        "the loss falls all the same; a causal model sees the future",
        "scaled-attention",
        seen=_seen,
        softmax=_along(_axis),
    )

SOFTMAXES: Table = {
    "softmax-missing": (
        "there is no softmax: the scores themselves weigh the values",
        lambda scores, c: np.where(np.isneginf(scores), 0, scores),
    ),
    "softmax-unstable": (
        "the softmax does not subtract the maximum: large scores overflow",
        _unstable,
    ),
    "softmax-twice": (
        "the softmax is taken twice, so the weights are almost even",
        lambda scores, c: softmax(softmax(scores, c), c),
    ),
    "weights-do-not-sum": (
        "the exponentials are not divided by their sum",
        _powers,
    ),
    "sigmoid": (
        "a sigmoid takes the place of the softmax: the weights do not sum to one",
        lambda scores, c: 1 / (1 + np.exp(-scores)),
    ),
    "log-softmax": (
        "the logarithms of the weights are used (log_softmax for softmax)",
        lambda scores, c: np.log(softmax(scores, c)),
    ),
    "softmax-base-two": (
        "the softmax has base 2: exp2 without the factor log2(e)",
        lambda scores, c: softmax(scores * np.log(2), c),
    ),
    "relu": ("a normalized ReLU takes the place of the softmax", _rectified),
    "softmax-one-more": (
        "the softmax's sum has one too many (a sink, or a large epsilon)",
        lambda scores, c: _powers(scores) / (1 + _powers(scores).sum(-1, keepdims=True)),
    ),
    "argmax": (
        "the best key alone is read (argmax for softmax)",
        lambda scores, c: np.eye(scores.shape[-1])[scores.argmax(-1)],
    ),
}
for _id, (_sentence, _wrong) in SOFTMAXES.items():
    bug(_id, _sentence, "outputs of the wrong size", "scaled-attention", softmax=_wrong)


# Masks


def _tiled_masks(mask: Numbers, num_heads: int) -> Numbers:
    whole = np.broadcast_to(mask, (len(mask), num_heads, *mask.shape[-2:]))
    tiled = np.tile(whole[:, 0], (num_heads, 1, 1))
    return tiled.reshape(whole.shape)


LEAK = "the loss falls too well, and generation is worse than the loss promised"
PADDING = "results change with the padding and with the other sequences of the batch"
MASKS: Table = {
    "mask-inverted": (
        "the mask is inverted: True hides where True should let attend",
        lambda mask, num_heads: ~mask,
        "LLMs-from-scratch #1061; PyTorch PR 170415; x-transformers #164",
    ),
    "mask-ignored": ("the mask is ignored", lambda mask, num_heads: np.ones_like(mask), ""),
    "mask-transposed": (
        "the mask is transposed: it hides queries from keys, not keys from queries",
        lambda mask, num_heads: mask.swapaxes(-1, -2),
        "",
    ),
    "mask-first-sequence": (
        "the mask of the first sequence serves the whole batch",
        lambda mask, num_heads: np.repeat(mask[:1], len(mask), 0),
        "",
    ),
    "mask-heads-order": (
        "masks are tiled over batch × heads, not repeated: sequences get each other's masks",
        _tiled_masks,
        "lighthouse PR 77; attention-is-all-you-need-keras #36",
    ),
    "mask-first-head-only": (
        "the mask reaches the first head alone",
        lambda mask, num_heads: mask | (np.arange(num_heads)[:, None, None] > 0),
        "",
    ),
}
for _id, (_sentence, _wrong, _seen) in MASKS.items():
    bug(_id, _sentence, PADDING, "scaled-attention", seen=_seen, mask=_wrong)

HIDES: Table = {
    "hidden-scores-zero": (
        "hidden scores are set to 0 (or -1e-9), not to -inf: hidden keys get weight",
        lambda scores, visible, c: np.where(visible, scores, 0),
    ),
    "mask-added-as-numbers": (
        "the boolean mask is added to the scores as 0 and 1, which hides nothing",
        lambda scores, visible, c: scores + visible,
    ),
    "hidden-scores-raised": (
        "hidden scores are raised by the large number that should lower them",
        lambda scores, visible, c: np.where(visible, scores, scores + 1e9),
    ),
    "hide-nothing": ("no mask of any kind is applied", lambda scores, visible, c: scores),
}
for _id, (_sentence, _wrong) in HIDES.items():
    bug(_id, _sentence, LEAK, "scaled-attention", hide=_wrong)
bug(
    "mask-after-softmax",
    "the mask is applied after the softmax: the weights that are left do not sum to one",
    "hidden keys still shrink the output",
    "scaled-attention",
    hide=lambda scores, visible, c: scores,
    after=lambda weights, visible: weights * visible,
)

# Causal mask, window, empty rows, documents


def _from_corner(last: int) -> Callable[..., Any]:
    def causal(distance: Numbers) -> Numbers:  # whatever the convention has
        queries, keys = distance.shape
        own = np.arange(queries)[:, None] - np.arange(keys)
        return own + last * (keys - queries) >= 0

    return causal


CAUSALS: Table = {
    "causal-ignored": (
        "there is no causal mask: queries see the future",
        lambda distance: np.ones_like(distance, bool),
        "",
    ),
    "causal-one-ahead": (
        "the causal mask is off by one: each query sees the next key too",
        lambda distance: distance >= -1,
        "",
    ),
    "causal-strict": (
        "the causal mask hides the diagonal: no query sees its own key",
        lambda distance: distance > 0,
        "",
    ),
    "causal-reversed": (
        "the causal mask is the wrong triangle: queries see the future and not the past",
        lambda distance: distance <= 0,
        "",
    ),
    "causal-inverted": (
        "the causal mask is inverted: queries see only what comes after them",
        lambda distance: distance < 0,
        "",
    ),
    "causal-top-left": (
        "the causal mask starts at the top left: in decoding, the newest keys are hidden",
        _from_corner(0),
        "PyTorch #108108; MLX PR 2836; flashinfer PR 348; executorch PR 21749",
    ),
    "causal-bottom-right": (
        "the causal mask ends at the bottom right, where the top left was meant",
        _from_corner(1),
        "",
    ),
}
for _id, (_sentence, _wrong, _seen) in CAUSALS.items():
    bug(_id, _sentence, LEAK, "scaled-attention", seen=_seen, causal=_wrong)

WINDOWS: Table = {
    "window-ignored": (
        "the window is ignored",
        lambda distance, size: np.ones_like(distance, bool),
        "",
    ),
    "window-one-more": (
        "the window shows W + 1 keys, where W with the query's own were meant",
        lambda distance, size: distance <= size,
        "transformers PR 26792; mlx-lm PR 390; vLLM #3385",
    ),
    "window-one-less": (
        "the window shows W - 1 keys, where W with the query's own were meant",
        lambda distance, size: distance < size - 1,
        "",
    ),
    "window-inverted": (
        "the window is inverted: queries see what is outside it",
        lambda distance, size: distance >= size,
        "",
    ),
    "window-halved": (
        "the window is laid around the query, so that half of it is lost",
        lambda distance, size: distance <= size // 2,
        "",
    ),
}
for _id, (_sentence, _wrong, _seen) in WINDOWS.items():
    bug(_id, _sentence, "short texts are right", "variants", seen=_seen, window=_wrong)

EMPTY = "NaN, or invented values, where a sequence is padding alone"
bug(
    "empty-row-nan",
    "a query that may see no key gives NaN",
    EMPTY,
    "scaled-attention",
    seen="PyTorch #103963",
    after=lambda weights, visible: np.where(visible.any(-1, keepdims=True), weights, np.nan),
)
bug(
    "empty-row-mean",
    "a query that may see no key gives the mean of all values",
    EMPTY,
    "scaled-attention",
    seen="ONNX PR 8068",
    after=lambda weights, visible: np.where(
        visible.any(-1, keepdims=True), weights, 1 / weights.shape[-1]
    ),
)

SEGMENTS: Table = {
    "documents-leak": ("packed documents see each other", lambda s: np.ones((1, 1, 1, 1), bool)),
    "documents-see-earlier": (
        "a packed document sees those before it",
        lambda s: s[:, None, :, None] >= s[:, None, None, :],
    ),
    "documents-inverted": (
        "packed documents see each other and not themselves",
        lambda s: s[:, None, :, None] != s[:, None, None, :],
    ),
}
for _id, (_sentence, _wrong) in SEGMENTS.items():
    bug(
        _id,
        _sentence,
        "a document's loss depends on what it is packed with",
        "scaled-attention",
        seen="transformers PR 46634; axolotl PR 3796; nanoVLM PR 204",
        segments=_wrong,
    )

# Weights and values

MIXES: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "dropout-factor": (
        "the output is halved, as by dropout's factor",
        "dropout-and-gates",
        lambda weights, v: weights @ v / 2,
    ),
    "weights-transposed": (
        "the weights are transposed before they meet the values",
        "scaled-attention",
        lambda weights, v: weights.swapaxes(-1, -2) @ v,
    ),
    "heads-averaged": (
        "the weights are averaged over the heads before they meet the values",
        "one-head-or-two",
        lambda weights, v: np.broadcast_to(weights.mean(1, keepdims=True), weights.shape) @ v,
    ),
    "heads-share-weights": (
        "the weights of the first head serve all heads",
        "one-head-or-two",
        lambda weights, v: np.broadcast_to(weights[:, :1], weights.shape) @ v,
    ),
}
for _id, (_sentence, _read, _wrong) in MIXES.items():
    bug(_id, _sentence, "a model that learns, worse", _read, mix=_wrong)


def _dropped(weights: Numbers, visible: Numbers) -> Numbers:
    return weights * (np.random.default_rng().random(weights.shape) < 0.5) * 2


bug(
    "dropout-in-evaluation",
    "dropout is active in evaluation: two equal calls differ",
    "noise in every result",
    "dropout-and-gates",
    seen="PyTorch #124464; timm PR 1978; wenet #2699",
    after=_dropped,
)

# Rotary positions


def _uneven(kind: str) -> Callable[..., Any]:
    def rotated(q: Numbers, k: Numbers, v: Numbers, c: Conventions) -> Numbers:
        own = frequencies(q.shape[-1])
        laid_out = np.repeat(own, 2) if kind == "half" else np.tile(own, 2)
        return turn(q, kind, laid_out), turn(k, kind, laid_out), v

    return rotated


def _kind(c: Conventions) -> str:
    return "half" if c.rope == "none" else c.rope


def _slow(q: Numbers, k: Numbers, v: Numbers, c: Conventions) -> Numbers:
    halved = frequencies(q.shape[-1]) ** 0.5
    return turn(q, _kind(c), halved), turn(k, _kind(c), halved), v


ROPES: Table = {
    "rope-half-with-adjacent-frequencies": (
        "RoPE pairs features i and i + H/2, with frequencies laid out for adjacent pairs",
        _uneven("half"),
    ),
    "rope-adjacent-with-half-frequencies": (
        "RoPE pairs adjacent features, with frequencies laid out for i and i + H/2",
        _uneven("adjacent"),
    ),
    "rope-queries-only": (
        "RoPE turns the queries and not the keys",
        lambda q, k, v, c: (turn(q, _kind(c)), k, v),
    ),
    "rope-keys-only": (
        "RoPE turns the keys and not the queries",
        lambda q, k, v, c: (q, turn(k, _kind(c)), v),
    ),
    "rope-values-too": (
        "RoPE turns the values too",
        lambda q, k, v, c: tuple(turn(x, _kind(c)) for x in (q, k, v)),
    ),
    "rope-opposite": (
        "RoPE turns queries and keys in opposite directions: scores know no distance",
        lambda q, k, v, c: (turn(q, _kind(c)), turn(k, _kind(c), sign=-1), v),
    ),
    "rope-pairs-differ": (
        "RoPE pairs the queries' features by halves and the keys' adjacent ones",
        lambda q, k, v, c: (turn(q, "half"), turn(k, "adjacent"), v),
    ),
    "rope-exponent": ("RoPE's frequencies have the exponent i/H in place of 2i/H", _slow),
}
for _id, (_sentence, _wrong) in ROPES.items():
    bug(
        _id,
        _sentence,
        "the first token is right, then nonsense",
        "position",
        seen="shainet PR 111; transformers #25199; TinyLlama #24" if "frequencies" in _id else "",
        rotate=_wrong,
    )

# Layers

OUTPUTS: Table = {
    "output-projection-missing": ("the output projection is not applied", lambda joined, w: joined),
    "output-bias-missing": ("the output's bias is not added", lambda joined, w: joined @ w.o),
    "output-projection-transposed": (
        "the output projection is used transposed",
        lambda joined, w: joined @ w.o.T + w.o_bias,
    ),
    "output-projected-twice": (
        "the output projection is applied twice",
        lambda joined, w: (joined @ w.o + w.o_bias) @ w.o + w.o_bias,
    ),
}
for _id, (_sentence, _wrong) in OUTPUTS.items():
    bug(_id, _sentence, FOREIGN, "multi-head-layer", "layer", output=_wrong)

PROJECTIONS: Table = {
    "keys-projected-as-queries": (
        "the projection of the queries serves the keys too",
        lambda w: w._replace(k=w.q, k_bias=w.q_bias),
    ),
    "values-projected-as-keys": (
        "the projection of the keys serves the values too",
        lambda w: w._replace(v=w.k, v_bias=w.k_bias),
    ),
    "values-projected-as-queries": (
        "the projection of the queries serves the values too",
        lambda w: w._replace(v=w.q, v_bias=w.q_bias),
    ),
    "biases-missing": (
        "the biases of queries, keys and values are not added",
        lambda w: w._replace(q_bias=0 * w.q_bias, k_bias=0 * w.k_bias, v_bias=0 * w.v_bias),
    ),
}
for _id, (_sentence, _wrong) in PROJECTIONS.items():
    bug(_id, _sentence, FOREIGN, "multi-head-layer", "layer", weights=_wrong)
