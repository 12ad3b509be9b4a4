"""Draws result files: the ratio to the baseline with its quartiles, and the fraction of the limit.

    PYTHONPATH=src python3 benchmarks/plot.py benchmarks/results/attention-cpu.json

One column for each setting; over the length where there are several, else one point a row.  What
was not measured is named under the picture with its reason.  Needs matplotlib.
"""

import argparse
import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from harness.report import read_result
from mha_book.plotting import PALETTE, use_book_style

__all__ = ["draw", "groups_of", "main"]

FOLDER = Path(__file__).resolve().parent.parent / "_build" / "benchmarks"
MARKERS = "osD^v<>Ph*"
COLUMNS = 4
FRACTIONS = {
    "fraction_of_matmul_rate": "fraction of the matmul rate",
    "fraction_of_read_rate": "fraction of the read rate",
}
Case = Mapping[str, Any]


def groups_of(cases: Sequence[Case]) -> dict[str, list[Case]]:
    """Cases that differ in their length alone, by what they share.

    Example:
        >>> one = {"case": {"length": 8, "is_causal": True, "label": "T=8 causal"}}
        >>> two = {"case": {"length": 16, "is_causal": True, "label": "T=16 causal"}}
        >>> [(title, len(group)) for title, group in groups_of([one, two]).items()]
        [('causal', 2)]
    """
    groups: dict[str, list[Case]] = {}
    for case in cases:
        words = case["case"]["label"].split()
        lengths = {f"{letter}={case['case'].get('length')}" for letter in "TS"}
        title = " ".join(word for word in words if word not in lengths)
        groups.setdefault(title, []).append(case)
    return groups


def _styles(cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """A color and a marker for each row, the same in all panels."""
    names = dict.fromkeys(row["name"] for case in cases for row in case["rows"])
    looks = zip(itertools.cycle(MARKERS), itertools.cycle(PALETTE), strict=False)
    return {
        name: {"marker": marker, "color": color, "label": name}
        for name, (marker, color) in zip(names, looks, strict=False)
    }


def _over_length(ax: Axes, group: Sequence[Case], what: str, styles: Mapping[str, Any]) -> None:
    """One line for each row over the length; of ratios with the quartiles as a band."""
    for name, style in styles.items():
        points = []
        for case in group:
            row = next((r for r in case["rows"] if r["name"] == name), None)
            if row is not None and row["status"] == "measured" and what in row:
                points.append((case["case"]["length"], row[what]))
        if not points:
            continue
        lengths, values = zip(*sorted(points, key=lambda point: point[0]), strict=True)
        if what == "ratio":
            bounds = [[v[side] for v in values] for side in ("lower_quartile", "upper_quartile")]
            ax.fill_between(lengths, *bounds, color=style["color"], alpha=0.2, linewidth=0)
            values = tuple(value["median"] for value in values)
        ax.plot(lengths, values, markersize=4, linewidth=1.2, **style)
    ax.set_xscale("log", base=2)
    ticks = sorted({case["case"]["length"] for case in group})
    ax.set_xticks(ticks, [str(tick) for tick in ticks])
    ax.set_xlabel("length")


def _one_length(ax: Axes, case: Case, what: str, styles: Mapping[str, Any]) -> None:
    """One point for each row; of ratios with the quartiles as a bar."""
    rows = [row for row in case["rows"] if row["status"] == "measured" and what in row]
    for place, row in enumerate(rows):
        value, style = row[what], styles[row["name"]]
        if what == "ratio":
            ends = (value["lower_quartile"], value["upper_quartile"])
            ax.plot((place, place), ends, color=style["color"], linewidth=3, alpha=0.4)
            value = value["median"]
        ax.plot(place, value, linestyle="none", **style)
    ax.set_xticks(range(len(rows)), [row["name"] for row in rows], rotation=60, ha="right")


def _absent(cases: Sequence[Case]) -> list[str]:
    """The rows without a number, by their reason."""
    names: dict[str, list[str]] = {}
    for case in cases:
        for row in case["rows"]:
            if row["status"] != "measured":
                known = names.setdefault(f"{row['status']}: {row['reason']}", [])
                known += [] if row["name"] in known else [row["name"]]
    return [f"{', '.join(who)} {reason}" for reason, who in names.items()]


def _label(value: float, _: Any) -> str:
    return f"{value:g}"


def draw(result: Mapping[str, Any]) -> Figure:
    """The figure of a result, as `read_result` reads it."""
    cases = result["cases"]
    groups, styles = groups_of(cases), _styles(cases)
    known = [what for what in FRACTIONS if any(what in row for row in cases[0]["rows"])]
    quantities = ["ratio", *known[:1]]
    columns = min(COLUMNS, len(groups))
    height = len(quantities) * -(-len(groups) // columns)
    size = (2.2 + 3.2 * columns, 1.0 + 3.0 * height)
    figure, axes = plt.subplots(height, columns, figsize=size, squeeze=False, sharey="row")
    for ax in axes.flat:
        ax.set_visible(False)
    for (place, (title, group)), (row, what) in itertools.product(
        enumerate(groups.items()), enumerate(quantities)
    ):
        block, column = divmod(place, columns)
        ax = axes[block * len(quantities) + row, column]
        ax.set_visible(True)
        if len(group) > 1:
            _over_length(ax, group, what, styles)
        else:
            _one_length(ax, group[0], what, styles)
        if what == "ratio":
            ax.set_title(title, fontsize=9)
            ax.set_yscale("log")
            ax.yaxis.set_major_formatter(_label)
            ax.yaxis.set_minor_formatter(_label)
            ax.axhline(1.0, color="#444444", linewidth=0.8)
        if column == 0:
            baselines = {case["baseline"] for case in cases}
            baseline = baselines.pop() if len(baselines) == 1 else "the baseline"
            ax.set_ylabel(FRACTIONS.get(what, f"time over that of {baseline}"))
        ax.tick_params(axis="both", which="both", labelsize=7)
        ax.grid(axis="y")
    for row in range(height):
        if row % len(quantities):
            axes[row, 0].set_ylim(bottom=0)
    handles = {
        handle.get_label(): handle
        for ax in axes.flat
        for handle in ax.get_lines()
        if not handle.get_label().startswith("_")
    }
    figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize=8)
    origin = result["provenance"]
    where = origin["device"] if origin["platform"] != "cpu" else origin["cpu_model"]
    note = f"{result['name']}: {where}, JAX {origin['packages']['jax']}, {origin['date'][:10]}"
    figure.supxlabel("\n".join([note, *_absent(cases)]), fontsize=7, x=0.01, ha="left")
    return figure


def main(arguments: Sequence[str] | None = None) -> int:
    """Draws each file."""
    parser = argparse.ArgumentParser(description="Draws result files of the benchmarks.")
    parser.add_argument("files", nargs="+", type=Path, help="results/*.json")
    parser.add_argument(
        "--to", type=Path, default=FOLDER, help="folder (default _build/benchmarks)"
    )
    parser.add_argument("--format", choices=("png", "svg"), default="png", help="default png")
    options = parser.parse_args(arguments)
    use_book_style()
    options.to.mkdir(parents=True, exist_ok=True)
    for path in options.files:
        result = read_result(path)
        if not result["settings"].get("timed", True):
            continue
        figure = draw(result)
        target = options.to / f"{path.stem}.{options.format}"
        figure.savefig(target)
        plt.close(figure)
        print(f"wrote {os.path.relpath(target)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
