"""The rows of a case: every contender prepared, checked, timed and checked again.

What cannot be measured keeps its row and says why; what is wrong is refused.  Either way the row
holds no number.
"""

import importlib.util
from typing import Any, NamedTuple

from harness.memory import peak_memory
from harness.oracle import WrongOutput
from harness.rates import measure_rates
from harness.report import progress_line
from harness.timing import CLOCKS, SELF_PAIR_SUFFIX, Run, interleave, timings, with_self_pair

OURS = "mha_book"


class Contender(NamedTuple):
    """A row of a benchmark."""

    name: str  # as printed and stored
    run: Any  # the function to time, or what the benchmark makes it from
    package: str = OURS  # the distribution that it needs
    layout: str = "NTH"  # of the arrays that it is given
    remark: str = ""  # what a reader of the table must know
    prepare: Any = None  # of a peer that is no function of JAX arrays: what makes it from NumPy's


def installed(package: str) -> bool:
    """Whether a contender's package can be imported."""
    return importlib.util.find_spec(package) is not None


def reason_of(error: Exception, package: str) -> str | None:
    """Why an error means that a contender cannot be measured here, None if it means a defect.

    It does where memory ran out, where a contender says that it does not serve, and, whatever
    the error, for a package that is not ours.
    """
    text = next(iter(str(error).splitlines()), "")[:200]
    if isinstance(error, NotImplementedError):
        return text
    out = isinstance(error, MemoryError) or "OutOfMemory" in type(error).__name__
    if out or "RESOURCE_EXHAUSTED" in text:
        return f"out of memory: {text}"
    return None if package == OURS else f"{type(error).__name__}: {text}"


def compare(
    setting,
    contenders,
    *,
    error,
    baseline,
    options=None,
    rounds=None,
    prepare=lambda contender: contender.run,
    numbers=lambda contender: {},
    memory=None,
    **facts,
) -> dict[str, Any]:
    """All contenders in one setting: checked, timed in interleaved rounds, checked again.

    A contender that is not installed, does not fit into memory or refuses to serve becomes a row
    "not measured", one with a wrong output a row "refused"; neither holds a number. A wrong output
    of the baseline is raised: there is nothing to compare then.

    `error`, `prepare` and `numbers` take a contender: the checked error of its output (or they
    raise `WrongOutput`), the function to time, and what else its row holds. All are divided by the
    `baseline`, or by the first that can be measured. With `options` the rates P and W are measured;
    `memory`, "module:function", prepares one contender of a setting for `peak_memory`. `facts` are
    what else the case holds: with the `matmul_flops` of a row or of the case, each row says at
    which rate it worked.
    """
    clock = getattr(options, "clock", "wall")
    if options is not None and "rates" not in facts:
        dtype = getattr(setting, "dtype", "float32")
        facts["rates"] = measure_rates(dtype, quick=options.quick, clock=clock)
    rows: dict[str, dict[str, Any]] = {}
    runs: dict[str, Run] = {}
    known: dict[str, Any] = {}
    errors: dict[str, float] = {}
    for contender in contenders:
        name, package = contender.name, contender.package
        told = ("name", "package", "layout", "remark")
        rows[name] = {key: getattr(contender, key) for key in told}
        if not installed(package):
            rows[name] |= {"status": "not measured", "reason": f"{package} is not installed"}
            continue
        try:
            run = prepare(contender)
            errors[name] = error(contender, run())
        except WrongOutput as wrong:
            if name == baseline:
                raise
            rows[name] |= {"status": "refused", "reason": str(wrong)}
        except Exception as problem:
            reason = reason_of(problem, package)
            if reason is None and name == baseline:
                raise
            unable = {"status": "not measured", "reason": reason}
            rows[name] |= unable if reason else {"status": "refused", "reason": repr(problem)}
        else:
            runs[name], known[name] = run, contender
    baseline = next(name for name in (baseline, *runs) if name in runs)
    again = baseline + SELF_PAIR_SUFFIX
    rows[again] = {**rows[baseline], "name": again, "remark": "the A/A self-pair"}
    known[again], errors[again] = known[baseline], errors[baseline]
    times = interleave(
        with_self_pair(runs, baseline), rounds=rounds or options.rounds, clock=CLOCKS[clock],
        progress=progress_line(setting.label),
    )  # fmt: skip
    rates = facts.get("rates")
    for name, output in times.outputs.items():
        row = rows[name]
        largest = max(errors[name], error(known[name], output))
        row |= {"status": "measured", **numbers(known[name]), "error": largest}
        row |= timings(name, times, baseline)
        flops = row.get("matmul_flops", facts.get("matmul_flops"))
        if rates is not None and flops is not None:
            rate = flops / row["seconds"]["median"]
            row["flops_per_s"] = rate
            row["fraction_of_matmul_rate"] = rate / rates["matmul_flops_per_s"]
        if memory is not None and name != again:
            row["memory"] = peak_memory(memory, {"name": name, "case": list(setting)})
    order = [*(contender.name for contender in contenders), again]
    return {
        "case": {**setting._asdict(), "label": setting.label}, **facts, "baseline": baseline,
        "rows": [rows[name] for name in order],
    }  # fmt: skip
