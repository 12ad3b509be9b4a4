"""Training the tiny model over several processes: its sequences divided, their positions, or both.

    python -m experiments.process_training --processes 4 --checkpoint /tmp/counting.safetensors

trains two layers to count by ones, twos or threes, whichever a text does. With divided *sequences*
each process has its own; with divided *positions* keys and values travel around a ring, in zigzag
placement. The gradients of the weights are added up over all, in another order than by one process,
so that weights and losses of a dozen steps agree to :data:`TOLERANCE` and no further.

Weights and optimizer state are whole in every process. So the first process alone writes the
checkpoint, atomically, and any number can read it: four may go on with what two began. The tokens
of a step follow from its number, so that as many processes as before go on to the same bits as if
nothing had happened; ``--fail 1`` shows it.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array

from experiments.processes import die, joined, launch_processes, meet, process_parser
from mha_book._checks import check, check_size
from mha_book.models import tiny
from mha_book.sharding import (
    MeshAxes,
    MeshSizes,
    Placement,
    make_placement,
    sharded_multi_head_attention,
)
from mha_book.storage import load_arrays, load_tree, save_arrays, tree_arrays

MODULE = "experiments.process_training"
CONFIG = tiny.TinyConfig(
    vocab_size=11, max_length=32, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2,
    use_bias=False,
)  # fmt: skip
SEQUENCES, RATE, SEED = 8, 0.1, 2017
DIVISIONS = ("sequences", "positions", "both")
TOLERANCE = 1e-5
"""How far weights and losses may be from those of one process, after a dozen steps."""

AXES = MeshAxes(batch="sequences", sequence="ring")
OPTIMIZER = optax.sgd(RATE, momentum=0.9)
RUN = {"model": repr(CONFIG), "rate": RATE, "seed": SEED, "sequences": SEQUENCES}


class TrainState(NamedTuple):
    """All that a run needs to go on: the number of steps made, parameters, optimizer state."""

    step: Array
    params: tiny.TinyParams
    opt_state: Any


def batch(step: int) -> np.ndarray:
    """Return the tokens of a step, ``(B, T + 1)``: texts that count from some number on."""
    rng = np.random.default_rng([SEED, step])
    start, stride = (rng.integers(low, high, (SEQUENCES, 1)) for low, high in ((0, 11), (1, 4)))
    counted = start + stride * np.arange(CONFIG.max_length + 1)
    return (counted % CONFIG.vocab_size).astype(np.int32)


def init_state() -> TrainState:
    """Return the state before the first step."""
    params = jax.jit(tiny.init_tiny, static_argnums=1)(jax.random.key(SEED), CONFIG)
    return TrainState(jnp.zeros((), jnp.int32), params, jax.jit(OPTIMIZER.init)(params))


def make_step(mesh: Any, placement: Placement) -> Any:
    """Return a jitted step: ``(state, tokens, targets)`` to the next state and the loss before it.

    Tokens and targets ``(B, T)`` are in the order of ``placement``.
    """
    attention = functools.partial(
        sharded_multi_head_attention, mesh=mesh, axes=AXES, placement=placement
    )
    positions = jnp.asarray(placement.positions.reshape(-1), jnp.int32)

    def loss(params: Any, tokens: Array, targets: Array) -> Array:
        options: dict[str, Any] = {"positions": positions, "attention": attention}
        logits = tiny.forward(params, tokens, config=CONFIG, **options)
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))

    def step(state: TrainState, tokens: Array, targets: Array) -> tuple[TrainState, Array]:
        value, gradient = jax.value_and_grad(loss)(state.params, tokens, targets)
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies by its count of steps
            updates, opt_state = OPTIMIZER.update(gradient, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state), value

    return jax.jit(step, out_shardings=NamedSharding(mesh, PartitionSpec()))


def load_checkpoint(path: Path) -> TrainState:
    """Read a checkpoint of this run; every process does, however many there are."""
    arrays, metadata = load_arrays(path)
    check(metadata.get("run") == RUN, str(path), f"a checkpoint of {RUN}", metadata.get("run"))
    state: TrainState = load_tree(arrays, jax.eval_shape(init_state), "state")
    return state


def train(
    steps: int,
    sizes: MeshSizes,
    *,
    checkpoint: Path | None = None,
    every: int = 5,
    before_step: Callable[[int], None] = lambda step: None,
) -> tuple[TrainState, list[float]]:
    """Make steps until ``steps`` are made, from where a checkpoint says or from the beginning.

    It is written after each ``every`` steps and at the end. Returns the state, and the losses of
    the steps that were made here.
    """
    placement = make_placement("zigzag", CONFIG.max_length, sizes.sequence)
    shape, names = (sizes.batch, sizes.sequence), (str(AXES.batch), str(AXES.sequence))
    mesh = jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * 2)
    order = placement.positions.reshape(-1)

    def place(x: Any, spec: PartitionSpec) -> Array:
        """Give each device its part of what every process has whole."""
        x, sharding = np.asarray(x), NamedSharding(mesh, spec)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    state = load_checkpoint(checkpoint) if checkpoint and checkpoint.exists() else init_state()
    done = int(state.step)
    check(done <= steps, "steps", f"at least the {done} steps made already", steps)
    state = jax.tree.map(lambda x: place(x, PartitionSpec()), state)

    def tokens_of(number: int) -> list[Array]:
        tokens = batch(number)
        return [place(x[:, order], PartitionSpec(*names)) for x in (tokens[:, :-1], tokens[:, 1:])]

    step, losses = make_step(mesh, placement).lower(state, *tokens_of(done)).compile(), []
    meet("compiled")
    for number in range(done, steps):
        before_step(number)
        state, loss = step(state, *tokens_of(number))
        losses.append(float(loss))
        is_due = number + 1 == steps or (number + 1) % every == 0
        if checkpoint is not None and is_due and jax.process_index() == 0:
            save_arrays(checkpoint, tree_arrays(state, "state"), {"run": RUN})
    return state, losses


def mesh_sizes(processes: int, over: str) -> MeshSizes:
    """Return how many processes divide the sequences and how many the positions."""
    check_size(processes, "processes")
    ring = {"sequences": 1, "positions": processes, "both": min(2, processes)}[over]
    check(processes % ring == 0, "processes", "an even number, two of them to a ring", processes)
    rows = processes // ring
    check(SEQUENCES % rows == 0, "processes", f"a divisor of the {SEQUENCES} sequences", rows)
    make_placement("zigzag", CONFIG.max_length, ring)
    return MeshSizes(batch=rows, sequence=ring)


def take_part(number: int, sizes: MeshSizes, steps: int, path: Path | None, fail: Any) -> None:
    """Be one process of a training."""
    rows = SEQUENCES // sizes.batch
    first = rows * (number // sizes.sequence)
    placement = make_placement("zigzag", CONFIG.max_length, sizes.sequence)
    held = placement.describe(number % sizes.sequence) if sizes.sequence > 1 else "all positions"
    print(f"process {number}: sequences {first}-{first + rows - 1}, {held}", flush=True)

    def before_step(step: int) -> None:
        if number == fail and step == 7:
            die(number)

    _, losses = train(steps, sizes, checkpoint=path, before_step=before_step)
    ends = ", loss " + " to ".join(f"{losses[n]:.3f}" for n in (0, -1)) if losses else ""
    print(f"process {number}: steps {steps - len(losses)} to {steps}{ends}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; see the top of this module."""
    parser = process_parser(MODULE)
    parser.add_argument("--over", choices=DIVISIONS, default="both", help="what they divide")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoint", type=Path, help="a file to go on from and to keep")
    given = parser.parse_args(arguments)
    sizes = mesh_sizes(given.processes, given.over)
    if given.number is not None:
        with joined(given.number, given.processes, given.port):
            take_part(given.number, sizes, given.steps, given.checkpoint, given.fail)
        return 0
    more = ["--over", given.over, "--steps", str(given.steps)]
    more += ["--checkpoint", str(given.checkpoint)] if given.checkpoint else []
    options: dict[str, Any] = {
        "timeout": given.timeout,
        "done": "trained one model",
        "fail": given.fail,
    }
    return launch_processes(MODULE, given.processes, more, **options)


if __name__ == "__main__":
    sys.exit(main())
