"""The whole layer of the package and of other libraries: the same weights, in each one's form."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from harness.fields import fields
from mha_book import MultiHeadParams, fuse, multi_head_attention
from peers import attention
from peers.attention import BASELINE, torch_tensor


class Setting(fields("length is_causal backward", batch=1, d_model=512, heads=8, dtype="float32")):
    @property
    def label(self) -> str:
        mask = "causal" if self.is_causal else "full"
        work = "forward+backward" if self.backward else "forward"
        sizes = f"B={self.batch} D={self.d_model} N={self.heads} {self.dtype}"
        return f"T={self.length} {mask} {work} {sizes}"


class Inputs(NamedTuple):
    """Input and cotangent (B, T, D); matrices (D, D), those of queries, keys, values by head."""

    x: np.ndarray
    cotangent: np.ndarray
    w_q: np.ndarray
    w_k: np.ndarray
    w_v: np.ndarray
    w_o: np.ndarray


class Contender(NamedTuple):
    """One row of the benchmark.

    `build` makes of the setting and the four matrices the weights in its own form and the layer;
    `matrices` makes four matrices of the weights, or of their gradient, again. A peer that is no
    function of JAX arrays has `prepare` instead: from setting and inputs, the function to time.
    """

    name: str
    package: str
    build: Callable[[Setting, Sequence[jax.Array]], tuple[Any, Callable[..., jax.Array]]] | None
    matrices: Callable[[Any], Sequence[Any]]
    remark: str
    prepare: Callable[[Setting, Inputs], Callable[[], Any]] | None = None
    layout: str = "BTD"


Built = tuple[Any, Callable[..., jax.Array]]


def _by_heads(setting: Setting, matrices: Sequence[jax.Array]) -> list[jax.Array]:
    """W_Q, W_K, W_V (D, N, H) and W_O (N, H, D)."""
    width, heads = setting.d_model, setting.heads
    *outer, inner = matrices
    return [*(w.reshape(width, heads, -1) for w in outer), inner.reshape(heads, -1, width)]


def _flat(arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """The inverse of `_by_heads`: four square matrices; what follows them are no biases."""
    return [w.reshape((round(w.size**0.5),) * 2) for w in arrays[:4]]


def _ours(setting, matrices, *, implementation, fused) -> Built:
    params = MultiHeadParams(*_by_heads(setting, matrices))
    options = {"is_causal": setting.is_causal, "implementation": implementation}
    return fuse(params) if fused else params, functools.partial(multi_head_attention, **options)


def _unfused(fused: Any) -> list[jax.Array]:
    return _flat([*jnp.split(fused.w_qkv, 3, axis=1), fused.w_o])


def _by_attention(setting, matrices, *, attend) -> Built:
    """Einsum projections straight into (B, T, N, H) around a peer's attention."""

    def layer(weights, x):
        *outer, inner = weights
        query, key, value = (jnp.einsum("btd,dnh->btnh", x, w) for w in outer)
        heads = attend(query, key, value, setting.is_causal)
        return jnp.einsum("btnh,nhd->btd", heads, inner)

    return _by_heads(setting, matrices), layer


def _torch(setting: Setting, inputs: Inputs, *, whole: bool) -> Callable[[], Any]:
    import torch

    x, cotangent, *matrices = map(torch_tensor, inputs)
    stacked = torch.cat([w.T for w in matrices[:3]]).contiguous()  # (3D, D), as its layer has them
    last = matrices[3].T.contiguous()
    functional, width, heads = torch.nn.functional, setting.d_model, setting.heads
    module = torch.nn.MultiheadAttention(
        width, heads, bias=False, batch_first=True, device=x.device, dtype=x.dtype
    ).eval()
    with torch.no_grad():
        module.in_proj_weight.copy_(stacked)
        module.out_proj.weight.copy_(last)
    hidden = torch.nn.Transformer.generate_square_subsequent_mask(
        setting.length, device=x.device, dtype=x.dtype
    )
    masked = {"attn_mask": hidden, "is_causal": True} if setting.is_causal else {}

    def by_layer() -> Any:
        return module(x, x, x, need_weights=False, **masked)[0]

    def by_hand() -> Any:
        projected = functional.linear(x, module.in_proj_weight)
        shape = (*x.shape[:2], heads, width // heads)
        query, key, value = (part.view(shape).transpose(1, 2) for part in projected.chunk(3, -1))
        attention = functional.scaled_dot_product_attention
        found = attention(query, key, value, is_causal=setting.is_causal)
        joined = found.transpose(1, 2).reshape(x.shape)
        return functional.linear(joined, module.out_proj.weight)

    call = by_layer if whole else by_hand
    wanted = [x.requires_grad_(setting.backward), *module.parameters()]

    def forward() -> Any:
        with torch.inference_mode():
            return (call(),)

    def forward_backward() -> Any:
        output = call()
        d_x, *d_weights = torch.autograd.grad(output, wanted, cotangent)
        return output.detach(), d_x, d_weights

    return forward_backward if setting.backward else forward


def _of_torch(gradients: Sequence[Any]) -> list[Any]:
    stacked, last = gradients
    return [*(part.T for part in stacked.chunk(3)), last.T]


def contenders(*, gpu: bool) -> list[Contender]:

    def ours(name: str, implementation: str | None, fused: bool, remark: str) -> Contender:
        build = functools.partial(_ours, implementation=implementation, fused=fused)
        return Contender(name, "mha_book", build, _unfused if fused else _flat, remark)

    def around(name: str, remark: str) -> Contender:
        peer = next(one for one in attention.contenders(gpu=True) if one.name == name)
        build = functools.partial(_by_attention, attend=peer.call)
        return Contender(name, peer.package, build, _flat, f"einsum projections around {remark}")

    def torch(name: str, whole: bool, remark: str) -> Contender:
        prepare = functools.partial(_torch, whole=whole)
        return Contender(name, "torch", None, _of_torch, remark, prepare)

    return [
        ours(BASELINE, "reference", False, "multi_head_attention by the reference"),
        ours("attend", None, False, "multi_head_attention, attend in its own choice"),
        ours("attend, fused", None, True, "the same, one matrix for queries, keys and values"),
        around("jax.nn", "jax.nn.dot_product_attention"),
        *([around("jax.nn cudnn", "jax.nn's cuDNN")] if gpu else []),
        torch("torch", True, "torch.nn.MultiheadAttention, need_weights=False"),
        torch(
            "torch SDPA", False, "torch's linear, fused, around its scaled_dot_product_attention"
        ),
    ]
