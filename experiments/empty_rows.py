"""What torch returns for a query that may attend to no key.

The operands are those of the table in the chapter on scaled attention: query 1 sees nothing, and
the last key is hidden from both. Needs torch; stores book/data/empty-rows.json for readers who do
not have it. A test asks torch again.
"""

from typing import Any

import numpy as np

from experiments.shared import Run, experiment

SEEDS = "none: all numbers are written in the file"
QUERY = np.array([[1.0, 0.5], [0.5, 1.0]], np.float32)
KEY = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], np.float32)
VALUE = np.array([[8.0, 0.0], [4.0, 4.0], [100.0, 100.0]], np.float32)
VISIBLE = np.array([[True, True, False], [False] * 3])


def torch_answers() -> dict[str, dict[str, Any]]:
    import torch

    module = torch.nn.MultiheadAttention(2, 1, bias=False, batch_first=True)
    with torch.no_grad():  # identity projections: the module is the plain operation
        module.in_proj_weight.copy_(torch.eye(2).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(2))
    visible, hidden = torch.tensor(VISIBLE)[None], torch.tensor(~VISIBLE)
    attend = torch.nn.functional.scaled_dot_product_attention
    rules = {
        "torch": lambda *x: attend(*x, attn_mask=visible),
        "torch-module": lambda *x: module(*x, attn_mask=hidden, need_weights=False)[0],
        "torch-weights": lambda *x: module(*x, attn_mask=hidden)[0],
    }
    found = {}
    for name, rule in rules.items():
        operands = [torch.tensor(x)[None].requires_grad_() for x in (QUERY, KEY, VALUE)]
        output = rule(*operands)
        output[0, 1].sum().backward()
        gradients = np.concatenate([x.grad.numpy().ravel() for x in operands])
        if not np.isnan(gradients).any():
            assert (gradients == 0).all(), f"{name}: gradients neither zero nor NaN"
        found[name] = {
            "output": [f"{x:.1f}" for x in output[0, 1].tolist()],
            "other_row": [round(x, 3) for x in output[0, 0].tolist()],
            "gradient": "NaN" if np.isnan(gradients).any() else "zero",
        }
    return found


@experiment("empty-rows.json", seeds=SEEDS)
def main(run: Run, sizes: Any) -> dict[str, Any]:
    return {"torch": torch_answers()}
