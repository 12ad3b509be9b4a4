"""A model as a black box, from tokens to logits: what must not change the logits does not.

Nothing is known of its inside. Change a token: nothing before it moves. Pad, pack, shift, batch, or
read in pieces over a cache: nothing moves at all.
"""

import inspect
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mha_book.conformance.check import quietly, raised
from mha_book.conformance.layer import build
from mha_book.conformance.oracle import TEXTS, Numbers
from mha_book.conformance.report import Property, Report
from mha_book.conformance.subject import array_of, kind_of, numbers_of, roles_of

__all__ = ["assert_model", "check_model"]

PROBLEMS: dict[str, str] = TEXTS["models"]
LENGTH, SHIFT = 9, 5
TOLERANCE = 1e-3
"""Of logits, relative to their spread: reading in pieces sums in another order."""


class Black(NamedTuple):
    """A model that is called with tokens ``(B, T)`` and returns logits ``(B, T, V)``."""

    function: Callable[..., Any]
    kind: str
    roles: dict[str, str]
    vocabulary: int

    def raw(self, tokens: Numbers, **given: Any) -> Any:
        """Return what the model returns."""
        arrays = {
            self.roles[role]: value if "cache" in role else array_of(self.kind, value)
            for role, value in given.items()
            if role in self.roles
        }
        return self.function(array_of(self.kind, tokens), **arrays)

    def logits(self, tokens: Numbers, **given: Any) -> Numbers:
        """Return the logits, ``(B, T, V)``."""
        return logits_of(self.raw(tokens, **given))


def logits_of(output: Any) -> Numbers:
    """Return the logits of what a model returned."""
    return numbers_of(getattr(output, "logits", output))


def check_model(
    model: Any,
    *,
    vocabulary: int = 64,
    causal: bool = True,
    kind: str | None = None,
    names: dict[str, str] | None = None,
    name: str | None = None,
) -> Report:
    """Check a model from tokens ``(B, T)`` to logits ``(B, T, V)`` as a black box.

    Args:
        model: called as ``model(tokens)``; what it returns is the logits, has them as ``.logits``,
            or is a tuple that begins with them. With arguments for a mask of the padding, for
            positions, for documents or for a cache, it is tried with these too.
        vocabulary: how many tokens it knows; token 0 is used as padding.
        causal: whether it must not see the future.
        kind: "numpy", "jax" or "torch"; guessed if not told.
        names: role (padding, positions, segments, cache, use_cache) -> name of the parameter.
        name: for the report.

    Example:
        >>> import numpy as np
        >>> table = np.random.default_rng(0).normal(size=(64, 64))
        >>> def reads_ahead(tokens):  # the mean over the whole text, the future included
        ...     return table[tokens] + table[tokens].mean(1, keepdims=True)
        >>> check_model(reads_ahead).diagnosis[0]
        'every position sees the whole future: there is no causal mask (or it is an encoder: ...
    """
    start = time.monotonic()
    if inspect.isclass(model):
        model = build(model)
    if hasattr(model, "eval") and hasattr(model, "named_parameters"):
        model.eval()
    function = getattr(model, "forward", model)
    roles = roles_of(function, names or {}, TEXTS["model_arguments"])
    box = Black(model, kind or kind_of(model), roles, vocabulary)
    tokens = np.random.default_rng(0).integers(1, vocabulary, (3, LENGTH))
    lines: list[Property] = []
    words: list[str] = []
    with quietly():
        for text, needs, probe in probes(causal):
            if needs and needs not in roles:
                lines.append(Property(text, "not tried", "no argument for it"))
                continue
            try:
                problem = probe(box, tokens)
            except Exception as error:
                lines.append(Property(text, "not tried", raised(error)))
                continue
            lines.append(Property(text, "failed" if problem else "passed"))
            # a model that sees the future reads what follows it too
            if problem and not (words and text.startswith("padding on the right")):
                words.append(problem)
        told = shifted(box, tokens)
    if all(line.outcome == "not tried" for line in lines):
        raise ValueError(f"subject: the model cannot be called: {lines[0].remark}")
    seconds = time.monotonic() - start
    title = str(name or getattr(model, "__name__", type(model).__name__))
    return Report(title, tuple(lines), told, tuple(words), (), None, seconds)


def assert_model(model: Any, **told: Any) -> None:
    """Fail, with the report as message, unless a model passes: the line for a test.

    Args:
        model: as for :func:`check_model`.
        **told: as for it.

    Raises:
        AssertionError: a property failed.
    """
    report = check_model(model, **told)
    if not report.passed:
        raise AssertionError(str(report))


Probe = Callable[[Black, Numbers], str]


