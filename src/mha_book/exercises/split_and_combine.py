"""Checks of the exercises of the chapter on splitting and combining heads."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Check
from mha_book.heads import combine_heads

__all__ = ["CHECKS"]


def _merge(attempt: Callable[..., Any]) -> str | None:
    heads = jnp.arange(2 * 3 * 5).reshape(2, 3, 5)  # two heads, three positions, width 5
    got, want = np.asarray(attempt(heads)), np.asarray(combine_heads(heads))
    if got.shape != want.shape:
        return f"expected shape {want.shape} for input {heads.shape}; got {got.shape}"
    if not (got == want).all():
        return "the shape is right, the entries are not: does row i hold position i of every head?"
    return None


CHECKS: dict[str, Check] = {"merge": _merge}
