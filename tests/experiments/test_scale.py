"""The training of one head with the scale and without: its short form, and what is stored."""

import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments import scale
from experiments.scale import ARMS, Sizes

STORED = Path(__file__).parents[2] / "book" / "data" / "scale.json"
pytestmark = pytest.mark.unoptimized


def complete(document, sizes):
    """Every training is there, and what is said about it follows from its curves."""
    assert document["config"] == json.loads(json.dumps(sizes._asdict()))
    for arm in ARMS:
        assert list(document[arm]) == [str(width) for width in sizes.widths]
        for found in document[arm].values():
            steps = np.array(found["curve_steps"])
            assert (steps[0], steps[-1]) == (0, sizes.steps)
            best = int(np.mean(found["choosing_loss_by_rate"], axis=-1).argmin())
            assert found["best_rate"] == sizes.rates[best]
            for name in ("loss", "accuracy"):
                curves = np.array(found[f"curve_{name}"])
                assert curves.shape == (sizes.seeds, len(steps))
                assert np.isfinite(curves).all()
                np.testing.assert_array_equal(found[name], curves[:, -1])
                np.testing.assert_array_equal(found[f"{name}_by_rate"][best], curves[:, -1])
            assert found["steps_to_ninety"] == [
                scale.steps_to(np.array(curve), steps) for curve in found["curve_accuracy"]
            ]
            assert np.shape(found["loss_by_rate"]) == (len(sizes.rates), sizes.seeds)


@pytest.mark.slow
def test_the_short_form(tmp_path, capsys):
    path = scale.main(["--quick", "--work", str(tmp_path)])
    document = json.loads(path.read_text())
    complete(document, scale.QUICK)
    assert document["provenance"]["command"].endswith("--quick")
    assert "unscaled, width 8: rate" in capsys.readouterr().out


def test_the_stored_training():
    complete(json.loads(STORED.read_text()), Sizes())


def test_what_is_stored_of_the_start():
    document, sizes = json.loads(STORED.read_text()), Sizes()
    for arm in ARMS:
        for width in sizes.widths:
            stored = document[arm][str(width)]["start"]
            again = scale.start_of(sizes, arm, width, sizes.choosing_seeds + 2)
            for name, number in again.items():
                assert stored[name][2] == pytest.approx(number, rel=1e-3, abs=1e-9), (arm, name)


@pytest.mark.parametrize("arm", ARMS)
def test_the_stored_curves_begin_as_a_training_does(arm):
    """A quarter of one training of each arm at the largest width, made again.

    From a saturated start rounding grows: those curves are the same for 60 steps, then alike.
    """
    found = json.loads(STORED.read_text())[arm]["256"]
    sizes = Sizes(steps=100)
    again = scale.fit(sizes, arm, 256, [found["best_rate"]], [sizes.choosing_seeds], None)
    for name in ("loss", "accuracy"):
        curve = found[f"curve_{name}"][0][: len(again.evaluations["step"])]
        own = again.evaluations[name][:, 0]
        np.testing.assert_allclose(own[:4], curve[:4], rtol=0.02, atol=0.01)
        np.testing.assert_allclose(own, curve, rtol=0.1, atol=0.05)


def test_the_smaller_start_has_the_scores_of_the_scaled_arm():
    sizes, key = Sizes(), jax.random.key(7)
    examples = scale.draw(jax.random.key(8), 5, sizes)
    given = {arm: scale.init(key, 64, arm, sizes) for arm in ARMS}
    assert all(
        bool((a == b).all()) for a, b in zip(given[ARMS[0]], given[ARMS[1]], strict=True)
    )  # the same start, bit for bit
    out = {arm: scale.answers(p, examples, scale.scale_of(arm, 64)) for arm, p in given.items()}
    np.testing.assert_allclose(out[ARMS[2]], out[ARMS[0]], rtol=1e-4, atol=1e-5)
    assert float(jnp.abs(out[ARMS[1]] - out[ARMS[0]]).max()) > 0.1


def test_no_name_stands_twice_and_the_answer_can_be_found():
    sizes = Sizes()
    examples = scale.draw(jax.random.key(9), 11, sizes)
    assert all(len(set(row)) == sizes.length for row in np.asarray(examples.names).tolist())
    # A head that looks up the right value has no loss.
    right = jnp.take_along_axis(examples.values, examples.place[:, None], axis=-1)[:, 0]
    assert scale.loss_of(50.0 * jax.nn.one_hot(right, sizes.values), examples) < 1e-6


def test_the_scale_is_a_start_and_a_rate():
    """Under Adam, W_Q begun and stepped smaller by √d_k does what dividing the scores does."""
    width, sizes = 64, Sizes()
    adam = optax.adam(3e-3, eps=1e-30)

    def curve(arm, rate_of_w_q):
        params = scale.init(jax.random.key(3), width, arm, sizes)
        state, losses = adam.init(params), []

        @jax.jit
        def step(params, state, key):
            examples = scale.draw(key, sizes.batch, sizes)
            loss, gradient = jax.value_and_grad(
                lambda p: scale.loss_of(
                    scale.answers(p, examples, scale.scale_of(arm, width)), examples
                )
            )(params)
            updates, state = adam.update(gradient, state)
            updates = updates._replace(w_q=updates.w_q * rate_of_w_q)
            return optax.apply_updates(params, updates), state, loss

        with jax.numpy_dtype_promotion("standard"):
            for number in range(60):
                params, state, loss = step(params, state, jax.random.key(number))
                losses.append(float(loss))
        return np.array(losses)

    scaled, both = curve(ARMS[0], 1.0), curve(ARMS[2], 1 / math.sqrt(width))
    np.testing.assert_allclose(both, scaled, rtol=2e-2)
    assert np.abs(curve(ARMS[2], 1.0) - scaled).max() > 0.1  # the start alone is not enough
