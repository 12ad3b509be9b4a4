"""Checks of the exercises of the chapter on many devices."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from mha_book.exercises import Attempt, exercise, judge
from mha_book.sharding.mesh import MeshSizes
from mha_book.sharding.plan import plan_cost


@exercise("place")
def _place(attempt: Attempt) -> Iterator[str | None]:
    for length, devices in ((16, 2), (24, 3), (64, 8)):
        got = np.asarray(attempt(length, devices))
        where = f"{length} positions, {devices} devices"
        held = length // devices
        if got.shape != (devices, held) or not np.issubdtype(got.dtype, np.integer):
            yield f"{where}: expected {devices} lists of {held} positions each"
        if sorted(got.ravel().tolist()) != list(range(length)):
            yield f"{where}: each position from 0 to {length - 1} has to stand once"
        pairs = (got + 1).sum(axis=1)  # the query at position i sees i + 1 keys
        if pairs.min() < pairs.max():
            one, other = int(pairs.min()), int(pairs.max())
            yield f"{where}: one device has {one} pairs to compute, another {other}"


@exercise("join")
def _join(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(3)
    outputs = rng.normal(size=(4, 5, 3)).astype(np.float32)
    lses = rng.normal(size=(4, 5)).astype(np.float32)
    lses[:, 1] += 200  # their exponentials do not fit into float32
    lses[1:, 2], outputs[1:, 2] = -np.inf, 0  # row 2 saw keys in the first step alone
    wide = lses.astype(np.float64)
    lse = np.log(np.exp(wide - wide.max(axis=0)).sum(axis=0)) + wide.max(axis=0)
    output = (np.exp(wide - lse)[..., None] * outputs).sum(axis=0)
    got: Any = attempt(outputs, lses)
    if not isinstance(got, tuple) or len(got) != 2:
        yield "expected a pair: output (T, C) and log-sum-exp (T,)"
    mine, mine_lse = (np.asarray(x, np.float64) for x in got)
    if mine.shape != output.shape or mine_lse.shape != lse.shape:
        yield f"expected shapes {output.shape} and {lse.shape}; got {mine.shape}, {mine_lse.shape}"
    right = np.isclose(mine, output, atol=1e-4).all(axis=1)
    if np.allclose(mine, outputs.mean(axis=0), atol=1e-4):
        yield "a part weighs as much as the exponentials of its scores, not as every other"
    if not right[1] or not np.isclose(mine_lse[1], lse[1], atol=1e-3):
        yield "row 1 has log-sum-exps near 200: take the largest out before the exponential"
    if not right[2]:
        yield "row 2 saw keys in one step alone: a part of log-sum-exp -inf weighs 0"
    if not right.all():
        yield "the weights are exp(lse of the part - lse of all)"
    if not np.allclose(mine_lse, lse, atol=1e-3):
        yield "the output is right; the log-sum-exp of all is the log of a sum"


@exercise("sent")
def _sent(attempt: Attempt) -> Iterator[str | None]:
    for devices, length, heads, key_heads, width, size in (
        (4, 4096, 32, 8, 128, 2), (8, 1024, 16, 16, 64, 4), (2, 512, 8, 1, 32, 2),
    ):  # fmt: skip
        sizes: dict[str, Any] = {
            "batch": 1, "num_heads": heads, "num_kv_heads": key_heads, "length": length,
            "head_dim": width, "d_model": heads * width, "bytes_per_element": size,
        }  # fmt: skip
        want = tuple(
            plan_cost(**sizes, devices=plan).sent_bytes
            for plan in (MeshSizes(heads=devices), MeshSizes(sequence=devices))
        )
        got: Any = attempt(devices, length, heads, key_heads, width, size)
        where = f"{devices} devices, {length} positions, N = {heads}, K = {key_heads}: "
        if not isinstance(got, tuple) or len(got) != 2 or any(map(np.shape, got)):
            yield f"{where}expected a pair of numbers of bytes"
        once = {"a sum is scattered and then gathered, so each part goes twice": want[0] // 2}
        yield judge(got[0], want[0], once, f"{where}heads divided, ")
        every = {"key heads travel around the ring, query heads stay": want[1] * heads // key_heads}
        yield judge(got[1], want[1], every, f"{where}the ring, ")
