r"""What attention should give: a NumPy oracle in float64, taken apart into steps.

$O = \operatorname{softmax}(QK^\top/\sqrt{H} + M)\,V$, with one small function for each step, so
that a bug is one step replaced by another. Nothing here uses JAX or the package's attention.

Shapes: ``B`` sequences, ``N`` query heads, ``K`` KV heads, ``T`` queries, ``S`` keys, ``H`` and
``C`` the widths of a key and of a value, ``D`` width of the model.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

__all__ = [
    "CONVENTIONS",
    "RIGHT",
    "Case",
    "Conventions",
    "Steps",
    "Weights",
    "attend",
    "attend_layer",
]

Numbers = Any  # NumPy arrays of float64; the steps below have their shapes in comments

TEXTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("catalog.toml").read_text("utf8"))

CONVENTIONS: dict[str, dict[str, str]] = TEXTS["conventions"]
"""What legitimate implementations do differently: convention -> choice -> the choice in words."""


class Conventions(NamedTuple):
    """One choice of each convention of :data:`CONVENTIONS`, at first the usual one.

    With ``T != S``, the causal diagonal has a corner at the first query and the first key
    ("top-left"), or at the last of both ("bottom-right"). ``empty`` is what a query gets to which a
    mask leaves no key, ``emptied`` one to which the causal mask alone leaves none, and ``window``
    how many keys a window ``W`` shows. Rotary positions inside have pairs of features ``i`` and
    ``i + H / 2`` ("half") or ``2 i`` and ``2 i + 1`` ("adjacent").
    """

    causal: str = "if asked"
    corner: str = "top-left"
    empty: str = "zero"
    emptied: str = "zero"
    window: str = "W"
    kv_heads: str = "repeat"
    rope: str = "none"


USUAL = Conventions()


class Case(NamedTuple):
    """The operands of one call.

    Args:
        q: queries.
        k: keys.
        v: values.
        mask: True where a query may attend; axes of size 1 stand for all.
        causal: whether a causal mask is asked for.
        window: how many keys up to its own a query may see; None for all.
        segments: the document of each position, where documents are packed.
    """

    q: Float[np.ndarray, "B N T H"]
    k: Float[np.ndarray, "B K S H"]
    v: Float[np.ndarray, "B K S C"]
    mask: Bool[np.ndarray, "B|1 N|1 T|1 S"] | None = None
    causal: bool = False
    window: int | None = None
    segments: Int[np.ndarray, "B S"] | None = None


class Weights(NamedTuple):
    """The parameters of a layer, for ``x @ weight + bias``; biases that it lacks are zero."""

    q: Float[np.ndarray, "D NH"]
    k: Float[np.ndarray, "D KH"]
    v: Float[np.ndarray, "D KC"]
    o: Float[np.ndarray, "NC D"]
    q_bias: Float[np.ndarray, "NH"]
    k_bias: Float[np.ndarray, "KH"]
    v_bias: Float[np.ndarray, "KC"]
    o_bias: Float[np.ndarray, "D"]


def flat(x: Numbers) -> Numbers:
    """Lay the heads side by side: ``(B, N, T, H)`` to ``(B, T, N·H)``."""
    return x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)


def heads(x: Numbers, num_heads: int) -> Numbers:
    """Cut into heads: ``(B, T, N·H)`` to ``(B, N, T, H)``."""
    return x.reshape(*x.shape[:2], num_heads, -1).transpose(0, 2, 1, 3)


def share(x: Numbers, num_heads: int, conventions: Conventions) -> Numbers:
    """Give every query head its KV head: ``(B, K, S, H)`` to ``(B, N, S, H)``."""
    h = np.arange(num_heads)
    num_kv_heads = x.shape[1]
    chosen = h % num_kv_heads if conventions.kv_heads == "tile" else h * num_kv_heads // num_heads
    return x[:, chosen]


def frequencies(width: int) -> Numbers:
    """Return the H/2 frequencies of rotary positions, base 10,000."""
    return 10_000.0 ** -(np.arange(width // 2) / (width // 2))


def turn(
    x: Numbers, kind: str, speeds: Numbers | None = None, sign: int = 1, first: int = 0
) -> Numbers:
    """Rotate pairs of features by position; ``speeds`` are H/2 frequencies, or one a feature."""
    half = x.shape[-1] // 2
    order = np.arange(2 * half).reshape((2, half) if kind == "half" else (half, 2))
    if kind == "adjacent":
        order = order.T
    speeds = frequencies(x.shape[-1]) if speeds is None else speeds
    if len(speeds) == half:
        speeds = np.concatenate([speeds, speeds])[np.argsort(order.ravel())]
    angle = sign * (first + np.arange(x.shape[-2]))[:, None] * speeds
    pairs = np.concatenate([-x[..., order[1]], x[..., order[0]]], -1)
    partner = pairs[..., np.argsort(order.ravel())]
    return x * np.cos(angle) + partner * np.sin(angle)


def rotate(q: Numbers, k: Numbers, v: Numbers, conventions: Conventions) -> Numbers:
    """Rotate queries and keys, where the convention has it."""
    if conventions.rope == "none":
        return q, k, v
    first = k.shape[-2] - q.shape[-2] if conventions.corner == "bottom-right" else 0
    return turn(q, conventions.rope, first=first), turn(k, conventions.rope), v


def hide(scores: Numbers, visible: Numbers, conventions: Conventions) -> Numbers:
    """Put minus infinity where a query may not attend."""
    if conventions.empty == "ignored":
        visible = visible | ~visible.any(-1, keepdims=True)
    return np.where(visible, scores, -np.inf)


def softmax(scores: Numbers, conventions: Conventions, axis: int | tuple[int, ...] = -1) -> Numbers:
    """Return exponentials that sum to one along ``axis``; empty rows are by convention."""
    top = scores.max(axis, keepdims=True)
    empty = np.isneginf(top)
    powers = np.exp(scores - np.where(empty, 0, top))
    total = powers.sum(axis, keepdims=True)
    count = powers.size // total.size
    fill = {"mean": 1 / count, "nan": np.nan}.get(conventions.empty, 0.0)
    return np.where(empty, fill, powers / np.where(empty, 1, total))


class Steps(NamedTuple):
    """The steps of attention as functions; a bug replaces one of them.

    In the order of their use, ``distance`` being the position of a query minus that of a key, and
    ``c`` the conventions. ``split`` and ``join`` get the heads as they should be and return them as
    they come out; ``inputs``, ``weights`` and ``output`` belong to a layer.
    """

    inputs: Callable[..., Numbers] = lambda x, y, z: (x, y, z)
    weights: Callable[..., Weights] = lambda w: w
    split: Callable[..., Numbers] = lambda x: x
    operands: Callable[..., Numbers] = lambda q, k, v: (q, k, v)
    share_keys: Callable[..., Numbers] = share
    share_values: Callable[..., Numbers] = share
    rotate: Callable[..., Numbers] = rotate
    scale: Callable[..., float] = lambda q, k: q.shape[-1] ** -0.5
    score: Callable[..., Numbers] = lambda q, k: q @ k.swapaxes(-1, -2)
    causal: Callable[..., Numbers] = lambda distance: distance >= 0
    window: Callable[..., Numbers] = lambda distance, size: distance < size
    mask: Callable[..., Numbers] = lambda mask, num_heads: mask
    segments: Callable[..., Numbers] = lambda s: s[:, None, :, None] == s[:, None, None, :]
    hide: Callable[..., Numbers] = hide
    softmax: Callable[..., Numbers] = softmax
    after: Callable[..., Numbers] = lambda weights, visible: weights
    mix: Callable[..., Numbers] = lambda weights, v: weights @ v
    join: Callable[..., Numbers] = lambda out: out
    output: Callable[..., Numbers] = lambda joined, w: joined @ w.o + w.o_bias


RIGHT = Steps()
"""Every step of the formula as it should be."""


def visibility(case: Case, c: Conventions, steps: Steps) -> Numbers:
    """Return which query may attend to which key, ``(B|1, N|1, T, S)``."""
    queries, keys = case.q.shape[2], case.k.shape[2]
    first = keys - queries if c.corner == "bottom-right" else 0
    distance = np.arange(queries)[:, None] + first - np.arange(keys)
    visible = np.ones((1, 1, 1, 1), bool)
    if case.causal or c.causal == "always":
        visible = visible & steps.causal(distance)
    if case.window is not None:
        visible = visible & steps.window(distance, case.window + (c.window == "W + 1"))
    if case.mask is not None:
        visible = visible & steps.mask(case.mask, case.q.shape[1])
    if case.segments is not None:
        visible = visible & steps.segments(case.segments)
    return visible


def attend(
    case: Case, conventions: Conventions = USUAL, steps: Steps = RIGHT
) -> Float[np.ndarray, "B N T C"]:
    r"""Return $\operatorname{softmax}(QK^\top/\sqrt{H})\,V$, or what replaced steps make of it.

    Args:
        case: queries, keys, values and what hides them from each other.
        conventions: which of the legitimate choices are meant.
        steps: the steps of the formula, or one of the wrong ones of a
            :class:`~mha_book.conformance.mutants.Mutant`.

    Returns:
        The output of every query.

    Example:
        >>> one = np.ones((1, 1, 2, 4))
        >>> attend(Case(one, one, np.arange(8.0).reshape(1, 1, 2, 4)))[0, 0, 0].tolist()
        [2.0, 3.0, 4.0, 5.0]
    """
    with np.errstate(all="ignore"):
        q, k, v = steps.operands(*(steps.split(x) for x in case[:3]))
        num_heads = q.shape[1]
        k = steps.share_keys(k, num_heads, conventions)
        v = steps.share_values(v, num_heads, conventions)
        q, k, v = steps.rotate(q, k, v, conventions)
        visible = visibility(case, conventions, steps)
        if case.mask is None:
            conventions = conventions._replace(empty=conventions.emptied)
        scores = steps.score(q, k) * steps.scale(q, k)
        weights = steps.softmax(steps.hide(scores, visible, conventions), conventions)
        return np.asarray(steps.join(steps.mix(steps.after(weights, visible), v)))


def attend_layer(
    x: Float[np.ndarray, "B T D"],
    weights: Weights,
    num_heads: int,
    case: Case,
    conventions: Conventions = USUAL,
    steps: Steps = RIGHT,
    memory: tuple[Numbers, Numbers] | None = None,
) -> Float[np.ndarray, "B T D"]:
    """Return what a layer makes of ``x``: projections, attention, output projection.

    Args:
        x: the input.
        weights: the layer's parameters.
        num_heads: ``N``.
        case: what hides positions from each other; its operands are replaced.
        conventions: which of the legitimate choices are meant.
        steps: the steps, right or wrong.
        memory: what keys and values are projected from in cross-attention, ``(B, S, D)`` each; None
            for ``x`` itself.

    Example:
        >>> eye, zero = np.eye(2), np.zeros(2)
        >>> w = Weights(eye, eye, eye, eye, zero, zero, zero, zero)
        >>> x = np.ones((1, 3, 2))
        >>> attend_layer(x, w, 1, Case(x[None], x[None], x[None])).shape
        (1, 3, 2)
    """
    w = steps.weights(weights)
    num_kv_heads = weights.k.shape[1] * num_heads // weights.q.shape[1]
    x, y, z = steps.inputs(x, *(memory or (x, x)))
    q = heads(x @ w.q + w.q_bias, num_heads)
    k = heads(y @ w.k + w.k_bias, num_kv_heads)
    v = heads(z @ w.v + w.v_bias, num_kv_heads)
    joined = flat(attend(case._replace(q=q, k=k, v=v), conventions, steps))
    with np.errstate(all="ignore"):
        return np.asarray(steps.output(joined, w))
