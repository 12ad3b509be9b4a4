"""The experiment on the rounding of stored weights: its short form, its steps, what is stored."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import quantization
from mha_book.models import smollm2

STORED = Path(__file__).parents[2] / "book" / "data" / "quantization.json"
pytestmark = [pytest.mark.unoptimized, pytest.mark.needs_models]


def complete(document, sizes):
    """What holds of the short form and of the long."""
    assert document["config"] == json.loads(json.dumps(sizes._asdict()))
    assert [(d["steps"], d["seed"]) for d in document["draws"]] == [*sizes.draws]
    for found in (document["stored"], *document["draws"]):
        assert set(found["excess"]) == set(quantization.KINDS)
        for excess in found["excess"].values():
            assert np.shape(excess) == (sizes.layers, 9)
            assert np.max(excess) <= 1


@pytest.mark.slow
def test_the_short_form(tmp_path):
    path = quantization.main(["--quick", "--out", str(tmp_path), "--work", str(tmp_path)])
    complete(json.loads(path.read_text()), quantization.QUICK)


def test_the_stored_result():
    document = json.loads(STORED.read_text())
    complete(document, quantization.Sizes())
    losses = np.array([draw["loss"] for draw in document["draws"]])
    assert (losses > document["stored"]["loss"]).all()
    assert losses[:8].max() < losses[8:].min()


@pytest.mark.slow
def test_the_steps_are_those_of_the_grid_that_the_stored_numbers_stand_on():
    """Within a block of 32 the numbers are apart by whole steps."""
    params, steps = smollm2.load_smollm2().params, quantization.steps_of_file()
    for weights, widths, levels in (
        (params.layers[3].w_gate.T, steps.layers[3].w_gate.T, 15),  # (out, in), 4 bits
        (params.token_embedding, steps.token_embedding, 254),  # 8 bits
    ):
        blocks, step = (np.asarray(x[:5], np.float64).reshape(-1, 32) for x in (weights, widths))
        assert (step == step[:, :1]).all()
        assert (step > 0).all()
        apart = (blocks - blocks.min(1, keepdims=True)) / step
        np.testing.assert_allclose(apart, apart.round(), atol=2e-3)
        assert apart.max() <= levels + 1e-3
    assert not np.asarray(steps.output_norm).any()  # norms are not rounded


def test_weights_move_by_at_most_half_a_step_and_the_first_layers_alone_alike():
    def layer(value):
        attention = smollm2.MultiHeadParams(*(jnp.full((4, 2, 3), value) for _ in range(4)))
        return smollm2.SmolLM2Layer(*[jnp.full(7, value)] * 1, attention, *[jnp.full(7, value)] * 4)

    params = smollm2.SmolLM2Params(jnp.ones((50, 4)), (layer(1.0), layer(1.0)), jnp.ones(4))
    steps = smollm2.SmolLM2Params(jnp.full((50, 4), 0.2), (layer(0.2), layer(0.0)), jnp.zeros(4))
    found = quantization.moved(params, steps, 1.0, 3)
    assert 0.08 < abs(found.token_embedding - 1).max() <= 0.1
    assert 0.05 < abs(found.layers[0].attention.w_q - 1).max() <= 0.1
    assert (found.layers[1].w_up == 1).all()
    twice = quantization.moved(params, steps, 2.0, 3)
    np.testing.assert_allclose(twice.layers[0].w_up - 1, 2 * (found.layers[0].w_up - 1), atol=1e-6)
    alone = quantization.moved(params._replace(layers=params.layers[:1]), steps, 1.0, 3)
    for one, other in zip(
        jax.tree.leaves(alone.layers[0]), jax.tree.leaves(found.layers[0]), strict=True
    ):
        np.testing.assert_array_equal(one, other)
