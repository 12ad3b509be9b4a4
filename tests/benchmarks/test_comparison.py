"""The rows of a case: what is measured, what is refused, what cannot be measured and why."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from harness import oracle
from harness.comparison import Contender, compare


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


def test_an_output_that_becomes_wrong_is_found():
    """What is checked first and last is the output of the function that is timed."""
    drifting = iter([1.0] * 4)

    def run():
        return np.float64(next(drifting, 1.1))

    with pytest.raises(oracle.WrongOutput, match="second"):
        compared(Contender("first", 1.0), Contender("second", run))
