"""The full product: in an order that can be stopped anywhere, in parts, and what it showed.

Levels are visited in a random order, so that what was run when it stopped is a fair sample; all
implementations have their turn at the same levels, whose expected values are computed once. Eager
cases of one shape stand together, since the operations of each new shape compile anew. What was run
is appended to a journal, a line for each combination of levels, which a later run goes on from.
"""

import hashlib
import json
import math
import random
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax

from mha_book.attention.dispatch import IMPLEMENTATIONS
from mha_book.storage import write_atomic
from tests.attention.contract import cases, suite
from tests.attention.contract.cases import DTYPES, Case
from tests.attention.contract.suite import Outcome

__all__ = ["SEED", "again", "go_on", "parts", "run", "sources", "summary", "table"]

SEED = 2017
SAMPLE = 6
ROOT = Path(__file__).parents[3]
SOURCES = (
    "src/mha_book/attention/*.py", "src/mha_book/masks.py", "src/mha_book/heads.py",
    "src/mha_book/_checks.py", "tests/attention/contract/cases.py",
    "tests/attention/contract/suite.py", "tests/oracles.py",
)  # fmt: skip
"""What an outcome depends on."""


def run(case: Case) -> Outcome:
    """Run one case; an error is a failure with the error's last lines."""
    try:
        return suite.run(case)
    except Exception:
        words = traceback.format_exc(limit=-3)
        return Outcome(case, False, float("inf"), (f"raised\n{words}",))


def table(outcomes: Iterable[Outcome]) -> str:
    """One line for each implementation and dtype."""
    line = "{:<14} {:<10} {:>7} {:>7} {:>7}  {}".format
    lines = [line("implementation", "dtype", "served", "refused", "failed", "error/tolerance")]
    for name, by_dtype in _counts([[outcome, 0.0] for outcome in outcomes]).items():
        for dtype, found in by_dtype.items():
            ratio = f"{found['worst']:.2f}" if found["served"] else "-"
            shown = (found[word] for word in ("served", "refused", "failed"))
            lines.append(line(name, dtype, *shown, ratio))
    return "\n".join(lines)


