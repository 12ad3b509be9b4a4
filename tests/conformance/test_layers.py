"""Layers of cross-attention: what is right passes, and what is wrong in one is named."""

import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.conformance import check_attention
from tests.conformance.mutilated import LAYER, LAYER_CHANGES, mutilated
from tests.conformance.test_catalog import right

TOLD = {"corner": "top-left", "empty": "zero"}


def report_of(*changes):
    rng = np.random.default_rng(0)
    params = {f"w{x}": rng.normal(size=(24, 24)) for x in "qkvo"}
    params |= {f"b{x}": rng.normal(size=24) for x in "qkvo"}
    params = {name: jnp.asarray(x, jnp.float32) for name, x in params.items()}
    function = mutilated(*changes, source=LAYER)
    return check_attention(
        params, function=function, num_heads=4, layout="BTD", polarity="attend", expect=TOLD
    )


def test_a_right_one_passes_with_more_keys_than_queries():
    report = report_of()
    outcomes = {line.text: line.outcome for line in report.properties}
    assert report.passed
    assert outcomes["more keys than queries"] == "passed"
    assert outcomes["causal, more queries than keys"] == "passed"


def test_one_that_reads_itself_is_named():
    report = report_of(LAYER_CHANGES[0])
    assert [bug.id for bug in report.bugs] == ["memory-ignored"]


@pytest.mark.slow
def test_each_change_is_seen_and_nearly_each_named():
    found = {change: report_of(change) for change in LAYER_CHANGES}
    assert [change[0] for change, report in found.items() if report.passed] == []
    misnamed = {
        change[0]: [bug.id for bug in report.bugs]
        for change, report in found.items()
        if not any(right(bug.id, change[:1]) for bug in report.bugs)
    }
    assert len(misnamed) <= 0.15 * len(found), misnamed


@pytest.mark.slow
@pytest.mark.needs_torch
def test_torch_with_three_inputs():
    import torch

    for batch_first in (False, True):
        layer = torch.nn.MultiheadAttention(24, 4, 0.5, batch_first=batch_first)
        report = check_attention(layer)
        assert report.passed
        assert report.conventions["layout"] == ("BTD" if batch_first else "TBD")
        assert {line.text: line.outcome for line in report.properties}[
            "more keys than queries"
        ] == "passed"
