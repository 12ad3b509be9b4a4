"""Compute book/data/multi-head-layer.json: what torch and transformers make of the layer.

Run from the root of the repository where torch and transformers are installed (`make peers`):

    python -m tests.scripts.regenerate_layer_peers

The facts use nothing of mha_book, so that what is compared with it cannot share its mistakes.
"""

import inspect
from pathlib import Path
from typing import Any

import numpy as np

from tests.scripts import store

DESTINATION = Path(__file__).parents[2] / "book" / "data" / "multi-head-layer.json"
WIDTH, HEADS = 64, 8  # of the module and of the layers whose products are counted
SMALL = {"d_model": 8, "num_heads": 2, "first_axis": 3, "second_axis": 2}


def pattern(*shape: int, start: int = 0) -> np.ndarray:
    """Numbers that anyone can make again: the sines of consecutive whole numbers."""
    size = int(np.prod(shape))
    return np.sin(np.arange(start, start + size)).reshape(shape).astype(np.float32)


def split_module() -> Any:
    """A module that cuts its input along the first axis and attends within every piece."""
    import torch

    class Split(torch.nn.Module):
        def __init__(self, num_heads: int, width_in: int, width_out: int) -> None:
            super().__init__()
            self.inner = torch.nn.MultiheadAttention(width_in, num_heads, width_out)

        def forward(self, x: Any) -> Any:
            pieces = torch.split(x, x.size(0), dim=0)
            return torch.cat([self.inner(piece, piece, piece)[0] for piece in pieces], dim=0)

    return Split


def module_facts() -> dict[str, Any]:
    """What that module does, as shapes, truth values and the name of an argument."""
    import torch

    torch.manual_seed(0)
    module = split_module()(HEADS, WIDTH, WIDTH)
    x = torch.randn(10, 32, WIDTH)
    third = list(inspect.signature(torch.nn.MultiheadAttention).parameters)[2]
    try:
        module(x)
        error = None
    except ValueError as raised:
        error = type(raised).__name__
    module.eval()
    other = split_module()(HEADS, WIDTH, 32).eval()
    with torch.no_grad():
        output = module(x)
        first, second = x.clone(), x.clone()
        first[0] += 1.0
        second[:, 0] += 1.0
        by_first = (module(first) - output).abs().amax(-1) > 1e-6
        by_second = (module(second) - output).abs().amax(-1) > 1e-6
        return {
            "input_shape": list(x.shape),
            "pieces": len(torch.split(x, x.size(0), dim=0)),
            "shape_of_a_piece": list(torch.split(x, x.size(0), dim=0)[0].shape),
            "third_argument": third,
            "dropout_of_the_layer": float(module.inner.dropout),
            "error_in_training": error,
            "output_shape": list(output.shape),
            "output_shape_with_output_size_32": list(other(x).shape),
            "equals_the_layer_inside": bool(torch.equal(output, module.inner(x, x, x)[0])),
            "heads_inside": module.inner.num_heads,
            "width_of_a_head_inside": module.inner.head_dim,
            "changed_by_entry_0_of_axis_0": [bool(by_first[:, 0].all()), bool(by_first.all())],
            "changed_by_entry_0_of_axis_1": [
                bool(by_second[:, 0].all()),
                bool(by_second[:, 1:].any()),
            ],
        }


def small_layer(batch_first: bool) -> list[Any]:
    """The output of ``nn.MultiheadAttention`` with weights and input from :func:`pattern`."""
    import torch

    width = SMALL["d_model"]
    layer = torch.nn.MultiheadAttention(width, SMALL["num_heads"], batch_first=batch_first)
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.from_numpy(pattern(3 * width, width)))
        layer.in_proj_bias.zero_()
        layer.out_proj.weight.copy_(torch.from_numpy(pattern(width, width, start=1000)))
        layer.out_proj.bias.zero_()
        axes = SMALL["first_axis"], SMALL["second_axis"]
        x = torch.from_numpy(pattern(*axes, width, start=2000))
        output = layer(x, x, x, need_weights=True)[0]
    return [[[round(float(y), 6) for y in row] for row in rows] for rows in output]


def products(call: Any) -> list[int]:
    """The widths of what comes out of the products of two matrices in a call."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    widths: list[int] = []

    class Count(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore
            result = func(*args, **(kwargs or {}))
            if func in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
                widths.append(result.shape[-1])
            return result

    with torch.no_grad(), Count():
        call()
    return widths


def peer_products() -> dict[str, list[int]]:
    """The products of an input with weights, layer by layer: the last one is W_O where it is."""
    import torch
    from transformers import BertConfig, GPT2Config, LlamaConfig
    from transformers.models.bert.modeling_bert import BertSelfAttention
    from transformers.models.gpt2.modeling_gpt2 import GPT2Attention
    from transformers.models.llama.modeling_llama import LlamaAttention

    x, y = torch.randn(2, 5, WIDTH), torch.randn(2, 7, WIDTH)
    layer = torch.nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
    unequal = torch.nn.MultiheadAttention(WIDTH, HEADS, kdim=48, vdim=48, batch_first=True)
    z = torch.randn(2, 7, 48)
    eager = {"attn_implementation": "eager"}
    bert = BertSelfAttention(
        BertConfig(hidden_size=WIDTH, num_attention_heads=HEADS, **eager)
    ).eval()
    gpt2 = GPT2Attention(GPT2Config(n_embd=WIDTH, n_head=HEADS, **eager), layer_idx=0).eval()
    llama = LlamaAttention(
        LlamaConfig(hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=2, **eager),
        layer_idx=0,
    ).eval()
    turn = torch.ones(1, 5, WIDTH // HEADS), torch.zeros(1, 5, WIDTH // HEADS)
    return {
        "torch nn.MultiheadAttention, self-attention": products(lambda: layer(x, x, x)),
        "torch nn.MultiheadAttention, cross-attention": products(lambda: layer(x, y, y)),
        "torch nn.MultiheadAttention, other key width": products(lambda: unequal(x, z, z)),
        "transformers BertSelfAttention": products(lambda: bert(x)),
        "transformers GPT2Attention": products(lambda: gpt2(x)),
        "transformers LlamaAttention, 2 key/value heads": products(
            lambda: llama(x, position_embeddings=turn, attention_mask=None)
        ),
    }


def compute() -> dict[str, Any]:
    """All the facts; they do not depend on the machine."""
    return {
        "split_module": module_facts(),
        "small_layer": {
            **SMALL,
            "output_batch_first": small_layer(True),
            "output_batch_second": small_layer(False),
        },
        "products": peer_products(),
    }


if __name__ == "__main__":
    seeds = "torch: 0; the small layer: sines of whole numbers"
    store(DESTINATION, "tests.scripts.regenerate_layer_peers", seeds, compute())
