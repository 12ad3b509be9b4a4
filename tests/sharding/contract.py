"""The contract of attention over a mesh: meshes, methods, masks, numbers of heads and dtypes."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding

from mha_book.masks import array_mask, causal, padding, segments, sliding_window
from mha_book.sharding import (
    MeshAxes,
    all_to_all_attention,
    make_placement,
    place,
    restore,
    ring_attention,
)
from mha_book.sharding.mesh import operand_specs
from tests import oracles

AXES = MeshAxes("batch", "heads", "sequence")
LENGTH, WIDTH, VALUES, NUM_HEADS = 16, 5, 3, 8
TOLERANCES = {"float32": 1e-5, "bfloat16": 3e-2}  # as in tests/attention/contract
LENGTHS = np.array([5, 16, 1, 9, 12, 0, 7, 3])
SHOWN = np.random.default_rng(3).random((NUM_HEADS, LENGTH, LENGTH)) < 0.6
PACKED = np.random.default_rng(5).integers(0, 3, (8, LENGTH))  # in no order: not in stretches

# Of each mask how it is made for so many sequences, and its rule, of sequence, head, i and j.
MASKS: dict[str, tuple[Callable[[int], Any], Callable[[int, int, int, int], Any]]] = {
    "none": (lambda batch: None, lambda b, n, i, j: True),
    "causal": (lambda batch: causal(), lambda b, n, i, j: j <= i),
    "window": (lambda batch: sliding_window(6), lambda b, n, i, j: i - 6 < j <= i),
    "band": (lambda batch: sliding_window(4, 6), lambda b, n, i, j: i - 4 < j <= i + 6),
    "later": (lambda batch: causal(-3), lambda b, n, i, j: j <= i - 3),
    "padded": (
        lambda batch: causal() & padding(jnp.asarray(LENGTHS[:batch])),
        lambda b, n, i, j: j <= i and j < LENGTHS[b],
    ),
    "both lengths": (
        lambda batch: padding(jnp.asarray(LENGTHS[:batch]), jnp.asarray(LENGTHS[1 : batch + 1])),
        lambda b, n, i, j: j < LENGTHS[b] and i < LENGTHS[b + 1],
    ),
    "array": (
        lambda batch: array_mask(jnp.asarray(SHOWN)[None]) & sliding_window(10, None),
        lambda b, n, i, j: SHOWN[n, i, j] and j > i - 10,
    ),
    "plain array": (lambda batch: jnp.asarray(SHOWN)[None], lambda b, n, i, j: SHOWN[n, i, j]),
    "not": (lambda batch: ~causal(), lambda b, n, i, j: j > i),
    "or": (
        lambda batch: causal(-2) | padding(jnp.asarray(LENGTHS[:batch])),
        lambda b, n, i, j: j <= i - 2 or j < LENGTHS[b],
    ),
    "or, and": (
        lambda batch: (sliding_window(2) | array_mask(jnp.asarray(SHOWN)[None])) & causal(1),
        lambda b, n, i, j: (i - 2 < j <= i or SHOWN[n, i, j]) and j <= i + 1,
    ),
    "segments": (
        lambda batch: causal() & segments(jnp.asarray(PACKED[:batch])),
        lambda b, n, i, j: j <= i and PACKED[b, i] == PACKED[b, j],
    ),
}


class Case(NamedTuple):
    """A mesh by sequences, heads and positions, and what is computed over it."""

    mesh: tuple[int, int, int]
    method: str
    mask: str
    num_kv_heads: int
    dtype: str = "float32"
    implementation: str | None = None
    unroll: int | None = None
    is_explicit: bool = False


CASES = (
    Case((1, 1, 4), "zigzag", "not", 8, is_explicit=True),
    Case((2, 1, 2), "zigzag", "segments", 1, is_explicit=True),
    Case((1, 4, 2), "striped", "or", 2, unroll=1),
    Case((1, 1, 8), "contiguous", "window", 4),
    Case((4, 1, 2), "striped", "both lengths", 8),
    Case((2, 1, 4), "all_to_all", "segments", 2, is_explicit=True),
)
MORE_CASES = (
    Case((1, 1, 4), "zigzag", "causal", 2, unroll=1, is_explicit=True),
    Case((2, 2, 2), "striped", "array", 2, "bfloat16", is_explicit=True),
    Case((1, 2, 4), "all_to_all", "or, and", 4),
    Case((1, 8, 1), "all_to_all", "none", 2, "bfloat16"),
    Case((2, 2, 2), "zigzag", "or, and", 4, implementation="blockwise"),
    Case((1, 1, 4), "zigzag", "padded", 1, "bfloat16", "blockwise"),
    Case((8, 1, 1), "zigzag", "padded", 4),
    Case((1, 1, 8), "striped", "plain array", 8),
    Case((1, 1, 4), "striped", "segments", 4, unroll=1, implementation="blockwise"),
    Case((1, 4, 2), "striped", "later", 1, implementation="blockwise"),
    Case((1, 2, 4), "contiguous", "band", 2, "bfloat16", unroll=1),
    Case((2, 2, 2), "contiguous", "both lengths", 8, "float32", "blockwise"),
    Case((1, 1, 8), "all_to_all", "causal", 1, "bfloat16", "blockwise"),
    Case((2, 2, 2), "all_to_all", "array", 8),
)


def problem(case: Case, batch: int) -> Any:
    """Return operands and cotangents, rounded to the dtype, and what the oracle makes of them."""
    rng = np.random.default_rng(2017)

    def draw(heads: int, width: int) -> np.ndarray:
        rounded = jnp.asarray(rng.standard_normal((batch, heads, LENGTH, width)), case.dtype)
        return np.asarray(rounded).astype(np.float64)

    query, key = draw(NUM_HEADS, WIDTH), draw(case.num_kv_heads, WIDTH)
    value, d_output = draw(case.num_kv_heads, VALUES), draw(NUM_HEADS, VALUES)
    visible = np.zeros((batch, NUM_HEADS, LENGTH, LENGTH), bool)
    for where in np.ndindex(*visible.shape):
        visible[where] = MASKS[case.mask][1](*where)
    output, _, _ = oracles.attention(query, key, value, visible)
    gradients = oracles.attention_gradients(query, key, value, visible, d_output=d_output)
    return (query, key, value, d_output), (output, *gradients[:3])


def mesh_for(shape: tuple[int, ...], names: tuple[str, ...], is_explicit: bool) -> Any:
    kind = AxisType.Explicit if is_explicit else AxisType.Auto
    devices = jax.devices()[: math.prod(shape)]
    return jax.make_mesh(shape, names, axis_types=(kind,) * len(shape), devices=devices)


def run(case: Case) -> None:
    """Compute output and gradients over the mesh and hold them to the oracle."""
    batch = max(case.mesh[0], 2)
    arrays, expected = problem(case, batch)
    mesh, mask = mesh_for(case.mesh, tuple(AXES), case.is_explicit), MASKS[case.mask][0](batch)
    is_ring = case.method != "all_to_all"
    placement = make_placement(case.method if is_ring else "contiguous", LENGTH, case.mesh[2])
    options: dict[str, Any] = {"axes": AXES, "mesh": mesh, "implementation": case.implementation}
    options |= {"placement": placement, "unroll": case.unroll} if is_ring else {}
    attend = ring_attention if is_ring else all_to_all_attention

    def both(query: Any, key: Any, value: Any, d_output: Any) -> Any:
        output, pull = jax.vjp(lambda *x: attend(*x, mask=mask, **options), query, key, value)
        return output, *pull(d_output)

    specs = [operand_specs(4, AXES)] * 4
    if case.mesh[1] > case.num_kv_heads:  # each device gets the whole of the few key heads
        specs[1:3] = [operand_specs(4, AXES._replace(heads=None))] * 2
    placed = [
        jax.device_put(place(jnp.asarray(x, case.dtype), placement), NamedSharding(mesh, spec))
        for x, spec in zip(arrays, specs, strict=True)
    ]
    with jax.set_mesh(mesh):
        got = jax.jit(both)(*placed)
    assert [x.dtype.name for x in got] == [case.dtype] * 4
    wide = (jnp.asarray(np.asarray(x).astype(np.float64)) for x in got)
    found = tuple(np.asarray(restore(x, placement)) for x in wide)
    oracles.close(found, expected, TOLERANCES[case.dtype])
