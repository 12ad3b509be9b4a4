"""Results on disk and on the screen: JSON written atomically, a table, a progress line."""

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import provenance

__all__ = [
    "QUIET",
    "SCHEMA",
    "SCHEMA_VERSION",
    "keep",
    "keep_so_far",
    "progress_line",
    "read_result",
    "self_pairs",
    "show",
    "table",
    "write_result",
]

SCHEMA = "mha-book/benchmark"
SCHEMA_VERSION = 1
QUIET = 0.1  # how far the self-pair's median may lie from 1 in a committed result
RESULTS = Path(__file__).resolve().parent / "results"


def show(label: str, case: Mapping[str, Any]) -> None:
    """Prints a case: its label, the rate of a large product in it, the table of its rows."""
    print(f"{label}, {case['rates']['matmul_flops_per_s'] / 1e9:.0f} GFLOP/s matmul")
    print(table(case["rows"]), end="\n\n", flush=True)


def self_pairs(cases: Sequence[Mapping[str, Any]]) -> str:
    """The range of the self-pair's median ratios, and what it says about the run."""
    medians = [case["rows"][-1]["ratio"]["median"] for case in cases]
    calm = max(abs(median - 1) for median in medians) <= QUIET
    verdict = "quiet enough" if calm else "too noisy a run to be committed"
    return f"{min(medians):.3f} to {max(medians):.3f}, {verdict}"


def keep(
    benchmark: str,
    out: Path | None,
    origin: dict[str, Any],
    settings: Mapping[str, Any],
    **content: Any,
) -> None:
    """Writes what a benchmark found, and says where.

    Args:
        benchmark: its name.
        out: the file; None for results/BENCHMARK-PLATFORM.json, and for none if it was quick.
        origin: the provenance, from before the run.
        settings: what holds for the whole file; "quick" among them.
        content: "cases", and what else the file has.
    """
    if out is None and not settings["quick"]:
        out = RESULTS / f"{benchmark}-{origin['platform']}.json"
    if out is None:
        return
    origin = {**origin, "load_average_after": provenance.load_average()}
    write_result(out, {"name": out.stem, "provenance": origin, "settings": settings, **content})
    print(f"wrote {os.path.relpath(out)}")


def keep_so_far(
    benchmark: str,
    out: Path | None,
    origin: dict[str, Any],
    settings: Mapping[str, Any],
    **content: Any,
) -> None:
    """`keep` after each case where the machine may be taken away: on an accelerator."""
    if origin["platform"] != "cpu":
        keep(benchmark, out, origin, settings, **content)


def write_result(path: Path, result: Mapping[str, Any]) -> None:
    """Writes a result with its schema version; the file is replaced whole or not at all."""
    document = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, **result}
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(document, file, indent=1, allow_nan=False)
            file.write("\n")
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read_result(path: Path) -> dict[str, Any]:
    """Reads a result.

    Raises:
        ValueError: when the file has another schema or version.
    """
    document = json.loads(path.read_text(encoding="utf-8"))
    found = (document.get("schema"), document.get("schema_version"))
    if found != (SCHEMA, SCHEMA_VERSION):
        raise ValueError(f"{path.name}: expected schema {(SCHEMA, SCHEMA_VERSION)}, got {found}")
    return document


def progress_line(label: str) -> Callable[[int, int], None] | None:
    """A counter that rewrites one line of the terminal; None where stderr is no terminal."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        end = "\r\033[K" if done == total else ""
        print(f"\r\033[K{label}: round {done} of {total}{end}", end="", file=sys.stderr, flush=True)

    return show


def _cells(row: Mapping[str, Any]) -> list[str]:
    """One row of the table; what was not measured says so."""
    if row["status"] != "measured":
        return [row["name"], row["layout"], f"{row['status']}: {row['reason']}"]
    ratio, memory = row["ratio"], row.get("memory")
    return [
        row["name"],
        row["layout"],
        f"{row['seconds']['median'] * 1e3:.3f}",
        f"{ratio['median']:.3f}",
        f"{ratio['lower_quartile']:.3f} to {ratio['upper_quartile']:.3f}",
        f"{ratio['minimum']:.3f} to {ratio['maximum']:.3f}",
        f"{row['fraction_of_matmul_rate']:.3f}",
        "" if memory is None else f"{memory['increase_bytes'] / 2**20:.0f}",
    ]


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows of one case as aligned text; ratios are to the baseline of the same round."""
    header = ["", "layout", "ms", "ratio", "quartiles", "range", "of P", "MiB"]
    body = [header, *(_cells(row) for row in rows)]
    full = [line for line in body if len(line) == len(header)]
    widths = [max(len(line[column]) for line in full) for column in range(len(header))]
    widths[:2] = [max(len(line[column]) for line in body) for column in range(2)]
    padded = (
        [
            cell.ljust(width) if i < 2 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=False))
        ]
        for line in body
    )
    return "\n".join("  ".join(line).rstrip() for line in padded)
