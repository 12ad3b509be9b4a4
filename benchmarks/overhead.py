"""What of a call of attention is the formula, what the two products, what the package and Python.

PYTHONPATH=src python3 benchmarks/overhead.py --quick
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from harness import oracle
from harness.comparison import Contender, compare
from harness.fields import fields
from harness.options import Parser
from harness.rates import attention_flops
from harness.report import TIMES, Recorder, benchmark
from mha_book import attend
from peers.attention import torch_tensor

BASELINE = "attend"
ROWS = {
    BASELINE: "attend, jitted",
    "attend, not jitted": "the same call, its choice made anew in Python",
    "formula": "two products and jax.nn.softmax, jitted, without the package",
    "products": "the two products, cut as the package cuts them, and nothing between them",
    "a call": "a jitted program that adds three numbers",
    "torch": "scaled_dot_product_attention",
    "torch, products": "torch's two products, and nothing between them",
}
CHECKED = (BASELINE, "attend, not jitted", "formula", "torch")  # the others compute something else


class Setting(fields("length", heads=8, head_dim=64, dtype="float32")):
    @property
    def label(self) -> str:
        return f"T={self.length} full forward"


def formula(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    scores = jnp.einsum("nth,nsh->nts", q, k) / q.shape[-1] ** 0.5
    return jnp.einsum("nts,nsh->nth", jax.nn.softmax(scores), v)


def products(q: jax.Array, k: jax.Array, v: jax.Array, *, keys: int, heads: int) -> jax.Array:
    """The sum over blocks of keys of (q kᵀ) v, a few heads after the others."""

    def of_heads(one: tuple[jax.Array, ...]) -> jax.Array:
        q, k, v = one  # (heads, T, H), (U, heads, keys, H)

        def step(u: Any, output: jax.Array) -> jax.Array:
            return output + jnp.einsum("nts,nsh->nth", jnp.einsum("nth,nsh->nts", q, k[u]), v[u])

        return jax.lax.fori_loop(0, k.shape[0], step, jnp.zeros_like(q))

    def cut(x: jax.Array) -> jax.Array:
        count, length, width = x.shape
        x = x.reshape(count // heads, heads, length // keys, keys, width)
        return jnp.swapaxes(x, 1, 2)

    chunks = q.reshape(-1, heads, *q.shape[1:])
    return jax.lax.map(of_heads, (chunks, cut(k), cut(v))).reshape(q.shape)


def runs_of(inputs: Sequence[np.ndarray]) -> dict[str, Callable[[], Any]]:
    arrays = [jnp.asarray(x) for x in inputs]
    num_heads, length, _ = arrays[0].shape
    # As `block_sizes` cuts: all heads in one step where the reference is chosen.
    cut = {"keys": min(length, 512), "heads": num_heads if length <= 512 else 1}
    small = jnp.ones(())
    runs = {
        BASELINE: functools.partial(jax.jit(attend), *arrays),
        "attend, not jitted": functools.partial(attend, *arrays),
        "formula": functools.partial(jax.jit(formula), *arrays),
        "products": functools.partial(jax.jit(functools.partial(products, **cut)), *arrays),
        "a call": functools.partial(jax.jit(lambda x, y, z: x + y + z), small, small, small),
    }
    try:
        import torch
    except ModuleNotFoundError:
        return runs
    tensors = [torch_tensor(x) for x in inputs]

    def of_torch() -> Any:
        with torch.inference_mode():
            return torch.nn.functional.scaled_dot_product_attention(*(x[None] for x in tensors))[0]

    def products_of_torch() -> Any:
        q, k, v = tensors
        with torch.inference_mode():
            return (q @ k.transpose(1, 2)) @ v

    return {**runs, "torch": of_torch, "torch, products": products_of_torch}


def measure(setting: Setting, options: Any) -> dict[str, Any]:
    rng = np.random.default_rng(setting.length)
    shape = (setting.heads, setting.length, setting.head_dim)
    inputs = [rng.standard_normal(shape, np.float32) for _ in range(3)]
    wide = [x[None].astype(np.float64) for x in inputs]
    expected = oracle.attention_float64(*wide, is_causal=False)[0][0]
    runs, tolerance = runs_of(inputs), oracle.TOLERANCES[setting.dtype]
    flops = attention_flops(
        setting.length**2, setting.heads, setting.head_dim, setting.head_dim, backward=False
    )

    def error(contender: Contender, output: Any) -> float:
        if contender.name not in CHECKED:
            return 0.0
        return oracle.verify(contender.name, [oracle.as_numpy(output)], [expected], tolerance)

    contenders = [
        Contender(
            name, runs.get(name), name.split(",")[0] if "torch" in name else "mha_book", remark=said
        )
        for name, said in ROWS.items()
    ]
    return compare(
        setting, contenders, error=error,
        numbers=lambda one: {} if one.name == "a call" else {"matmul_flops": flops},
        baseline=BASELINE, options=options, tolerance=tolerance,
    )  # fmt: skip


def _add(parser: Parser) -> None:
    parser.sized("--lengths", (128, 2048), (32,), help="positions")
    parser.clock()


@benchmark("attend's", add=_add)
def main(recorder: Recorder, options: Any) -> Any:
    for length in options.lengths:
        setting = Setting(length, *((2, 16) if options.quick else ()))
        recorder.add(measure(setting, options), TIMES)