def _counts(timed: Iterable[Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """Counts, the worst error and the seconds of pairs of an outcome and its seconds."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for outcome, seconds in timed:
        names = dict.fromkeys(DTYPES)
        by_dtype = found.setdefault(outcome.case.implementation, names)  # type: ignore[arg-type]
        count = by_dtype[outcome.case.dtype] = by_dtype[outcome.case.dtype] or {
            "served": 0, "refused": 0, "failed": 0, "worst": 0.0, "seconds": 0.0
        }  # fmt: skip
        count["refused" if outcome.refused else "served"] += 1
        count["failed"] += bool(outcome.complaints)
        count["worst"] = max(count["worst"], outcome.worst)
        count["seconds"] += seconds
    return {
        name: {dtype: count for dtype, count in by_dtype.items() if count is not None}
        for name, by_dtype in found.items()
    }


def parts() -> list[list[Case]]:
    """Return all levels of the product, as cases of the reference, in their random order.

    A part has the eager cases of one shape, and so many of the others as fall to it: of every
    prefix, the eager and the other cases are each a fair sample.
    """
    draw, groups, others = random.Random(SEED), dict[Any, list[Case]](), list[Case]()
    every = list(cases.product("reference"))
    draw.shuffle(every)
    for case in every:
        shape = (case.heads, case.lengths, case.width, case.batch, case.dtype, case.layout)
        (groups.setdefault(shape, []) if case.mode == "eager" else others).append(case)
    shapes = list(groups)
    draw.shuffle(shapes)
    return [(groups[shape] + others[n :: len(shapes)]) for n, shape in enumerate(shapes)]


def sources() -> str:
    """Return the sha256 of the code that an outcome depends on."""
    digest = hashlib.sha256()
    for pattern in SOURCES:
        for path in sorted(ROOT.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()


def go_on(
    journal: Path,
    heading: dict[str, Any],
    share: tuple[int, int] = (1, 1),
    seconds: float = math.inf,
) -> int:
    """Run what the journal of a share does not have yet, until the time is over.

    Args:
        journal: the file, of lines of JSON; made if it is missing. A last line that was cut off is
            written anew.
        heading: what its first line says; a journal with another ``conditions`` is an error.
        share: ``(1, 2)`` for the first half of the parts.
        seconds: how long; a combination that was begun is finished.

    Returns:
        How many combinations of levels were run now.
    """
    number, of = share
    whole = b""
    if journal.exists():
        whole = journal.read_bytes()
        whole = whole[: whole.rfind(b"\n") + 1]
    if whole:
        found = json.loads(whole.splitlines()[0])["conditions"]
        if found != heading["conditions"]:
            raise ValueError(
                f"{journal}: expected a journal of {heading['conditions']}; got one of {found}: "
                "remove it, or run what it was begun with"
            )
    else:
        whole = json.dumps(heading).encode() + b"\n"
    write_atomic(journal, whole)
    done = {json.loads(line)["levels"] for line in whole.splitlines()[1:]}
    ends, count = time.monotonic() + seconds, 0
    with journal.open("a", encoding="utf8") as file:
        for part in parts()[number - 1 :: of]:
            for levels in part:
                if time.monotonic() > ends:
                    return count
                if levels.name in done:
                    continue
                line = {"levels": levels.name, "outcomes": dict(_visit(levels))}
                file.write(json.dumps(line) + "\n")
                file.flush()
                count += 1
            jax.clear_caches()  # the next part has other shapes; each program takes some mappings
    return count


def _visit(levels: Case) -> Iterator[tuple[str, list[Any]]]:
    """Run one combination of levels by every implementation."""
    for name in IMPLEMENTATIONS:
        start = time.process_time()
        outcome = run(levels._replace(implementation=name))
        taken = round(time.process_time() - start, 4)
        yield name, [outcome.refused, outcome.worst, taken, outcome.complaints]


def summary(journals: Iterable[Path]) -> dict[str, Any]:
    """Return what the journals say together.

    Returns:
        ``runs``, their headings; ``levels``, how many combinations there are and how many were run;
        ``found``, by the way of compiling, implementation and dtype, the cases served, refused and
        failed, the worst error as a part of the tolerance and the processor's seconds;
        ``failures``; and ``sample``, of some levels whether each implementation refused them, and
        its error, to be computed again.
    """
    every = {case.name: case for case in cases.product("reference")}
    runs, failures = [], []
    timed: dict[str, list[Any]] = {}
    seen: dict[str, set[str]] = {}
    sample: dict[str, Any] = {}
    for journal in journals:
        text = journal.read_text(encoding="utf8")
        first, *lines = text[: text.rfind("\n")].splitlines()
        heading = json.loads(first)
        runs.append({"journal": journal.stem, **heading, "combinations": len(lines)})
        compiled = heading["conditions"]["compiled"]
        for line in map(json.loads, lines):
            if line["levels"] in seen.setdefault(compiled, set()):
                continue  # shares of another number overlap
            seen[compiled].add(line["levels"])
            sample[line["levels"]] = {
                name: [is_refused, _rounded(worst, 4)]
                for name, (is_refused, worst, *_) in line["outcomes"].items()
            }
            for name, (refused, worst, seconds, complaints) in line["outcomes"].items():
                case = every[line["levels"]]._replace(implementation=name)
                outcome = Outcome(case, refused, worst, tuple(complaints))
                timed.setdefault(compiled, []).append([outcome, seconds])
                if complaints:
                    failures.append([compiled, name, case.name, *complaints])
    if len({json.dumps(one["conditions"]["sources"]) for one in runs}) > 1:
        raise ValueError("journals: expected one state of the code; got several: remove the old")
    return {
        "levels": {"all": len(every), **{way: len(names) for way, names in seen.items()}},
        "found": {
            way: {
                name: {
                    dtype: {**count, "worst": _rounded(count["worst"], 4),
                            "seconds": _rounded(count["seconds"], 1)}
                    for dtype, count in by_dtype.items()
                }
                for name, by_dtype in _counts(some).items()
            }
            for way, some in timed.items()
        },
        "failures": failures,
        "sample": {name: sample[name] for name in sorted(sample, key=_shuffled)[:SAMPLE]},
        "runs": runs,
    }  # fmt: skip


def again(failures: Iterable[list[str]]) -> list[list[Any]]:
    """Run what failed once more, by the code as it is now.

    Returns:
        For each failure the way of compiling, implementation and levels that it was found with,
        the error now as a part of the tolerance, and what is wrong now.
    """
    every = {case.name: case for case in cases.product("reference")}
    found = []
    for compiled, name, levels, *_ in failures:
        # The name begins with the implementation, which the levels of the reference stand for.
        case = every[levels.replace(name, "reference", 1)]._replace(implementation=name)
        outcome = run(case)
        found.append(
            [compiled, name, levels, _rounded(float(outcome.worst), 4), [*outcome.complaints]]
        )
    return found


def _shuffled(name: str) -> bytes:
    """A key that orders names at random, and always alike."""
    return hashlib.sha256(name.encode()).digest()


def _rounded(number: float, digits: int) -> float | None:
    """JSON has no infinity, which is the error of what raised."""
    return round(number, digits) if math.isfinite(number) else None
