"""In which precision sums run."""

from typing import Any

import jax.numpy as jnp

__all__ = ["wide"]


def wide(dtype: Any) -> Any:
    """Return float32 for a half-precision dtype, and any other floating-point dtype as it is."""
    return dtype if jnp.finfo(dtype).bits >= 32 else jnp.float32
