"""The rows of a case: what is measured, what is refused, what cannot be measured and why."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import attention
from harness import memory, oracle, report
from harness.comparison import Contender, compare
from peers.attention import BASELINE, CONTENDERS


class Setting(NamedTuple):
    label: str = ""


def compared(*contenders: Contender, **options: Any) -> tuple[str, dict[str, dict[str, Any]]]:
    """What `compare` makes of contenders whose `run` is a number, a function or an error."""

    def prepare(one: Contender) -> Any:
        if isinstance(one.run, Exception):
            raise one.run
        return one.run if callable(one.run) else lambda: np.float64(one.run)

    found = compare(
        Setting(),
        contenders,
        prepare=prepare,
        error=lambda one, output: oracle.verify(one.name, [output], [np.float64(1.0)], 1e-3),
        numbers=lambda one: {"more": one.name},
        baseline="first",
        rounds=2,
        **options,
    )
    return found["baseline"], {row["name"]: row for row in found["rows"]}


def test_why_a_row_holds_no_number():
    out_of_memory = type("OutOfMemoryError", (RuntimeError,), {})("CUDA\nmore")
    _, rows = compared(
        Contender("first", 1.0),
        Contender("absent", 1.0, package="no_such_package"),
        Contender("not served", NotImplementedError("half precision only")),
        Contender("large", out_of_memory),
        Contender("larger", RuntimeError("RESOURCE_EXHAUSTED: 5 GiB")),
        Contender("peer", ValueError("its defect"), package="numpy"),
        Contender("defect", ValueError("our defect")),
        Contender("wrong", 1.1),
        Contender("right", 1.0),
    )
    status = {name: (row["status"], row.get("reason")) for name, row in rows.items()}
    assert status["absent"] == ("not measured", "no_such_package is not installed")
    assert status["not served"] == ("not measured", "half precision only")
    assert status["large"] == ("not measured", "out of memory: CUDA")
    assert status["larger"] == ("not measured", "out of memory: RESOURCE_EXHAUSTED: 5 GiB")
    assert status["peer"] == ("not measured", "ValueError: its defect")
    assert status["defect"] == ("refused", "ValueError('our defect')")
    assert status["wrong"][0] == "refused"
    for name in ("first", "right", "first (again)"):
        assert status[name] == ("measured", None)
        assert rows[name]["more"] == name.removesuffix(" (again)")
    assert all("seconds" not in row for row in rows.values() if row["status"] != "measured")
    assert list(rows)[-1] == "first (again)"


def test_the_baseline_is_the_first_that_fits():
    large = NotImplementedError("needs 5 GiB")
    baseline, rows = compared(Contender("first", large), Contender("b", 1.0), Contender("c", 1.0))
    assert baseline == "b"
    assert rows["b (again)"]["status"] == "measured"
    assert rows["c"]["ratio"]["median"] > 0


@pytest.mark.parametrize("run", [1.1, ValueError("a defect")])
def test_a_wrong_baseline_ends_the_run(run):
    with pytest.raises(ValueError, match=r"error of|a defect"):
        compared(Contender("first", run), Contender("b", 1.0))


def test_an_output_that_becomes_wrong_is_found():
    """What is checked first and last is the output of the function that is timed."""
    drifting = iter([1.0] * 4)

    def run():
        return np.float64(next(drifting, 1.1))

    with pytest.raises(oracle.WrongOutput, match="second"):
        compared(Contender("first", 1.0), Contender("second", run))


def test_rates_and_facts_are_in_the_rows():
    rates = {"matmul_flops_per_s": 4.0}
    _, rows = compared(Contender("first", 1.0), matmul_flops=6, rates=rates)
    for row in rows.values():
        assert row["flops_per_s"] == 6 / row["seconds"]["median"]
        assert row["fraction_of_matmul_rate"] == row["flops_per_s"] / 4


def test_a_wrong_contender_gets_a_row_without_numbers(rates):
    right = CONTENDERS[0]
    wrong = right._replace(
        name="wrong", call=lambda q, k, v, causal: 1.001 * right.call(q, k, v, causal)
    )
    absent = right._replace(name="absent", package="no_such_package")

    def refuse(*_):
        raise NotImplementedError("not for this shape")

    unable = right._replace(name="unable", call=refuse)
    case = attention.Case(5, True, False, heads=2, head_dim=3)
    found = attention.measure(case, [right, wrong, absent, unable], rounds=2, quick=True)
    rows = {row["name"]: row for row in found["rows"]}
    assert rows["wrong"]["status"] == "refused"
    assert rows["absent"]["status"] == rows["unable"]["status"] == "not measured"
    assert rows["absent"]["reason"] == "no_such_package is not installed"
    assert rows["unable"]["reason"] == "not for this shape"
    for name in ("wrong", "absent", "unable"):
        assert set(rows[name]) == {"name", "package", "layout", "remark", "status", "reason"}
    for name in (BASELINE, BASELINE + " (again)"):
        assert rows[name]["status"] == "measured"
        assert len(rows[name]["seconds_per_round"]) in (2, 4, 6)
    table = report.table(found["rows"])
    assert "not measured: no_such_package is not installed" in table
    with pytest.raises(oracle.WrongOutput):
        attention.measure(case, [wrong._replace(name=BASELINE)], rounds=1, quick=True)


def test_what_does_not_fit_is_not_run(monkeypatch):
    double, x = jax.jit(lambda x: x + x), jnp.ones((256, 1024), "float32")
    assert memory.free_bytes() is None or memory.free_bytes() > 2**20
    memory.check_room(double, [x], scores=memory.LARGE)
    monkeypatch.setattr(memory, "free_bytes", lambda: 2**20)
    with pytest.raises(NotImplementedError, match=r"needs 0\.0 GiB beside its inputs"):
        memory.check_room(double, [x], scores=memory.LARGE)
    monkeypatch.setattr(memory, "free_bytes", lambda: None)
    memory.check_room(double, [x], scores=memory.LARGE)


def test_the_plan_is_asked_for_large_cases_alone(monkeypatch):
    monkeypatch.setattr(memory, "free_bytes", lambda: 1)
    contender, case = CONTENDERS[0], attention.Case(8, False, False, heads=1, head_dim=4)
    attention.run_of(contender, case, attention.inputs_of(case))
    monkeypatch.setattr(memory, "LARGE", 4 * 8 * 8)
    with pytest.raises(NotImplementedError, match="beside its inputs"):
        attention.run_of(contender, case, attention.inputs_of(case))


# --- peak memory, in a process of its own -------------------------------------------------------


def test_memory_sees_an_allocation():
    mib = 200
    found = memory.peak_memory("harness.memory:fill", {"mib": mib})
    assert found["peak_bytes"] >= found["baseline_bytes"]
    assert abs(found["increase_bytes"] / 2**20 - mib) < 0.1 * mib


@pytest.mark.slow
def test_memory_of_a_row_and_of_a_process_that_fails():
    case = attention.Case(8, True, True, heads=1, head_dim=4)
    found = memory.peak_memory("attention:prepare_row", {"name": "recompute", "case": list(case)})
    assert found["increase_bytes"] > 0
    with pytest.raises(RuntimeError, match="no_such_function"):
        memory.peak_memory("harness.memory:no_such_function")


def test_memory_stands_in_every_row_but_the_self_pair(monkeypatch):
    asked = []

    def measured(target, arguments):
        asked.append((target, arguments["name"], arguments["case"]))
        return {"increase_bytes": 2**21}

    monkeypatch.setattr("harness.comparison.peak_memory", measured)
    absent = Contender("absent", 1.0, package="no_such_package")
    _, rows = compared(Contender("first", 1.0), absent, Contender("b", 1.0), memory="m:f")
    assert sorted(asked) == [("m:f", "b", [""]), ("m:f", "first", [""])]
    assert [name for name, row in rows.items() if "memory" in row] == ["first", "b"]
