"""The command line that the benchmarks share."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.oracle import TOLERANCES
from harness.timing import CLOCKS


class Parser(argparse.ArgumentParser):
    """A parser with --quick and --out, and options whose default depends on --quick.

    Without `ratios_to`, whose time the ratios are to, there is no --rounds; `rounds` is what that
    is without --quick, None where the benchmark says so itself.
    """

    def __init__(self, benchmark, description, *, ratios_to=None, rounds=20):
        epilog = f"Ratios are to {ratios_to} time of the same round; above 1 is slower."
        super().__init__(description=description, epilog=epilog if ratios_to else None)
        self._by_size: dict[str, tuple[Any, Any]] = {}
        add = self.add_argument
        add("--quick", action="store_true", help="tiny sizes, to see that all runs; not a result")
        add(
            "--out",
            type=Path,
            help=f"result file (default results/{benchmark}-PLATFORM.json beside this script; "
            "with --quick nothing is written unless this is given)",
        )
        if ratios_to:
            self.set_defaults(dtype="float32")
            quick = None if rounds is None else 4
            self.sized("--rounds", rounds, quick, help="rounds a case; even balances the order")

    def sized(self, flag: str, usual: Any, quick: Any, *, help: str, **given: Any) -> None:
        """An option with one default for a result and another for --quick."""
        self._by_size[flag.removeprefix("--").replace("-", "_")] = (usual, quick)
        if isinstance(usual, tuple):
            given["nargs"] = "+"
            usual, quick = (" ".join(map(str, default)) for default in (usual, quick))
        if "action" not in given:
            given["type"] = int
        known = "" if usual is None else f" (default {usual}, with --quick {quick})"
        self.add_argument(flag, help=help + known, **given)

    def clock(self) -> None:
        """Adds --clock."""
        add = self.add_argument
        add("--clock", choices=sorted(CLOCKS), default="wall", help="what a second is (wall)")

    def dtype(self) -> None:
        """Adds --dtype."""
        text = "of inputs, weights and outputs (float32)"
        self.add_argument("--dtype", choices=sorted(TOLERANCES), default="float32", help=text)

    def only(self, what: str = "contenders whose name") -> None:
        """Adds --only; see `wanted`."""
        text = f"{what} contains one of these"
        self.add_argument("--only", nargs="+", metavar="TEXT", help=text)

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """The options, every default filled in."""
        options = self.parse_args(arguments)
        for name, (usual, quick) in self._by_size.items():
            if getattr(options, name) is None:
                setattr(options, name, quick if options.quick else usual)
        return options


def wanted(name: str, texts: Sequence[str] | None, always: Sequence[str] = ()) -> bool:
    """Whether --only TEXT… asks for a contender; without it all are."""
    return not texts or name in always or any(text in name for text in texts)
