"""What tracing one attention costs: a bound that a busy machine does not break."""

import sys
from pathlib import Path
from typing import Any

import jax
import pytest

from mha_book import attend

PACKAGE = str(Path(sys.modules[attend.__module__].__file__ or "").parents[1])


@pytest.mark.usefixtures("no_type_checks")
def test_calls_of_the_package_while_one_attention_is_traced() -> None:
    count, x = 0, jax.ShapeDtypeStruct((1, 8, 1024, 64), "float32")

    def note(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        code = frame.f_code
        is_function = not code.co_name.startswith("<")  # neither lambda nor comprehension
        count += event == "call" and is_function and code.co_filename.startswith(PACKAGE)

    jax.clear_caches()
    sys.setprofile(note)
    try:
        jax.jit(lambda q, k, v: attend(q, k, v, is_causal=True)).trace(x, x, x)
    finally:
        sys.setprofile(None)
    assert 20 < count <= 120
