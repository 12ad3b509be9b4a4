"""The contract of attention over a mesh: every mesh, method, mask, number of heads and dtype."""

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding

from mha_book.masks import Mask, array_mask, causal, padding, sliding_window
from mha_book.sharding.all_to_all import all_to_all_attention
from mha_book.sharding.mesh import MeshAxes, operand_specs
from mha_book.sharding.placement import make_placement, place, restore
from mha_book.sharding.ring import ring_attention
from tests import oracles

AXES = MeshAxes("batch", "heads", "sequence")
LENGTH, WIDTH, VALUES = 16, 5, 3
MESHES = [
    shape for shape in itertools.product((1, 2, 4, 8), repeat=3) if math.prod(shape) in (1, 2, 4, 8)
]
METHODS = ("contiguous", "striped", "zigzag", "all_to_all")
HEADS = ((8, 8), (8, 4), (8, 2), (8, 1))
DTYPES = ("float32", "bfloat16")
TOLERANCES = {"float32": 1e-5, "bfloat16": 3e-2}  # as in tests/attention/contract
LENGTHS = np.array([5, 16, 1, 9, 12, 0, 7, 3])
HIDDEN = np.random.default_rng(3).random((8, LENGTH, LENGTH)) < 0.6


class Kind(NamedTuple):
    """A mask: the structure to give for so many sequences, and the rule pair by pair."""

    mask: Callable[[int], Mask | None]
    rule: Callable[[int, int, int, int], Any]  # of sequence, head, i, j


MASKS = {
    "none": Kind(lambda batch: None, lambda b, n, i, j: True),
    "causal": Kind(lambda batch: causal(), lambda b, n, i, j: j <= i),
    "window": Kind(lambda batch: sliding_window(6), lambda b, n, i, j: i - 5 <= j <= i),
    "band": Kind(lambda batch: sliding_window(4, 6), lambda b, n, i, j: i - 3 <= j <= i + 6),
    "padded": Kind(
        lambda batch: causal() & padding(jnp.asarray(LENGTHS[:batch])),
        lambda b, n, i, j: j <= i and j < LENGTHS[b],
    ),
    "array": Kind(
        lambda batch: array_mask(jnp.asarray(HIDDEN)[None]) & sliding_window(10, None),
        lambda b, n, i, j: HIDDEN[n, i, j] and j >= i - 9,
    ),
    "later": Kind(lambda batch: causal(-3), lambda b, n, i, j: j <= i - 3),
    "earlier": Kind(lambda batch: causal(4), lambda b, n, i, j: j <= i + 4),
    "both lengths": Kind(
        lambda batch: padding(jnp.asarray(LENGTHS[:batch]), jnp.asarray(LENGTHS[1 : batch + 1])),
        lambda b, n, i, j: j < LENGTHS[b] and i < LENGTHS[b + 1],
    ),
}


class Case(NamedTuple):
    """One case: a mesh by sequences, heads and positions, and what is computed over it."""

    mesh: tuple[int, int, int]
    method: str
    mask: str
    heads: tuple[int, int]
    dtype: str
    implementation: str
    unroll: int | None
    explicit: bool


FACTORS: tuple[tuple[Any, ...], ...] = (MESHES, METHODS, tuple(MASKS), HEADS, DTYPES)
RIDERS: tuple[tuple[Any, ...], ...] = (("reference", "blockwise"), (None, 1), (False, True))
"""What goes along by turns: how a step is computed, how the ring is written, the kind of mesh."""

QUICK = (
    ((1, 1, 4), (2, 2, 2), (1, 4, 2), (8, 1, 1)),
    METHODS,
    ("causal", "window", "padded", "array"),
    HEADS,
    DTYPES,
    *RIDERS,
)


def is_possible(case: Case) -> bool:
    """Whether the sizes can be divided: all but sequences that there are too few lengths for."""
    return not (case.mask == "both lengths" and case.mesh[0] == 8)


def full() -> list[Case]:
    """Every combination of the factors, the riders by turns."""
    riders = itertools.cycle(itertools.product(*RIDERS))
    product = (Case(*levels, *next(riders)) for levels in itertools.product(*FACTORS))
    return [case for case in product if is_possible(case)]