def probes(causal: bool) -> Iterator[tuple[str, str, Probe]]:
    """Return properties, the argument without which each is not tried, and what tries it.

    A probe returns "" if the property holds, a sentence if not.
    """
    yield "two equal calls agree", "", randomness
    if causal:
        yield "no position sees the future", "", future
    yield "sequences of a batch are independent", "", batching
    yield "padding on the right changes nothing", "" if causal else "padding", padding(False)
    yield "padding on the left changes nothing", "padding", padding(True)
    yield "packed documents do not see each other", "segments", packing
    if causal:
        yield "reading token by token over the cache", "cache", cached(1)
        yield "reading in chunks over the cache", "cache", cached(4)


def moved(before: Numbers, after: Numbers) -> Numbers:
    """Return where logits differ, ``(B, T)``."""
    scale = 1 + np.abs(before).max(initial=0)
    same = np.abs(before - after).max(-1) <= TOLERANCE * scale
    return ~same


def unless_same(before: Numbers, after: Numbers, problem: str) -> str:
    """Return "" where nothing moved, and what the catalog says of the problem otherwise."""
    return PROBLEMS[problem] if moved(before, after).any() else ""


def randomness(box: Black, tokens: Numbers) -> str:
    """Return whether evaluation is random."""
    return unless_same(box.logits(tokens), box.logits(tokens), "random")


def future(box: Black, tokens: Numbers) -> str:
    """Return how far ahead positions see, from a change of each token."""
    before = box.logits(tokens[:1])
    ahead: list[int] = []
    for changed in range(1, LENGTH):
        other = tokens[:1].copy()
        other[0, changed] = other[0, changed] % (box.vocabulary - 1) + 1
        where = np.flatnonzero(moved(before, box.logits(other))[0, :changed])
        ahead += [int(changed - position) for position in where]
    if not ahead:
        return ""
    pairs = LENGTH * (LENGTH - 1) // 2
    few = "one_ahead" if {*ahead} == {1} else "ahead"
    problem = PROBLEMS["all_ahead" if len(ahead) == pairs else few]
    return problem.format(most=max(ahead), count=len(ahead), pairs=pairs)


def batching(box: Black, tokens: Numbers) -> str:
    """Return whether a sequence's logits depend on the others of its batch."""
    alone = np.concatenate([box.logits(tokens[n : n + 1]) for n in range(len(tokens))])
    return unless_same(alone, box.logits(tokens), "batch")


def padding(left: bool) -> Probe:
    """Return the probe whether tokens of padding, first or last, change the logits of the text."""
    added, kept = ((3, 0), slice(3, None)) if left else ((0, 3), slice(LENGTH))

    def probe(box: Black, tokens: Numbers) -> str:
        padded, mask = (np.pad(x, ((0, 0), added)) for x in (tokens, np.ones_like(tokens)))
        before, after = box.logits(tokens), box.logits(padded, padding=mask)[:, kept]
        problem = unless_same(before, after, "left_padding" if left else "right_padding")
        if left and problem and "positions" in box.roles:
            positions = np.maximum(np.cumsum(mask, 1) - 1, 0)
            after = box.logits(padded, padding=mask, positions=positions)[:, kept]
            return unless_same(before, after, "left_padding_read")
        return problem

    return probe


def packing(box: Black, tokens: Numbers) -> str:
    """Return whether a document's logits depend on the one before it in a packed sequence."""
    documents = tokens[:1], tokens[1:2, : LENGTH - 2]
    sizes = [document.shape[1] for document in documents]
    together = box.logits(
        np.concatenate(documents, 1),
        segments=np.repeat([1, 2], sizes)[None],
        positions=np.concatenate([np.arange(size) for size in sizes])[None],
    )
    alone = np.concatenate([box.logits(document) for document in documents], 1)
    return unless_same(alone, together, "packing")


def cached(chunk: int) -> Probe:
    """Return the probe that reads a text in chunks over a cache."""

    def probe(box: Black, tokens: Numbers) -> str:
        cache, parts = None, []
        for start in range(0, LENGTH, chunk):
            given: dict[str, Any] = {} if cache is None else {"cache": cache}
            output = box.raw(tokens[:, start : start + chunk], use_cache=True, **given)
            cache = getattr(output, "past_key_values", None)
            if cache is None and isinstance(output, tuple) and len(output) > 1:
                cache = output[1]
            parts.append(logits_of(output))
        wrong = moved(box.logits(tokens), np.concatenate(parts, 1)).any(0)
        way = "token by token" if chunk == 1 else f"in chunks of {chunk}"
        found = PROBLEMS["cache"].format(way=way, first=wrong.argmax())
        return found if wrong.any() else ""

    return probe


def shifted(box: Black, tokens: Numbers) -> dict[str, str]:
    """Return whether logits depend on absolute positions, which is a convention."""
    if "positions" not in box.roles:
        return {}
    positions = np.broadcast_to(np.arange(LENGTH), tokens.shape)
    try:
        here, there = (box.logits(tokens, positions=positions + by) for by in (0, SHIFT))
    except Exception:
        return {}
    same = not moved(here, there).any()
    return {"positions": "only distances count" if same else "absolute positions count"}
