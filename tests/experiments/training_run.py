"""One training run of a tiny model, in a process of its own that may be killed.

    python -m tests.experiments.training_run CHECKPOINT [--kill-at STEP | --kill-in-write N]
        [--steps N] [--every N] [--rows N] [--clock-back SECONDS]

With ``--kill-at`` the process kills itself after so many steps of its own; with ``--kill-in-write``
in the middle of writing its N-th checkpoint. Neither can be caught. A table of positions with many
rows makes checkpoints large, which costs the steps little. With ``--clock-back`` the process lives
so many seconds earlier than it is.
"""

import argparse
import dataclasses
import datetime
import functools
import os
import signal
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tqdm

from experiments.training import TrainResult, init_state, make_train_step, train
from mha_book.models import tiny, tokens
from mha_book.multihead.dropout import Dropout

STEPS, EVERY, SEEDS = 40, 7, 2
CONFIG = tiny.TinyConfig(
    vocab_size=7, max_length=12, d_model=12, num_layers=1, dropout=Dropout(weights=0.1)
)


@functools.cache
def program(rows: int = CONFIG.max_length):
    """What is compiled once for all runs of one process: a step, and the state to begin with."""
    optimizer = optax.adamw(3e-3)
    config = dataclasses.replace(CONFIG, max_length=rows)
    step = make_train_step(
        lambda params, batch, key: tiny.loss(params, batch, config=config, rng_key=key),
        lambda data, key: tokens.sample_windows(data, key, 3, 13),
        optimizer,
    )
    keys = jax.random.split(jax.random.key(0), SEEDS)
    start = jax.vmap(lambda key: init_state(tiny.init_tiny(key, config), optimizer, key))
    return jax.vmap(step, in_axes=(0, None)), jax.jit(start)(keys)


def run(
    checkpoint: Path | None,
    num_steps: int = STEPS,
    evaluate=None,
    rows: int = CONFIG.max_length,
    **options,
) -> TrainResult:
    """Train one small model for each of two keys, with dropout and Adam."""
    data = jnp.asarray(np.random.default_rng(0).integers(0, 7, 500).astype(np.int32))
    return train(
        *program(rows),
        num_steps,
        data=data,
        checkpoint=checkpoint,
        evaluate=evaluate,
        **{"every": EVERY, "evaluate_every": 10, "config": {"d_model": 12}, **options},
    )


def scores(params, data):
    """What is measured on the way: the loss of every model on one batch."""
    windows = tokens.evenly_spaced_windows(data, 5, 13)
    config = dataclasses.replace(CONFIG, max_length=params.position_embedding.shape[-2])
    return {"loss": jax.vmap(lambda p: tiny.loss(p, windows, config=config))(params)}


def die() -> None:
    """End this process as a loss of power would."""
    os.kill(os.getpid(), signal.SIGKILL)


def set_clock_back(seconds: float, replace=setattr) -> None:
    """Let the clock of this process say what it said so many seconds ago."""
    now, now_ns = time.time, time.time_ns

    class Earlier(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) - datetime.timedelta(seconds=seconds)

    replace(time, "time", lambda: now() - seconds)
    replace(time, "time_ns", lambda: now_ns() - int(seconds * 1e9))
    replace(datetime, "datetime", Earlier)


def main(given: list[str] | None = None, replace=setattr) -> None:
    """Run as the command line says; ``replace`` puts a function in place of another."""
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--kill-in-write", type=int)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--every", type=int, default=EVERY)
    parser.add_argument("--rows", type=int, default=CONFIG.max_length)
    parser.add_argument("--clock-back", type=float, default=0)
    options = parser.parse_args(given)
    if options.clock_back:
        set_clock_back(options.clock_back, replace)
    if options.kill_in_write is not None:
        writes, fsync = [], os.fsync

        def interrupted(handle: int) -> None:
            """Before the first fsync of a write: cut the file in half and die."""
            writes.append(handle)
            if len(writes) == 2 * options.kill_in_write - 1:  # the file, then its folder
                os.ftruncate(handle, os.fstat(handle).st_size // 2)
                die()
            fsync(handle)

        replace(os, "fsync", interrupted)
    if options.kill_at is not None:
        made = []

        def counted(bar: tqdm.tqdm, *arguments) -> None:
            """In place of the progress: count the steps of this process, and die."""
            made.append(bar)
            if len(made) == options.kill_at:
                die()

        replace(tqdm.tqdm, "update", counted)
    run(options.checkpoint, options.steps, scores, options.rows, every=options.every)


if __name__ == "__main__":
    main()