@functools.cache
def pairwise() -> tuple[Case, ...]:
    """Few cases that hold every pair of levels of two factors of ``QUICK``."""
    every = list(itertools.product(*(range(len(levels)) for levels in QUICK)))
    table = np.array(every)
    pairs = list(itertools.combinations(range(len(QUICK)), 2))
    codes = np.stack([100 * table[:, f] + table[:, g] for f, g in pairs], axis=1)
    missing = [set(np.unique(column).tolist()) for column in codes.T]
    chosen = []
    while any(missing):
        gains = sum(
            np.isin(column, list(left)).astype(int)
            for column, left in zip(codes.T, missing, strict=True)
        )
        best = int(np.argmax(gains))
        for left, code in zip(missing, codes[best].tolist(), strict=True):
            left.discard(code)
        chosen.append(Case(*(levels[i] for levels, i in zip(QUICK, every[best], strict=True))))
    return tuple(chosen)


@functools.cache
def problem(batch: int, heads: tuple[int, int], mask: str, dtype: str) -> Any:
    """Return operands and cotangents, rounded to ``dtype``, and what the oracle makes of them."""
    rng = np.random.default_rng(2017)

    def draw(*shape: int) -> np.ndarray:
        rounded = jnp.asarray(rng.standard_normal(shape), dtype)
        return np.asarray(rounded).astype(np.float64)

    num_heads, num_kv_heads = heads
    query = draw(batch, num_heads, LENGTH, WIDTH)
    key = draw(batch, num_kv_heads, LENGTH, WIDTH)
    value = draw(batch, num_kv_heads, LENGTH, VALUES)
    d_output = draw(batch, num_heads, LENGTH, VALUES)
    visible = np.zeros((batch, num_heads, LENGTH, LENGTH), bool)
    for where in np.ndindex(*visible.shape):
        visible[where] = MASKS[mask].rule(*where)
    output, lse, _ = oracles.attention(query, key, value, visible)
    gradients = oracles.attention_gradients(query, key, value, visible, d_output=d_output)
    return (query, key, value, d_output), (output, *gradients[:3]), lse


def mesh_for(shape: tuple[int, ...], names: tuple[str, ...], is_explicit: bool) -> Any:
    kind = AxisType.Explicit if is_explicit else AxisType.Auto
    devices = jax.devices()[: math.prod(shape)]
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape), devices=devices)


def run(case: Case) -> None:
    """Compute output and gradients over the mesh and hold them to the oracle."""
    batch = max(case.mesh[0], 2)
    arrays, expected, _ = problem(batch, case.heads, case.mask, case.dtype)
    mesh = mesh_for(case.mesh, tuple(AXES), case.explicit)
    mask = MASKS[case.mask].mask(batch)
    options: dict[str, Any] = {"axes": AXES, "mesh": mesh, "implementation": case.implementation}
    operands = [jnp.asarray(x, case.dtype) for x in arrays]
    if case.method != "all_to_all":
        placement = make_placement(case.method, LENGTH, case.mesh[2])
        options |= {"placement": placement, "unroll": case.unroll}
        operands = [place(x, placement) for x in operands]
        if mask is not None and mask.array is not None:
            order = placement.positions.reshape(-1)
            array = mask.array[..., order, :][..., order]
            mask = Mask(mask.lower, mask.upper, mask.key_lengths, mask.query_lengths, array)
    attend = all_to_all_attention if case.method == "all_to_all" else ring_attention

    def both(query: Any, key: Any, value: Any, d_output: Any) -> Any:
        output, pull = jax.vjp(lambda *x: attend(*x, mask=mask, **options), query, key, value)
        return output, *pull(d_output)

    specs = [operand_specs(4, AXES)] * 4
    if case.mesh[1] > case.heads[1]:  # each device gets the whole of the few key heads
        specs[1:3] = [operand_specs(4, AXES._replace(heads=None))] * 2
    placed = [
        jax.device_put(x, NamedSharding(mesh, spec))
        for x, spec in zip(operands, specs, strict=True)
    ]
    with jax.set_mesh(mesh):
        got = jax.jit(both)(*placed)
    names = ("output", "gradient of query", "gradient of key", "gradient of value")
    for name, mine, theirs in zip(names, got, expected, strict=True):
        assert mine.dtype == jnp.dtype(case.dtype), f"{name}: {mine.dtype}"
        mine = np.asarray(mine).astype(np.float64)
        if case.method != "all_to_all":
            mine = np.asarray(restore(jnp.asarray(mine), placement))
        error = np.abs(mine - theirs).max() / max(1.0, np.abs(theirs).max())
        assert error <= TOLERANCES[case.dtype], f"{name}: error {error:.1e}"
