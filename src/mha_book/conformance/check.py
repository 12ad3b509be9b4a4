"""One call for every kind of subject: a function, a layer, a model."""

import inspect
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from mha_book._checks import check as require
from mha_book.conformance.diagnose import (
    EXACT,
    Explanation,
    Trial,
    close,
    counterexample,
    independence,
    search,
)
from mha_book.conformance.layer import build, layer_interfaces
from mha_book.conformance.mutants import mutant
from mha_book.conformance.oracle import CONVENTIONS, TEXTS
from mha_book.conformance.probes import SCENES
from mha_book.conformance.report import Property, Report
from mha_book.conformance.subject import function_interfaces

__all__ = ["assert_attention", "check_attention"]


def check_attention(
    subject: Any,
    *,
    expect: dict[str, str] | None = None,
    name: str | None = None,
    function: Any = None,
    **told: Any,
) -> Report:
    """Check a function ``(q, k, v, …)``, or a layer with its weights, in NumPy, JAX or torch.

    Args:
        subject: the function; a torch module or a class of one; a callable tree of JAX; or the
            parameters of ``function``.
        expect: convention of :data:`~mha_book.conformance.oracle.CONVENTIONS` -> the choice that is
            meant. What is not named is found out and told, and is no failure; ``emptied`` is meant
            as ``empty`` is.
        name: of the subject, for the report.
        function: called as ``function(subject, x)``, where the subject is a layer's parameters.
        **told: what need not be guessed: see
            :func:`~mha_book.conformance.subject.function_interfaces` and
            :func:`~mha_book.conformance.layer.layer_interfaces`.

    Returns:
        A report; printed, it is a table and a diagnosis.

    Raises:
        ValueError: the subject cannot be called, or a convention has no such choice.

    Example:
        >>> import numpy as np
        >>> def attention(q, k, v):  # of NumPy, without the scale
        ...     scores = np.exp(q @ k.swapaxes(-1, -2))
        ...     return scores / scores.sum(-1, keepdims=True) @ v
        >>> report = check_attention(attention, layout="BNTH")
        >>> report.passed, report.diagnosis[0]
        (False, 'the scores are not scaled; and the softmax does not subtract the maximum: ...
    """
    expect = expect or {}
    if "empty" in expect:
        expect = {"emptied": expect["empty"]} | expect
    for convention, choice in expect.items():
        known = tuple(CONVENTIONS.get(convention, ()))
        require(choice in known, f"expect[{convention!r}]", f"one of {known}", repr(choice))
    start = time.monotonic()
    with quietly():
        if inspect.isclass(subject):
            subject = build(subject)
        if function or hasattr(subject, "named_parameters") or not hasattr(subject, "__name__"):
            interfaces = layer_interfaces(subject, function=function, **told)
        else:
            interfaces = function_interfaces(subject, **told)
        outputs: dict[Any, Any] = {}
        trial, found = search([Trial(one, outputs) for one in interfaces], expect)
        again = trial.interface.call(trial.cases["plain"])
        steady = close(again, trial.output("plain"), EXACT)
        if not steady:
            found = found._replace(mutants=(mutant("dropout-in-evaluation"),))
        lines = tuple(properties(trial, found, steady))
        example = counterexample(trial, found) if steady else None
    return Report(
        str(name or getattr(subject, "__name__", type(subject).__name__)),
        lines,
        conventions(found, expect),
        tuple(diagnosis(found, lines)),
        found.mutants,
        example,
        time.monotonic() - start,
    )


def assert_attention(subject: Any, **told: Any) -> None:
    """Fail, with the report as message, unless a subject passes: the line for a test.

    Args:
        subject: as for :func:`check_attention`.
        **told: as for it.

    Raises:
        AssertionError: a property failed.

    Example:
        >>> import jax
        >>> assert_attention(jax.nn.dot_product_attention, layout="BTNH")
    """
    report = check_attention(subject, **told)
    if not report.passed:
        raise AssertionError(str(report))


@contextmanager
def quietly() -> Iterator[None]:
    """Silence warnings, of overflow say, and keep torch from using threads for small arrays."""
    with warnings.catch_warnings(), np.errstate(all="ignore"), ExitStack() as stack:
        warnings.simplefilter("ignore")
        if torch := sys.modules.get("torch"):
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(1)
            stack.enter_context(torch.no_grad())
        yield


def raised(error: Exception) -> str:
    """Return the remark on what raised an error."""
    first = (str(error) or type(error).__name__).splitlines()[0]
    return f"raises: {textwrap.shorten(first, 70, placeholder=' …')}"


def properties(trial: Trial, found: Explanation, steady: bool) -> Iterator[Property]:
    """Return the lines of the table."""
    outputs = {scene: trial.output(scene.name) for scene in trial.scenes()}
    served = {one.needs[-1:] for one, x in outputs.items() if not isinstance(x, Exception)}
    for scene in sorted(SCENES, key=lambda one: one.name == "empty"):  # the rarest last
        output = outputs.get(scene)
        if output is None:
            missing = [need for need in scene.needs if not trial.serves(need)]
            remark = f"no argument for {missing[0]}" if missing else "not of a layer"
            yield Property(scene.text, "not tried", remark)
        elif isinstance(output, Exception):  # an argument with which all calls raise is wrong
            refused = scene.needs and scene.needs[-1:] not in served
            yield Property(scene.text, "failed" if refused else "not tried", raised(output))
        else:
            yield Property(scene.text, "failed" if scene.name in found.unexplained else "passed")
    for text, holds in independence(trial).items() if steady else ():
        yield Property(text, "passed" if holds else "failed")
    yield Property("two equal calls agree", "passed" if steady else "failed")


def conventions(found: Explanation, expect: dict[str, str]) -> dict[str, str]:
    """Return the choices that showed, in words."""
    words = dict(found.interface.told)
    if "mask" in words:
        words["mask"] = TEXTS["masks"][words["mask"]]
    for name, choices in CONVENTIONS.items():
        text = choices[getattr(found.conventions, name)]
        if text and (name in found.settled or name in expect):
            words[name.replace("_", " ")] = text
    if found.rough and not found.unexplained:
        words["rounding"] = "as of half precision, inside or out"
    return words


def diagnosis(found: Explanation, lines: tuple[Property, ...]) -> Iterator[str]:
    """Return what is wrong, in sentences."""
    failed = [line for line in lines if line.outcome == "failed"]
    for n, bug in enumerate(found.mutants[:3] if failed else ()):
        yield ("or: " if n else "") + f"{bug.sentence}; see {bug.read}"
    if failed and not found.mutants:
        remark = f" ({failed[0].remark})" * bool(failed[0].remark)
        yield f"no known bug, nor two, explains it; it fails first in: {failed[0].text}{remark}"
