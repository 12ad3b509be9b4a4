"""The words: a table of properties, the conventions that were found, a diagnosis in a sentence."""

from textwrap import wrap
from typing import Any, NamedTuple

import numpy as np

from mha_book.conformance.diagnose import Counterexample
from mha_book.conformance.mutants import Mutant

__all__ = ["Property", "Report"]

MARKS = {"passed": "✓", "failed": "✗", "not tried": "–"}


class Property(NamedTuple):
    """One line of the table: a property, "passed", "failed" or "not tried", and a remark."""

    text: str
    outcome: str
    remark: str = ""


class Report(NamedTuple):
    """What a check found.

    Args:
        subject: its name.
        properties: the lines of the table.
        conventions: what legitimate implementations do differently, and this one's choices.
        diagnosis: sentences, the first the likeliest cause; empty where nothing failed.
        bugs: the known bugs that explain everything that failed, all equally.
        counterexample: the smallest case that differs, where it is a function or layer.
        seconds: how long it took.

    Example:
        >>> report = Report(
        ...     "f", (Property("plain", "passed"),), {"layout": "BNTH"}, (), (), None, 0.1
        ... )
        >>> report.passed
        True
    """

    subject: str
    properties: tuple[Property, ...]
    conventions: dict[str, str]
    diagnosis: tuple[str, ...]
    bugs: tuple[Mutant, ...]
    counterexample: Counterexample | None
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether no property failed."""
        return all(one.outcome != "failed" for one in self.properties)

    def as_json(self) -> dict[str, Any]:
        """Return it as numbers, strings, lists and dictionaries."""
        return {
            "subject": self.subject,
            "passed": self.passed,
            "properties": [one._asdict() for one in self.properties],
            "conventions": self.conventions,
            "diagnosis": list(self.diagnosis),
            "bugs": [bug.id for bug in self.bugs],
            "counterexample": self.counterexample and told(self.counterexample),
            "seconds": round(self.seconds, 2),
        }

    def __str__(self) -> str:
        width = max(len(one.text) for one in self.properties)
        lines = [self.subject, ""]
        lines += [
            f"  {MARKS[one.outcome]} {one.text:{width}}  {one.remark or one.outcome}".rstrip()
            for one in self.properties
        ]
        if self.conventions:
            lines += ["", "Conventions"]
            lines += [f"  {name}: {choice}" for name, choice in self.conventions.items()]
        if self.diagnosis:
            lines += ["", "Diagnosis"]
            for sentence in self.diagnosis:
                lines += wrap(
                    sentence,
                    96,
                    initial_indent="  ",
                    subsequent_indent="    ",
                    break_on_hyphens=False,
                )
        if self.counterexample:
            lines += ["", *told(self.counterexample)]
        verdict = "passed" if self.passed else "failed"
        return "\n".join([*lines, "", f"{verdict} in {self.seconds:.1f} s"])


def told(one: Counterexample) -> list[str]:
    """Return a counterexample in lines: its sizes, and the first query that differs."""
    batch, num_heads, queries, width = one.case.q.shape
    sizes = f"{batch} × {num_heads} heads × {queries} queries × {one.case.k.shape[2]} keys"
    lines = [f"Smallest counterexample ({one.scene}): {sizes} of width {width}"]
    if one.case.q.size == one.got.size <= 16:  # a layer has its operands inside
        operands = zip("qkv", one.case[:3], strict=True)
        lines += [f"  {name} = {np.round(x, 1).tolist()}" for name, x in operands]
    same = np.isclose(one.got, one.expected, 1e-4, 1e-4, equal_nan=True)
    b, t = np.argwhere(~same.all(-1))[0] if not same.all() else (0, 0)
    got, expected = (x[b, t, :4].round(3).tolist() for x in (one.got, one.expected))
    more = ", …" if one.got.shape[-1] > 4 else ""
    lines += [
        f"  query {t} of sequence {b} gives {str(got)[:-1]}{more}]",
        f"  where the formula gives  {str(expected)[:-1]}{more}]",
    ]
    return lines
