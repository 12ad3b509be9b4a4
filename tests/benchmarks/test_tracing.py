"""What tracing attention costs, beside ``jax.nn``: bounds that a busy machine does not break."""

import pytest

import tracing


@pytest.mark.usefixtures("no_type_checks")
def test_the_same_shapes_again_cost_next_to_nothing() -> None:
    functions, shapes = tracing.settings()["attend"]
    assert tracing.ratios(functions, shapes, rounds=3)["again"] < 1.5


@pytest.mark.usefixtures("no_type_checks")
def test_calls_of_the_package_while_one_attention_is_traced() -> None:
    functions, shapes = tracing.settings()["attend"]
    assert tracing.calls_while_tracing(functions[0], shapes) <= 120
