"""Outputs of JAX or torch: waited for, as NumPy arrays, checked against what they must be."""

import math
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

__all__ = ["WrongOutput", "as_numpy", "finished", "largest_error", "verify"]


class WrongOutput(ValueError):
    """A contender's output differs from the float64 reference: its time means nothing."""


def as_numpy(array: Any) -> np.ndarray:
    """An array of JAX, NumPy or torch, on whatever device, as NumPy has it.

    torch has no NumPy form of bfloat16; its arrays of half precision come in float32.
    """
    if hasattr(array, "detach"):
        array = array.detach().cpu()
        array = array.float() if array.element_size() < 4 else array
    return np.asarray(array)


def finished(output: Any) -> Any:
    """Waits until an output has been computed, by JAX or by torch on a GPU, and returns it."""
    if any(getattr(leaf, "is_cuda", False) for leaf in jax.tree.leaves(output)):
        sys.modules["torch"].cuda.synchronize()
    return jax.block_until_ready(output)


def largest_error(outputs: Sequence[Any], expected: Sequence[np.ndarray]) -> float:
    r"""Largest deviation from the expected arrays, each relative to its largest entry.

    $$ \max_n \; \max |x_n - e_n| \,/\, \max |e_n| $$

    Returns infinity where an output holds NaN or has another shape.
    """
    if len(outputs) != len(expected):
        return math.inf
    errors = [0.0]
    for output, wanted in zip(outputs, expected, strict=True):
        got = as_numpy(output).astype(np.float64)
        if got.shape != wanted.shape or not np.isfinite(got).all():
            return math.inf
        errors.append(float(np.abs(got - wanted).max() / max(np.abs(wanted).max(), 1e-300)))
    return max(errors)


def verify(
    name: str, outputs: Sequence[Any], expected: Sequence[np.ndarray], tolerance: float
) -> float:
    """The largest error of a contender's outputs.

    Raises:
        WrongOutput: when the error exceeds the tolerance.
    """
    error = largest_error(outputs, expected)
    if not error <= tolerance:
        raise WrongOutput(
            f"{name}: expected outputs within {tolerance:g} of float64, got an error of {error:g}"
        )
    return error
