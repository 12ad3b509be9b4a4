"""NumPy arrays as torch has them, where JAX computes too: on the GPU or on the processor."""

import jax
import numpy as np
import provenance
import torch

__all__ = ["tensor"]


def tensor(array: np.ndarray) -> torch.Tensor:
    """The same numbers on JAX's default device; bfloat16 stays bfloat16.

    Raises:
        NotImplementedError: JAX has a GPU and torch has not.
    """
    torch.set_num_threads(provenance.available_cores())
    if array.dtype.name == "bfloat16":  # of which torch reads no NumPy form
        found = torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    else:
        found = torch.from_numpy(array)
    platform = jax.default_backend()
    if platform == "cpu":
        return found
    if platform != "gpu" or not torch.cuda.is_available():
        raise NotImplementedError(f"this build of torch does not reach the {platform}")
    return found.cuda()
