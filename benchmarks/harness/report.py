"""Results on disk and on the screen: JSON written atomically, a table, a progress line."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import provenance
from harness.options import Parser
from mha_book.storage import seal, write_atomic

SCHEMA = "mha-book/benchmark"
SCHEMA_VERSION = 1
QUIET = 0.1  # how far the self-pair's median may lie from 1 in a committed result
Cell = Callable[[Mapping[str, Any]], str]  # of a row, the text in one column
RESULTS = Path(__file__).resolve().parents[1] / "results"


def self_pairs(cases: Sequence[Mapping[str, Any]]) -> str:
    """The range of the self-pair's median ratios, and what it says about the run."""
    medians = [case["rows"][-1]["ratio"]["median"] for case in cases]
    calm = max(abs(median - 1) for median in medians) <= QUIET
    verdict = "quiet enough" if calm else "too noisy a run to be committed"
    return f"{min(medians):.3f} to {max(medians):.3f}, {verdict}"


class Recorder:
    """The result of a benchmark, printed and kept case by case.

    Of the options of the command line, `rounds`, `quick`, `dtype` and `clock` become settings of
    the result; `inputs` has the sha256 of each file that is read.
    """

    def __init__(self, benchmark, options, inputs=None, **settings):
        given = {name: vars(options).get(name) for name in ("rounds", "quick", "dtype", "clock")}
        known = {name: value for name, value in given.items() if value is not None}
        self._settings, self._out = {**known, **settings}, options.out
        self._origin = provenance.record(inputs=inputs)
        self._cases: list[dict[str, Any]] = []
        if self._out is None and not options.quick:
            self._out = RESULTS / f"{benchmark}-{self._origin['platform']}.json"

    def add(self, case, columns=None, note="") -> None:
        """Prints a case with these columns; keeps it where the machine may be taken away."""
        self._cases.append(case)
        if "rates" in case:
            note += f", {case['rates']['matmul_flops_per_s'] / 1e9:.0f} GFLOP/s matmul"
        print(f"{case['case']['label']}{note}")
        print(table(case["rows"], columns), end="\n\n", flush=True)
        if self._origin["platform"] != "cpu":
            self._write()

    def finish(self, **content: Any) -> int:
        """Writes the result with what else the file has; the exit status is 1 if a row was refused.

        With --quick nothing is written unless --out was given.
        """
        if self._settings.get("timed", True):
            print(f"self-pair medians: {self_pairs(self._cases)}")
        self._write(**content)
        return int(any(row["status"] == "refused" for case in self._cases for row in case["rows"]))

    def _write(self, **content: Any) -> None:
        if self._out is None:
            return
        origin = {**self._origin, "load_average_after": provenance.load_average()}
        settings = {"provenance": origin, "settings": self._settings}
        write_result(
            self._out, {"name": self._out.stem, **settings, "cases": self._cases, **content}
        )
        print(f"wrote {os.path.relpath(self._out)}")


def benchmark(
    ratios_to: str | None = None,
    *,
    rounds: int | None = 20,
    add: Callable[[Parser], Any] = lambda parser: None,
    inputs: Callable[[Any], Mapping[str, str]] = lambda options: {},
    **settings: Any,
) -> Callable[[Callable[[Recorder, Any], Any]], Callable[..., int]]:
    """Make a command of a function that adds cases to a recorder; see `Parser` and `Recorder`.

    It is called as its file is. What the function returns, a dictionary or nothing, is what else
    the result has; the exit status of the command is 1 if a row was refused.
    """

    def decorate(function: Callable[[Recorder, Any], Any]) -> Callable[..., int]:
        def main(arguments: Sequence[str] | None = None) -> int:
            name = Path(function.__code__.co_filename).stem
            description = (function.__globals__["__doc__"] or "").partition("\n")[0]
            parser = Parser(name, description, ratios_to=ratios_to, rounds=rounds)
            add(parser)
            options = parser.parse(arguments)
            recorder = Recorder(name, options, inputs(options), **settings)
            return recorder.finish(**(function(recorder, options) or {}))

        if function.__module__ == "__main__":  # the last function of a file that was started
            sys.exit(main())
        return main

    return decorate


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Writes a result with its schema version and digest, whole or not at all."""
    document = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **result}
    if "provenance" in document:
        document = seal(document)
    write_atomic(path, (json.dumps(document, indent=1, allow_nan=False) + "\n").encode())


def progress_line(label: str) -> Callable[[int, int], None] | None:
    """A counter that rewrites one line of the terminal; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\r\033[K" if done == total else ""
        print(f"\r\033[K{label}: round {done} of {total}{end}", end="", file=sys.stderr, flush=True)

    return show


def _range(low: str, high: str) -> Cell:
    return lambda row: f"{row['ratio'][low]:.3f} to {row['ratio'][high]:.3f}"


TIMES: dict[str, Cell] = {
    "ms": lambda row: f"{row['seconds']['median'] * 1e3:.3f}",
    "ratio": lambda row: f"{row['ratio']['median']:.3f}",
    "quartiles": _range("lower_quartile", "upper_quartile"),
}
"""The columns of every timed table; ratios are to the baseline of the same round."""
COLUMNS: dict[str, Cell] = {
    **TIMES, "range": _range("minimum", "maximum"),
    "of P": lambda row: f"{row['fraction_of_matmul_rate']:.3f}",
    "MiB": lambda r: f"{r['memory']['increase_bytes'] / 2**20:.0f}" if "memory" in r else "",
}  # fmt: skip


def table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, Cell] | None = None) -> str:
    """The rows of one case as aligned text; what was not measured says so."""
    columns = COLUMNS if columns is None else columns
    body = [["", "layout", *columns]]
    for row in rows:
        measured = row["status"] == "measured"
        reason = "" if measured else f"{row['status']}: {row['reason']}"
        cells = [cell(row) for cell in columns.values()] if measured else [reason]
        body.append([row["name"], row["layout"], *cells])
    full = [line for line in body if len(line) == len(body[0])]
    widths = [max(len(line[column]) for line in full) for column in range(len(body[0]))]
    widths[:2] = [max(len(line[column]) for line in body) for column in range(2)]
    padded = (
        [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=False))
        ]
        for line in body
    )
    return "\n".join("  ".join(line).rstrip() for line in padded)
