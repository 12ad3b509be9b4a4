"""What tracing attention costs, beside ``jax.nn``: bounds that a busy machine does not break."""

import pytest

import tracing


@pytest.mark.usefixtures("no_type_checks")
def test_calls_of_the_package_while_one_attention_is_traced() -> None:
    functions, shapes = tracing.settings()["attend"]
    assert tracing.calls_while_tracing(functions[0], shapes) <= 120
