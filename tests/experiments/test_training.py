"""Training: what is kept is returned to the same bits; checkpoints of other runs are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.training import init_state, make_train_step, train

# On the smallest model there is: a vector pulled towards noise.


def descent(
    num_steps, checkpoint=None, *, seeds=None, seed=3, optimizer=None, state=None, **options
):
    optimizer = optax.adam(0.1) if optimizer is None else optimizer
    step = make_train_step(
        lambda params, batch, key: (
            jnp.mean((params["x"] - batch) ** 2) + 0.0 * jax.random.normal(key)
        ),
        lambda data, key: data + jax.random.normal(key, (5,)),
        optimizer,
    )
    params, key = {"x": jnp.arange(5, dtype=jnp.float32)}, jax.random.key(seed)
    if seeds is None:
        state = init_state(params, optimizer, key) if state is None else state
    else:
        keys = jnp.stack([jax.random.key(seed) for seed in seeds])
        state = jax.vmap(lambda key: init_state(params, optimizer, key))(keys)
        step = jax.vmap(step, in_axes=(0, None))
    options = {"data": jnp.ones(5), "config": {"rate": 0.1}, **options}
    return train(step, state, num_steps, checkpoint=checkpoint, **options)


def measure(params, data):
    return {"distance": jnp.sum(jnp.abs(params["x"] - data[None]))}


def test_what_is_kept_is_returned_to_the_same_bits(tmp_path):
    given = {"seeds": (3, 5), "evaluate": measure, "evaluate_every": 10}
    path = str(tmp_path / "run.safetensors")  # a string serves as a path does
    whole, kept, again = (descent(40, at, **given) for at in (None, path, path))
    assert whole.evaluations["step"].tolist() == [0, 10, 20, 30, 40]
    assert len(whole.metrics["loss"]) == 40
    for found in (kept, again):
        leaves = (
            jax.tree.leaves((x.metrics, x.evaluations, plain(x.state))) for x in (found, whole)
        )
        for one, other in zip(*leaves, strict=True):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def plain(state):
    return state._replace(rng_key=jax.random.key_data(state.rng_key))


def test_it_goes_on_from_a_state_of_before():
    half = descent(20)
    step = descent(40).state.params["x"]
    with pytest.raises(ValueError, match="num_steps: expected at least the 20 steps"):
        descent(10, state=half.state)
    np.testing.assert_array_equal(descent(40, state=half.state).state.params["x"], step)


@pytest.mark.parametrize(
    "other, reason",
    [
        ({"config": {"rate": 0.2}}, r"expected a checkpoint of the run \{.*'rate': 0.2"),
        ({"num_steps": 6}, r"expected a checkpoint of the run \{'steps': 6"),
        ({"seed": 5}, "expected a checkpoint of a run that begins with the state"),
        ({"seeds": (1, 2)}, "begins with the state"),
        ({"optimizer": optax.sgd(0.1)}, "begins with the state"),
        ({"optimizer": optax.inject_hyperparams(optax.adam)(learning_rate=0.2)}, "with the state"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(other, reason, tmp_path):
    path = tmp_path / "run.safetensors"
    own = optax.inject_hyperparams(optax.adam)(learning_rate=0.1)
    descent(4, path, optimizer=own)
    with pytest.raises(ValueError, match=reason):
        descent(**{"num_steps": 4, "checkpoint": path, "optimizer": own, **other})
