"""Attention of the package and of other libraries: the contenders and how each one is called.

Layout NTH is (B, N, T, H), heads before positions; TNH is (B, T, N, H).  A peer runs on arrays
in its own layout, and once more on heads-first arrays with the conversion inside the timed
function.  Peers are imported when they are called, so that a missing one costs nothing.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness.comparison import Contender
from harness.provenance import available_cores
from mha_book.attention.dispatch import attend

BASELINE = "reference"
HALF = ("bfloat16", "float16")


def _attend(query, key, value, is_causal, *, implementation: str | None, layout: str):
    return attend(
        query, key, value, is_causal=is_causal, implementation=implementation, layout=layout
    )


def jax_nn(query, key, value, is_causal):
    return jax.nn.dot_product_attention(query, key, value, is_causal=is_causal)


def cudnn(query, key, value, is_causal):
    """The same by cuDNN; raises NotImplementedError for what that cannot serve."""
    if jax.default_backend() != "gpu":
        raise NotImplementedError("cuDNN needs an NVIDIA GPU")
    if query.dtype.name not in HALF:
        raise NotImplementedError(f"cuDNN's attention takes half precision, not {query.dtype}")
    options = {"is_causal": is_causal, "implementation": "cudnn"}
    return jax.nn.dot_product_attention(query, key, value, **options)


def torch_tensor(array: np.ndarray) -> Any:
    """The same numbers as torch has them, on JAX's default device; bfloat16 stays bfloat16."""
    import torch

    torch.set_num_threads(available_cores())
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


def _torch(inputs: Sequence[np.ndarray], is_causal: bool, backward: bool) -> Callable[[], Any]:
    import torch

    attention = torch.nn.functional.scaled_dot_product_attention
    *operands, cotangent = (torch_tensor(x).requires_grad_(backward) for x in inputs)
    grouped = {"enable_gqa": True} if inputs[0].shape[1] != inputs[1].shape[1] else {}

    def forward() -> Any:
        with torch.inference_mode():
            return (attention(*operands, is_causal=is_causal, **grouped),)

    def forward_backward() -> Any:
        output = attention(*operands, is_causal=is_causal, **grouped)
        return (output.detach(), *torch.autograd.grad(output, operands, cotangent.detach()))

    return forward_backward if backward else forward


def _from_heads_first(call: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """The same contender for NTH arrays, converting there and back."""

    def converted(query, key, value, is_causal):
        swapped = (jnp.swapaxes(x, 1, 2) for x in (query, key, value))  # (B, T, N, H)
        return jnp.swapaxes(call(*swapped, is_causal), 1, 2)  # (B, N, T, C)

    return converted


def _ours(name: str, implementation: str | None, layout: str) -> Contender:
    """The package's `attend` with a named implementation, or in its own choice."""
    call = functools.partial(_attend, implementation=implementation, layout=layout)
    return Contender(name, call, "mha_book", layout, f"attend, implementation={implementation!r}")


def _peer(name: str, package: str, call: Callable[..., Any], remark: str) -> list[Contender]:
    told = f"{remark}; with the conversion from NTH and back"
    converted = Contender(f"{name}, converted", _from_heads_first(call), package, "NTH", told)
    return [Contender(name, call, package, "TNH", remark), converted]


CONTENDERS: tuple[Contender, ...] = (
    _ours(BASELINE, "reference", "NTH"), _ours("reference, TNH", "reference", "TNH"),
    _ours("blockwise", "blockwise", "NTH"), _ours("blockwise, TNH", "blockwise", "TNH"),
    _ours("manual", "manual", "NTH"), _ours("recompute", "recompute", "NTH"),
    _ours("attend jax_nn", "jax_nn", "NTH"), _ours("attend jax_nn, TNH", "jax_nn", "TNH"),
    *_peer("jax.nn", "jax", jax_nn, "jax.nn.dot_product_attention"),
    Contender("torch", None, "torch", "NTH", "torch's scaled_dot_product_attention", _torch),
)  # fmt: skip
GPU: tuple[Contender, ...] = (
    _ours("attend", None, "NTH"),
    _ours("attend, TNH", None, "TNH"),
    *_peer("jax.nn cudnn", "jax", cudnn, 'jax.nn.dot_product_attention(implementation="cudnn")'),
)
"""The rows that a GPU has besides."""
LONG = (BASELINE, "blockwise", "jax.nn", "torch")
"""The rows of lengths at which a call takes seconds, with those of `GPU`."""


def contenders(*, gpu: bool, long: bool = False) -> list[Contender]:
    extra = list(GPU) if gpu else []
    return [one for one in CONTENDERS if not long or one.name in LONG] + extra
