"""The rows of a case: every contender prepared, checked, timed and checked again.

What cannot be measured keeps its row and says why; what is wrong is refused.  Either way the row
holds no number.
"""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import harness
import report

__all__ = ["Contender", "any_refused", "compare", "identity", "rates_of", "reason_of"]

OURS = "mha_book"


class Contender(Protocol):
    """What a row says of whom it measures: each benchmark has contenders of its own kind."""

    @property
    def name(self) -> str:
        """As printed and stored."""

    @property
    def package(self) -> str:
        """The distribution that it needs."""

    @property
    def layout(self) -> str:
        """Of the arrays that it is given."""

    @property
    def remark(self) -> str:
        """What a reader of the table must know."""


def identity(contender: Contender) -> dict[str, Any]:
    """What a row says of its contender."""
    return {key: getattr(contender, key) for key in ("name", "package", "layout", "remark")}


def reason_of(error: Exception, package: str) -> str | None:
    """Why an error means that a contender cannot be measured here, None if it means a defect.

    It does where memory ran out, where a contender says that it does not serve, and, whatever
    the error, for a package that is not ours.

    Example:
        >>> reason_of(NotImplementedError("half precision only"), "mha_book")
        'half precision only'
        >>> reason_of(ValueError("a mistake"), "mha_book") is None
        True
    """
    text = next(iter(str(error).splitlines()), "")[:200]
    if isinstance(error, NotImplementedError):
        return text
    out = isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__
    if out or "RESOURCE_EXHAUSTED" in text:
        return f"out of memory: {text}"
    return None if package == OURS else f"{type(error).__name__}: {text}"


def rates_of(seconds: float, flops: int, rates: Mapping[str, Any]) -> dict[str, float]:
    """The rate at which a row worked, and the fraction of P that this is."""
    rate = flops / seconds
    return {"flops_per_s": rate, "fraction_of_matmul_rate": rate / rates["matmul_flops_per_s"]}


def any_refused(cases: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a contender was wrong in one of the cases."""
    return any(row["status"] == "refused" for case in cases for row in case["rows"])


def compare(
    contenders: Sequence[Any],
    *,
    prepare: Callable[[Any], Callable[[], Any]],
    error: Callable[[Any, Any], float],
    numbers: Callable[[Any, dict[str, Any]], dict[str, Any]],
    baseline: str,
    rounds: int,
    label: str,
) -> tuple[str, list[dict[str, Any]], harness.Times]:
    """All contenders in one setting: checked, timed in interleaved rounds, checked again.

    Args:
        contenders: see `Contender`.
        prepare: from a contender, what is timed.
        error: from a contender and an output, its checked error; raises `WrongOutput`.
        numbers: from a contender and its times, as `harness.timings` gives them, what else the
            row holds.
        baseline: whom the others are divided by; where it cannot be measured, the first that can.
        rounds: how many rounds.
        label: of the progress line.

    Returns:
        The baseline, the rows in the order of the contenders with the self-pair at the end, and
        the times.

    Raises:
        WrongOutput: when the baseline itself is wrong; there is nothing to compare then.
    """
    rows: dict[str, dict[str, Any]] = {}
    runs: dict[str, Callable[[], Any]] = {}
    known: dict[str, Any] = {}
    first_errors: dict[str, float] = {}
    for contender in contenders:
        name, package = contender.name, contender.package
        rows[name] = identity(contender)
        if importlib.util.find_spec(package) is None:
            rows[name] |= {"status": "not measured", "reason": f"{package} is not installed"}
            continue
        try:
            run = prepare(contender)
            first_errors[name] = error(contender, run())
        except harness.WrongOutput as wrong:
            if name == baseline:
                raise
            rows[name] |= {"status": "refused", "reason": str(wrong)}
        except Exception as problem:
            if (reason := reason_of(problem, package)) is None:
                raise
            rows[name] |= {"status": "not measured", "reason": reason}
        else:
            runs[name], known[name] = run, contender
    baseline = next(name for name in (baseline, *runs) if name in runs)
    again = baseline + harness.SELF_PAIR_SUFFIX
    rows[again] = {**rows[baseline], "name": again, "remark": "the A/A self-pair"}
    times = harness.interleave(
        harness.with_self_pair(runs, baseline),
        rounds=rounds,
        progress=report.progress_line(label),
    )
    for name, output in times.outputs.items():
        contender = known[name.removesuffix(harness.SELF_PAIR_SUFFIX)]
        measured = harness.timings(name, times, baseline)
        largest = max(first_errors[contender.name], error(contender, output))
        rows[name] |= {"status": "measured", "error": largest, **measured}
        rows[name] |= numbers(contender, measured)
    order = [*(contender.name for contender in contenders), again]
    return baseline, [rows[name] for name in order], times
