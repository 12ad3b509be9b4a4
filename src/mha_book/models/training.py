r"""Training the tiny model over several processes: its sequences divided, their positions, or both.

    python -m mha_book.models.training --processes 4 --checkpoint /tmp/counting.safetensors

trains two layers to count by ones, twos or threes, whichever a text does. One program serves every
mesh: the model is the one of :mod:`~mha_book.models.tiny`, its attention
:func:`~mha_book.sharding.heads.sharded_multi_head_attention`, and how the tokens are divided says
the rest. With divided *sequences* each process has its own, and the gradients of the weights are
added up over all; with divided *positions* keys and values travel around the ring, in zigzag
placement, and the gradients are added up as well. Sums are then taken in another order than by one
process, so that weights and losses of a dozen steps agree to :data:`TOLERANCE` and no further.

The weights and the state of the optimizer are whole in every process. So the first process alone
writes the checkpoint, atomically, and any number can read it: four may go on with what two began.
The tokens of a step follow from the number of the step. As many processes as before, divided the
same way, go on to the same bits as if nothing had happened; ``--fail 1`` shows it. What becomes of
the others when one dies is told in :mod:`~mha_book.sharding.processes`.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from jaxtyping import Array, Float, Int

from mha_book._checks import check, check_size
from mha_book.models import tiny
from mha_book.sharding.heads import sharded_multi_head_attention
from mha_book.sharding.mesh import MeshAxes, MeshSizes
from mha_book.sharding.placement import Placement, make_placement
from mha_book.sharding.processes import die, joined, launch_processes, meet, process_parser
from mha_book.storage import import_extra, load_arrays, load_tree, save_arrays, tree_arrays

__all__ = [
    "CONFIG",
    "DIVISIONS",
    "TOLERANCE",
    "TrainState",
    "batch",
    "init_state",
    "launch",
    "load_checkpoint",
    "make_step",
    "save_checkpoint",
    "train",
]

CONFIG = tiny.TinyConfig(
    vocab_size=11, max_length=32, d_model=32, num_layers=2, num_heads=4, num_kv_heads=2,
    use_bias=False,
)  # fmt: skip
"""The model that the command trains: two layers of four heads, 32 positions."""

SEQUENCES, RATE, SEED = 8, 0.1, 2017

DIVISIONS = ("sequences", "positions", "both")
"""What the processes can divide among them."""

TOLERANCE = 1e-5
"""How far weights and losses may be from those of one process, after a dozen steps."""

AXES = MeshAxes(batch="sequences", sequence="ring")


class TrainState(NamedTuple):
    """All that a run needs to go on.

    Args:
        step: how many steps were made, int32.
        params: the parameters.
        opt_state: the state of the optimizer.
    """

    step: Array
    params: tiny.TinyParams
    opt_state: Any


def batch(step: int) -> Int[np.ndarray, "B text"]:
    """Return the tokens of a step: texts that count from some number on, by ones, twos or threes.

    Args:
        step: the number of the step, from 0.

    Returns:
        ``(B, T + 1)``: ``T`` tokens to read and, each one further, ``T`` to predict.

    Example:
        >>> tokens = batch(3)
        >>> tokens.shape, set((np.diff(tokens[0]) % CONFIG.vocab_size).tolist()) <= {1, 2, 3}
        ((8, 33), True)
    """
    rng = np.random.default_rng([SEED, step])
    start, stride = (rng.integers(low, high, (SEQUENCES, 1)) for low, high in ((0, 11), (1, 4)))
    counted = start + stride * np.arange(CONFIG.max_length + 1)
    return (counted % CONFIG.vocab_size).astype(np.int32)


def _optimizer() -> Any:
    return import_extra("optax", "training").sgd(RATE, momentum=0.9)


def init_state() -> TrainState:
    """Return the state before the first step.

    Example:
        >>> int(init_state().step)
        0
    """
    params = jax.jit(tiny.init_tiny, static_argnums=1)(jax.random.key(SEED), CONFIG)
    return TrainState(jnp.zeros((), jnp.int32), params, jax.jit(_optimizer().init)(params))


def make_step(mesh: Any, placement: Placement) -> Any:
    """Return a step of training over the devices of a mesh.

    Args:
        mesh: with the axes ``sequences`` and ``ring``, which divide the tokens.
        placement: which positions each device of the ring has.

    Returns:
        A jitted function of ``(state, tokens, targets)`` to the next state and the loss before the
        step; tokens and targets ``(B, T)`` are in the order of ``placement``.
    """
    optax = import_extra("optax", "training")
    optimizer = _optimizer()
    attention = functools.partial(
        sharded_multi_head_attention, mesh=mesh, axes=AXES, placement=placement
    )
    positions = jnp.asarray(placement.positions.reshape(-1), jnp.int32)

    def loss(params: Any, tokens: Array, targets: Array) -> Float[Array, ""]:
        logits = tiny.forward(
            params, tokens, config=CONFIG, positions=positions, attention=attention
        )
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, targets))

    def step(state: TrainState, tokens: Array, targets: Array) -> tuple[TrainState, Array]:
        value, gradient = jax.value_and_grad(loss)(state.params, tokens, targets)
        with jax.numpy_dtype_promotion("standard"):  # optax multiplies by its count of steps
            updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
            params = optax.apply_updates(state.params, updates)
        return TrainState(state.step + 1, params, opt_state), value

    return jax.jit(step, out_shardings=NamedSharding(mesh, PartitionSpec()))


def save_checkpoint(path: Path | str, state: TrainState) -> None:
    """Write a state atomically, by the first process; the others do nothing.

    Args:
        path: the file.
        state: which every process has whole.
    """
    if jax.process_index() == 0:
        save_arrays(path, tree_arrays(state, "state"), {"run": _description()})


def load_checkpoint(path: Path | str) -> TrainState:
    """Read what :func:`save_checkpoint` wrote; every process does, however many there are.

    Args:
        path: the file.

    Returns:
        The state.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is damaged, or of another run.
    """
    arrays, metadata = load_arrays(path)
    got, wanted = metadata.get("run"), _description()
    check(got == wanted, str(path), f"a checkpoint of the run {wanted}", got)
    state: TrainState = load_tree(arrays, jax.eval_shape(init_state), "state")
    return state


def _description() -> dict[str, Any]:
    return {"model": repr(CONFIG), "rate": RATE, "seed": SEED, "sequences": SEQUENCES}


def train(
    steps: int,
    sizes: MeshSizes,
    *,
    checkpoint: Path | str | None = None,
    every: int = 5,
    before_step: Callable[[int], None] = lambda step: None,
) -> tuple[TrainState, list[float]]:
    """Make steps until ``steps`` are made, from where a checkpoint says or from the beginning.

    Args:
        steps: how many steps the state shall count at the end.
        sizes: how many devices divide the sequences and how many the positions.
        checkpoint: a file to go on from if it exists, and to keep the state in; None for none.
        every: after how many steps the checkpoint is written; it is at the end too.
        before_step: called with the number of each step.

    Returns:
        The state, and the losses of the steps that were made here.

    Raises:
        ValueError: the devices do not divide the sequences or the positions, or the checkpoint is
            damaged, of another run, or of more steps than asked for.
    """
    check_size(steps, "steps")
    check_size(every, "every")
    placement = make_placement("zigzag", CONFIG.max_length, sizes.sequence)
    shape, names = (sizes.batch, sizes.sequence), (str(AXES.batch), str(AXES.sequence))
    mesh = jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * 2)
    order = placement.positions.reshape(-1)

    def place(x: Any, spec: PartitionSpec) -> Array:
        """Give each device its part of what every process has whole."""
        x, sharding = np.asarray(x), NamedSharding(mesh, spec)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    is_there = checkpoint is not None and Path(checkpoint).exists()
    state = load_checkpoint(str(checkpoint)) if is_there else init_state()
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
        if checkpoint is not None and (number + 1 == steps or (number + 1) % every == 0):
            save_checkpoint(checkpoint, state)
    return state, losses


def mesh_sizes(processes: int, over: str) -> MeshSizes:
    """Return how many processes divide the sequences and how many the positions."""
    check_size(processes, "processes")
    check(over in DIVISIONS, "over", f"one of {', '.join(DIVISIONS)}", repr(over))
    ring = {"sequences": 1, "positions": processes, "both": min(2, processes)}[over]
    what = "an even number, two of them to a ring"
    check(processes % ring == 0, "processes", what, processes)
    over_sequences = processes // ring
    fits = SEQUENCES % over_sequences == 0
    check(fits, "processes", f"a divisor of the {SEQUENCES} sequences", over_sequences)
    make_placement("zigzag", CONFIG.max_length, ring)
    return MeshSizes(batch=over_sequences, sequence=ring)


def launch(
    processes: int,
    *,
    over: str = "both",
    steps: int = 20,
    checkpoint: Path | str | None = None,
    timeout: float = 300.0,
    fail: int | None = None,
) -> int:
    """Start processes that train together, print what each of them says, and wait for their end.

    Args:
        processes: how many.
        over: what they divide, one of :data:`DIVISIONS`.
        steps: how many steps the run shall count at the end.
        checkpoint: as in :func:`train`.
        timeout: seconds that all may take together.
        fail: the number of a process that is to die before step 7 of the run; None for none.

    Returns:
        0 where they came to the end; 1 where one failed, died or took too long.

    Raises:
        ValueError: the processes cannot divide what they are to divide.
    """
    mesh_sizes(processes, over)
    check_size(steps, "steps")
    arguments = ["--over", over, "--steps", str(steps)]
    arguments += [] if checkpoint is None else ["--checkpoint", str(checkpoint)]
    return launch_processes(
        "mha_book.models.training",
        processes,
        arguments,
        timeout=timeout,
        done="trained one model",
        fail=fail,
    )


def _take_part(number: int, sizes: MeshSizes, steps: int, path: Path | None, fail: Any) -> None:
    """Be one process of a training."""
    rows = SEQUENCES // sizes.batch
    first = rows * (number // sizes.sequence)
    placement = make_placement("zigzag", CONFIG.max_length, sizes.sequence)
    held = placement.describe(number % sizes.sequence) if sizes.sequence > 1 else "all positions"
    said = f"sequences {first}-{first + rows - 1}, {held}"
    print(f"process {number}: {said}", flush=True)

    def before_step(step: int) -> None:
        if number == fail and step == 7:
            die(number)

    _, losses = train(steps, sizes, checkpoint=path, before_step=before_step)
    made = f"steps {steps - len(losses)} to {steps}"
    ends = ", loss " + " to ".join(f"{losses[n]:.3f}" for n in (0, -1)) if losses else ""
    print(f"process {number}: {made}{ends}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; see the top of this module."""
    parser = process_parser("mha_book.models.training")
    parser.add_argument("--over", choices=DIVISIONS, default="both", help="what they divide")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--checkpoint", type=Path, help="a file to go on from and to keep")
    given = parser.parse_args(arguments)
    if given.number is not None:
        sizes = mesh_sizes(given.processes, given.over)
        with joined(given.number, given.processes, given.port):
            _take_part(given.number, sizes, given.steps, given.checkpoint, given.fail)
        return 0
    return launch(
        given.processes, over=given.over, steps=given.steps, checkpoint=given.checkpoint,
        timeout=given.timeout, fail=given.fail,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
