"""The checks of the book's exercises: what :func:`check` says about an attempt.

Each chapter has a module here. A check takes the reader's function and yields, for each thing that
it tries, None or a sentence that helps; the first sentence counts. An exercise is named
``chapter/name``.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

import jax
import numpy as np

from mha_book._checks import check as _require

__all__ = ["check"]

Attempt = Callable[..., Any]
"""The reader's function."""

Check = Callable[[Attempt], Iterator[str | None]]
"""From the reader's function to what is wrong with it."""

CHECKS: dict[str, Check] = {}
"""The checks of the chapters whose modules are imported, by ``chapter/name``."""


def exercise(name: str) -> Callable[[Check], Check]:
    """Return a decorator that makes a function the check of an exercise of its module's chapter."""

    def register(function: Check) -> Check:
        chapter = function.__module__.rpartition(".")[2].replace("_", "-")
        CHECKS[f"{chapter}/{name}"] = function
        return function

    return register


def check(exercise: str, attempt: Attempt) -> None:
    """Print "passed", or "not yet: " and what is wrong with an attempt.

    Args:
        exercise: the name, ``chapter/name``.
        attempt: the reader's function; one that returns ``...``, or a tuple that has it, is none.

    Example:
        >>> check("split-and-combine/merge", lambda x: x)
        split-and-combine/merge: not yet: expected shape (3, 10) for input (2, 3, 5); got (2, 3, 5)
    """
    print(f"{exercise}: {verdict(exercise, attempt)}")


def verdict(exercise: str, attempt: Attempt) -> str:
    """Return what :func:`check` prints; an exception in the attempt is feedback, never raised."""
    chapter = exercise.partition("/")[0]
    with contextlib.suppress(ModuleNotFoundError):
        import_module(f"mha_book.exercises.{chapter.replace('-', '_')}")
    known = sorted(name for name in CHECKS if name.startswith(f"{chapter}/"))
    what = f"one of {', '.join(known) or 'a chapter/name'}"
    _require(exercise in CHECKS, "exercise", what, exercise)
    unattempted = False

    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal unattempted
        result = attempt(*args, **kwargs)
        parts = result if isinstance(result, tuple) else (result,)
        unattempted = unattempted or any(part is ... for part in parts)
        is_number = getattr(result, "shape", None) == () and hasattr(result, "item")
        is_known = is_number and not isinstance(result, jax.core.Tracer)
        return result.item() if is_known else result  # of NumPy or JAX, as Python's

    try:
        feedback = next(filter(None, CHECKS[exercise](watched)), None)
    except (Exception, SystemExit) as error:  # what the reader's code raises is an answer to them
        feedback = f"{type(error).__name__}: {error}"
    if unattempted:
        return "not attempted"
    return "passed" if feedback is None else f"not yet: {feedback}"


def judge(
    got: Any, want: Any, hints: Mapping[str, Any], where: str = "", otherwise: str = ""
) -> str | None:
    """Return what is wrong with an answer, None if it is ``want``, up to rounding of floats.

    ``hints`` has what to say of known mistakes, and the answers that they give; ``where`` is what
    every sentence begins with, ``otherwise`` what to say of an array that no hint knows.
    """
    if isinstance(want, float) and not isinstance(got, int | float):
        return f"{where}expected a number; got {type(got).__name__}"
    for said, known in {"": want, **hints}.items():
        if _same(got, known, want):
            return where + said if said else None
    if not isinstance(want, np.ndarray):
        shown = [f"{x:.4g}" if isinstance(x, float) else str(x) for x in (want, got)]
        return f"{where}expected {shown[0]}; got {shown[1]}"
    if np.shape(got) != want.shape:
        return f"{where}expected the shape {want.shape}; got {np.shape(got)}"
    place = tuple(np.argwhere(~np.isclose(got, want))[0].tolist())
    return where + (otherwise or f"the entries are wrong, first at {place}")


def _same(got: Any, known: Any, want: Any) -> bool:
    """Whether an answer is a known one, up to rounding where the right one is not exact."""
    if isinstance(want, float | np.ndarray):
        return np.shape(got) == np.shape(known) and np.allclose(got, known, rtol=1e-5, atol=1e-7)
    return bool(got == known) and (got is None) == (known is None)
