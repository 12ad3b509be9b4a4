"""The checks of the book's exercises: what :func:`check` says about an attempt.

Each chapter has a module here; each of its checks takes the reader's function and returns None if
it is right, or one sentence that helps. An exercise is named ``chapter/name``.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import jax

from mha_book._checks import check as _require

__all__ = ["Attempt", "Check", "check", "verdict"]

Attempt = Callable[..., Any]
"""The reader's function."""

Check = Callable[[Attempt], str | None]
"""What stands in the ``CHECKS`` of a chapter's module: a function to feedback, None if right."""


def check(exercise: str, attempt: Attempt) -> None:
    """Print what :func:`verdict` says about an attempt at an exercise.

    Args:
        exercise: the name, ``chapter/name``.
        attempt: the reader's function; one that returns ``...``, or a tuple that has it, counts as
            not attempted.

    Raises:
        ValueError: there is no such exercise.

    Example:
        >>> check("split-and-combine/merge", lambda x: ...)
        split-and-combine/merge: not attempted
    """
    print(f"{exercise}: {verdict(exercise, attempt)}")


def _as_number(answer: Any) -> Any:
    """Return a number of NumPy or JAX as Python's; anything else as it is."""
    is_known = not isinstance(answer, jax.core.Tracer)
    if is_known and getattr(answer, "shape", None) == () and hasattr(answer, "item"):
        return answer.item()
    return answer


def verdict(exercise: str, attempt: Attempt) -> str:
    """Return "passed", "not attempted", or "not yet: " and what is wrong.

    Args:
        exercise: the name, ``chapter/name``.
        attempt: the reader's function.

    Returns:
        The verdict. An exception in the attempt is feedback too, never raised.

    Raises:
        ValueError: there is no such exercise.

    Example:
        >>> verdict("split-and-combine/merge", lambda x: x)[:7]
        'not yet'
    """
    chapter, _, name = exercise.partition("/")
    try:
        module = import_module(f"mha_book.exercises.{chapter.replace('-', '_')}")
    except ModuleNotFoundError:
        module = None
    known: dict[str, Check] = {} if module is None else module.CHECKS
    _require(name in known, "exercise", f"one of {sorted(known) or 'a chapter/name'}", exercise)
    unattempted = False

    def watched(*args: Any, **kwargs: Any) -> Any:
        nonlocal unattempted
        result = attempt(*args, **kwargs)
        parts = result if isinstance(result, tuple) else (result,)
        unattempted = unattempted or any(part is ... for part in parts)
        return _as_number(result)

    try:
        feedback = known[name](watched)
    except (Exception, SystemExit) as error:  # what the reader's code raises is an answer to them
        feedback = f"{type(error).__name__}: {error}"
    if unattempted:
        return "not attempted"
    return "passed" if feedback is None else f"not yet: {feedback}"
