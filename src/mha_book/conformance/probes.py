"""What is tried: cases that each need one thing of an attention, smallest first.

A scene is a case of given sizes. Sizes are all different, so that a wrong axis shows.
"""

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from mha_book.conformance.oracle import Case

__all__ = ["SCENES", "Scene", "make_case"]


class Sizes(NamedTuple):
    """The sizes of a case: batch, query heads, KV heads, queries, keys, width."""

    batch: int = 2
    heads: int = 6
    kv_heads: int = 6
    queries: int = 7
    keys: int = 7
    width: int = 8


class Scene(NamedTuple):
    """One kind of call.

    Args:
        name: its id.
        text: the property that it tests, as the table says it.
        needs: the roles of arguments without which it is not tried.
        settles: the conventions that show in it.
        finite: whether it asks for finite numbers alone, since these are beyond half precision.
    """

    name: str
    text: str
    needs: tuple[str, ...] = ()
    settles: tuple[str, ...] = ()
    finite: bool = False


SIZES = Sizes()
SCENES = (
    Scene("plain", "the formula, softmax(QKᵀ/√d_head) V", (), ("causal", "rope")),
    Scene("cross", "more keys than queries", (), ("corner",)),
    Scene("large", "large scores stay finite", finite=True),
    Scene("mask", "the mask hides what it should", ("mask",), ("empty",)),
    Scene("padding", "padding is hidden in each sequence", ("mask",), ("empty",)),
    Scene("empty", "a query that may see no key", ("mask",), ("empty",)),
    Scene("causal", "the causal mask hides the future", ("causal",)),
    Scene("causal-short", "causal, fewer queries than keys", ("causal",), ("corner",)),
    Scene("causal-long", "causal, more queries than keys", ("causal",), ("corner", "emptied")),
    Scene("grouped", "grouped KV heads", (), ("kv_heads",)),
    Scene(
        "window", "the window shows as many keys as it says", ("window", "causal mask"), ("window",)
    ),
    Scene("packed", "packed documents do not see each other", ("segments",)),
)
"""In the order in which they are tried: what an earlier one settles is known to the later."""


def make_case(name: str, sizes: Sizes = SIZES, seed: int = 0) -> Case:
    """Return the case of a scene.

    Example:
        >>> make_case("cross").q.shape, make_case("cross").k.shape
        ((2, 6, 5, 8), (2, 6, 7, 8))
    """
    rng = np.random.default_rng(seed)
    b, n, k, t, s, h = sizes
    if name == "grouped":
        k = n // 2 if n % 2 == 0 else 1
    if name in ("cross", "causal-short"):
        t = max(1, s - 2)
    if name == "causal-long":
        s = max(1, t - 3)
    q = rng.normal(size=(b, n, t, h)) * 1.5
    case = Case(q, rng.normal(size=(b, k, s, h)), rng.normal(size=(b, k, s, h)))
    if name == "large":
        return case._replace(q=q * 1000)
    if name in ("mask", "empty"):
        mask = rng.random((b, 1, t, s)) < 0.5
        mask[..., 0] = True
        if name == "empty":
            mask[:, :, t // 2] = False
        return case._replace(mask=mask)
    if name == "padding":
        lengths = s - np.arange(b) * (s // (2 * b) + 1) % s
        return case._replace(mask=(np.arange(s) < lengths[:, None])[:, None, None])
    if name == "packed":
        return case._replace(segments=np.sort(rng.integers(0, 3, (b, s)), axis=1))
    causal = name.startswith("causal") or name == "window"
    return case._replace(causal=causal, window=5 if name == "window" else None)


def smaller(name: str) -> Iterator[Sizes]:
    """Return sizes from the smallest up, for the smallest counterexample of a scene."""
    every = product((1, 2), (1, 2, 4), (1, 2, 3, 4), (1, 2, 3, 4), (2, 4))
    ordered = sorted(every, key=lambda size: (np.prod(size), size))
    for batch, num_heads, queries, keys, width in ordered:
        if name in ("cross", "causal-short", "causal-long") or queries == keys:
            yield Sizes(batch, num_heads, num_heads, queries, keys, width)
