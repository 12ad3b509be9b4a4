"""Training: killed and resumed to the same bits; checkpoints of other runs are refused."""

import os
import secrets

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import tqdm

from experiments.training import init_state, make_train_step, train
from mha_book.storage import load_arrays

# On the smallest model there is: a vector pulled towards noise.


def descent(num_steps, checkpoint=None, *, seeds=None, seed=3, optimizer=None, **options):
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
        state = init_state(params, optimizer, key)
    else:
        keys = jnp.stack([jax.random.key(seed) for seed in seeds])
        state = jax.vmap(lambda key: init_state(params, optimizer, key))(keys)
        step = jax.vmap(step, in_axes=(0, None))
    options = {"data": jnp.ones(5), "config": {"rate": 0.1}, **options}
    return train(step, state, num_steps, checkpoint=checkpoint, **options)


def measure(params, data):
    return {"distance": jnp.sum(jnp.abs(params["x"] - data[None]))}


class Killed(BaseException):
    """No ``Exception``: nothing between the kill and the test may catch it."""


def killed(patch, place, name, at, before=lambda *given: None):
    """Replace a function by one that dies in its call number ``at``."""
    calls, real = [], getattr(place, name)

    def counted(*given):
        calls.append(given)
        if len(calls) == at:
            before(*given)
            raise Killed
        return real(*given)

    patch.setattr(place, name, counted)


def halve(handle):
    os.ftruncate(handle, os.fstat(handle).st_size // 2)


def test_killed_and_resumed_it_ends_with_the_same_bits(tmp_path):
    """Killed at a random step, then half way through writing a checkpoint, then to the end."""
    path, step = tmp_path / "run.safetensors", 1 + secrets.randbelow(21)
    print(f"killed at step {step}")
    given = {"seeds": (3, 5), "every": 7, "evaluate": measure, "evaluate_every": 10}
    whole = descent(40, **given)
    with pytest.MonkeyPatch.context() as patch:
        killed(patch, tqdm.tqdm, "update", step)
        with pytest.raises(Killed):
            descent(40, path, **given)
    kept = (step - 1) // 7 * 7  # where it died, and not after
    assert path.exists() == (kept > 0)
    with pytest.MonkeyPatch.context() as patch:
        killed(patch, os, "fsync", 3, halve)  # of each write the file, then its folder
        with pytest.raises(Killed):
            descent(40, path, **given)
    assert load_arrays(path)[0]["state.step"].tolist() == [kept + 7] * 2
    result = descent(40, path, **given)
    for found, wanted in (
        (result.metrics, whole.metrics),
        (result.evaluations, whole.evaluations),
        (result.state.params, whole.state.params),
        (result.state.opt_state[0]._asdict(), whole.state.opt_state[0]._asdict()),
    ):
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
            assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
    assert result.evaluations["step"].tolist() == [0, 10, 20, 30, 40]


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    descent(4, path, config={"rate": 0.1, "places": (1, 2)})
    descent(6, path, config={"rate": 0.1, "places": (1, 2)})
    with pytest.raises(ValueError, match=r"expected a checkpoint of the run \{'rate': 0.2"):
        descent(8, path, config={"rate": 0.2, "places": (1, 2)})
    with pytest.raises(ValueError, match="num_steps: expected at least the 6 steps"):
        descent(5, path, config={"rate": 0.1, "places": (1, 2)})
    with pytest.raises(ValueError, match=r"state.*expected shape"):
        descent(8, path, seeds=(1, 2), config={"rate": 0.1, "places": (1, 2)})


def test_another_seed_or_optimizer_is_another_run(tmp_path):
    path = str(tmp_path / "run.safetensors")  # a string serves as a path does
    descent(4, path, seed=3)
    with pytest.raises(ValueError, match=r"rng_key: expected the key of this run, \[0, 5\]; got"):
        descent(6, path, seed=5)
    with pytest.raises(ValueError, match=r"rng_key: expected the key of this run"):
        descent(4, path, seed=5)  # nothing is left to do, and still it is not this run
    for other in (optax.sgd(0.1), optax.chain(optax.clip(1.0), optax.adam(0.1))):
        with pytest.raises(ValueError, match=r"state"):
            descent(6, path, optimizer=other)
    assert descent(6, path, seed=3).state.step == 6
    rated = tmp_path / "rated.safetensors"
    descent(4, rated, optimizer=optax.inject_hyperparams(optax.sgd)(learning_rate=0.1))
    with pytest.raises(ValueError, match=r"opt_state: expected the optimizer that the run began"):
        descent(6, rated, optimizer=optax.inject_hyperparams(optax.sgd)(learning_rate=0.2))
    descent(6, rated, optimizer=optax.inject_hyperparams(optax.sgd)(learning_rate=0.1))
