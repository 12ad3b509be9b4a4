"""The experiment on heads in use: its reading of the model, its short form, what is stored."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import heads_in_use
from mha_book.models import smollm2
from tests.models.small import small_smollm2

DATA = Path(__file__).parents[2] / "book" / "data"
pytestmark = pytest.mark.unoptimized


def consistent(document, sizes):
    """What holds of the short form and of the long."""
    assert document["config"] == sizes._asdict()
    closed, batch = document["closed"], sizes.batch * sizes.batches
    for way in ("zero", "mean"):
        assert len(closed[f"{way} controls"]) == len(document["controls"]) == sizes.draws
        assert np.shape(list(closed[way].values())) == (3, batch)
    top = {tuple(head) for head in document["top"]}
    for control in document["controls"]:
        assert not top & {tuple(head) for head in control}
    senders, routes = document["senders"], document["routes"]
    assert max(layer for both in senders.values() for layer, _ in both) < min(top)[0]
    assert len(routes["looking back"]) == len(senders["looking back"]) == sizes.looking_back
    assert len(routes["others"]) == len(senders["others"]) == sizes.others
    for found in (*routes["looking back"], *routes["others"]):
        assert np.shape(found["keys"]["scores"]) == (len(document["top"]), sizes.batch)
    assert routes["whole"]["difference"] < 1e-4


@pytest.mark.slow
@pytest.mark.usefixtures("needs_models")
def test_the_short_form(tmp_path):
    path = heads_in_use.main(["--quick", "--work", str(tmp_path)])
    consistent(json.loads(path.read_text()), heads_in_use.QUICK)


def test_the_stored_result():
    document = json.loads((DATA / "heads-in-use.json").read_text())
    consistent(document, heads_in_use.Sizes())
    assert document["provenance"]["command"] == heads_in_use.COMMAND


def small():
    """A reading of a small model, its parameters, and the shapes that it takes."""
    params, config, *_ = small_smollm2()
    shape = (config.num_layers, config.num_heads)
    ids = jnp.array([[0, 5, 6, 7, 5, 6, 7], [0, 3, 4, 8, 3, 4, 8]], jnp.int32)
    means = jnp.zeros((*shape, config.head_dim))
    given = jnp.zeros((shape[0], 3, 2, shape[1], 7, config.head_dim))
    read = heads_in_use.reader(config)

    def run(gates=None, means=means, given=given, where=None):
        gates = jnp.ones(shape) if gates is None else gates
        where = np.zeros((shape[0], 3, shape[1]), np.float32) if where is None else where
        return read(params, ids, gates, means, given, where)

    return run, params, config, ids, shape


def test_a_reading_is_that_of_the_model():
    run, params, config, ids, shape = small()
    gates = jnp.ones(shape).at[0, 1].set(0)
    for closed in (None, gates):
        want = smollm2.token_losses(params, ids, config=config, gates=closed)
        np.testing.assert_allclose(run(closed).losses, want, atol=1e-5)


def test_a_route_carries_what_its_head_computes_and_nothing_else():
    run, _, config, _, shape = small()
    gates = jnp.ones(shape).at[0, 1].set(0)
    last = config.num_layers - 1
    whole, closed = run(), run(gates)
    where = np.zeros((shape[0], 3, shape[1]), np.float32)
    where[last] = 1  # queries, keys and values of every head of the last layer
    own = run(given=whole.projected, where=where)
    np.testing.assert_allclose(own.losses, whole.losses, atol=1e-6)
    put = run(given=closed.projected, where=where)
    np.testing.assert_allclose(put.scores[last], closed.scores[last], atol=1e-6)
    np.testing.assert_allclose(put.scores[:last], whole.scores[:last], atol=1e-6)
    where[last, :, 0] = 0  # one head keeps its own
    but_one = run(given=closed.projected, where=where)
    np.testing.assert_allclose(but_one.scores[last, 0], whole.scores[last, 0], atol=1e-6)
    assert np.abs(np.asarray(closed.losses) - np.asarray(whole.losses)).max() > 1e-4


def test_untrained_weights_have_the_variances_and_not_the_values():
    _, params, *_ = small()
    drawn = heads_in_use.untrained(params, 0)
    for old, new in zip(jax.tree.leaves(params), jax.tree.leaves(drawn), strict=True):
        assert old.shape == new.shape
        if old.ndim > 1:
            assert 0.5 < float(jnp.std(new) / jnp.std(old)) < 2
            assert abs(np.corrcoef(np.ravel(old), np.ravel(new))[0, 1]) < 0.6


def test_senders_are_the_heads_that_look_back_and_others():
    previous = np.zeros((4, 3))
    previous[1, 2], previous[0, 1], previous[3, 0] = 0.9, 0.8, 1.0
    sizes = heads_in_use.Sizes(looking_back=2, others=3)
    back, others = heads_in_use.senders(previous, 3, sizes)
    assert back == [[1, 2], [0, 1]]
    assert len(others) == 3
    assert all(layer < 3 for layer, _ in others)
    assert not {tuple(x) for x in back} & {tuple(x) for x in others}
