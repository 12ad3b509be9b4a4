"""Run the contract suite without pytest: ``python -m tests.attention.contract [--full]``.

Needs jax, numpy and jaxtyping, and the package, installed or in the folder ``src`` beside. The full
product takes hours. It goes on from journals, can be stopped at any time, shared between processes,
and stored::

    python -m tests.attention.contract --full --journal _build/contract --share 1/2 --unoptimized
    python -m tests.attention.contract --full --journal _build/contract --share 2/2 --unoptimized
    python -m tests.attention.contract --full --journal _build/contract --share 1/20
    python -m tests.attention.contract --journal _build/contract --output tests/data/contract.json
"""

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

if importlib.util.find_spec("mha_book") is None:
    sys.path.insert(0, str(Path(__file__).parents[3] / "src"))

import jax
import jaxlib

from benchmarks.harness.provenance import package_versions, record
from mha_book.attention.dispatch import IMPLEMENTATIONS
from mha_book.storage import seal, write_atomic
from tests.attention.contract import cases, whole
from tests.attention.contract.cases import Case


def share(text: str) -> tuple[int, int]:
    """Read ``2/3`` as ``(2, 3)``."""
    number, _, of = text.partition("/")
    if not (number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
        raise argparse.ArgumentTypeError(f"expected K/N with 1 <= K <= N; got {text!r}")
    return int(number), int(of)


def compile_quickly() -> None:
    """Leave out what makes programs fast and compiling slow; call it before JAX has a device.

    The programs compute the same, by other machine code. Half the time of XLA for processors is
    one way of making it, which jaxlib 0.10 can be told to leave alone.
    """
    jax.config.update("jax_disable_most_optimizations", True)
    flags = ["--xla_cpu_parallel_codegen_split_count=1"]
    if jaxlib.version.__version_info__ < (0, 11):
        flags.append("--xla_cpu_use_fusion_emitters=false")
    os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *flags]).strip()


def conditions(compiled: str) -> dict[str, object]:
    """What has to be the same for a journal to be gone on with."""
    versions = package_versions(("jax", "jaxlib", "numpy"))
    return {"compiled": compiled, "sources": whole.sources(), "versions": versions}


def run_whole(options: argparse.Namespace) -> None:
    """Run a share of the full product into its journal."""
    compiled = "unoptimized" if options.unoptimized else "optimized"
    number, of = options.share
    journal = options.journal / f"{compiled}-{number}-of-{of}.jsonl"
    heading = {"conditions": conditions(compiled), "provenance": record(seeds=whole.SEED)}
    count = whole.go_on(journal, heading, options.share, options.seconds)
    print(f"{count} combinations of levels, each by {len(IMPLEMENTATIONS)} implementations")


def write(options: argparse.Namespace) -> int:
    """Write what the journals say; return how many cases failed and still do."""
    found = whole.summary(sorted(options.journal.glob("*.jsonl")))
    again = whole.again(found["failures"])
    document = seal({"provenance": record(seeds={"order": whole.SEED}), **found, "again": again})
    write_atomic(options.output, (json.dumps(document, indent=1) + "\n").encode())
    failed = sum(bool(complaints) for *_, complaints in again)
    print(
        f"{options.output}: {found['levels']}, {len(again)} failed, {failed} of them fail now, too"
    )
    return failed


def main(arguments: list[str] | None = None) -> int:
    """Run, print, and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.attention.contract", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--full", action="store_true", help="the full product (pairwise otherwise)")
    parser.add_argument(
        "--implementation", choices=list(IMPLEMENTATIONS), action="append", help="default: all"
    )
    parser.add_argument("--journal", type=Path, help="folder of what was run, to go on from")
    parser.add_argument("--share", type=share, default=(1, 1), metavar="K/N", help="one of N parts")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="how long at most")
    parser.add_argument("--unoptimized", action="store_true", help="compile quickly")
    parser.add_argument("--output", type=Path, help="where to write what the journals say")
    options = parser.parse_args(arguments)
    if options.unoptimized:
        compile_quickly()
    if options.journal is not None:
        if options.full:
            run_whole(options)
        return 1 if options.output is not None and write(options) else 0
    return run_and_print(options)


def run_and_print(options: argparse.Namespace) -> int:
    """Run the pairwise cases, or the product without a journal; return the exit status."""
    chosen: list[Case] = []
    for name in options.implementation or IMPLEMENTATIONS:
        some: Iterable[Case] = cases.product(name) if options.full else cases.pairwise(name)
        chosen += some
    print(f"JAX {jax.__version__}, {jax.devices()[0].device_kind}, {len(chosen)} cases", flush=True)
    outcomes, start = [], time.perf_counter()
    for number, case in enumerate(chosen, 1):
        outcomes.append(whole.run(case))
        if sys.stdout.isatty():
            print(f"\r{number}/{len(chosen)}  {case.name:<110.110}", end="", flush=True)
    if sys.stdout.isatty():
        print("\r" + " " * 130, end="\r")
    for outcome in outcomes:
        if outcome.complaints:
            print(f"FAILED {outcome.case.implementation}: {outcome.case.name}")
            print("\n".join(f"  {complaint}" for complaint in outcome.complaints))
    failed = sum(bool(outcome.complaints) for outcome in outcomes)
    print(whole.table(outcomes))
    took = time.perf_counter() - start
    print(f"{len(outcomes) - failed} passed, {failed} failed in {took:.0f} s")
    return 1 if failed or not outcomes else 0


if __name__ == "__main__":
    raise SystemExit(main())
