"""Compiled for TPUs and GPUs that are not here: kernels, bytes and copies, never a time.

PYTHONPATH=src python3 benchmarks/accelerators.py --targets v6e --minutes 10
"""

import functools
import importlib.metadata
import itertools
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from harness import compiled, provenance
from harness.fields import fields
from harness.options import Parser, wanted
from harness.published import COMPILED
from harness.report import RESULTS, write_result
from mha_book import init_multi_head
from mha_book.attention.dispatch import IMPLEMENTATIONS, AttentionSpec, select
from mha_book.attention.flash import flash_attention
from mha_book.attention.operands import prepare
from mha_book.masks import causal
from mha_book.models import smollm2
from mha_book.storage import read_result

NOTICE = "compiled, not run: nothing here says how long a program would take"
NUM_HEADS, HEAD_DIM = 8, 128
WINDOW = 1024
LENGTHS = (2048, 8192, 32768)
PASSES = ("forward", "with gradients")
CHOSEN = "the choice"  # of `attend`, for the platform that `compile_for` names
KERNEL = "flash"  # the kernel to learn from
MODEL = "SmolLM2"
OF_TPU = ("splash", "blockwise", "jax_nn", "reference", KERNEL)
OF_GPU = ("cudnn", "blockwise", "jax_nn", "reference")
LEFT_OUT = {
    "manual, recompute": "the reference with a backward pass by hand",
    "decode": "for few queries",
}


class Program(fields(
    "part implementation length", dtype="bfloat16", mask="causal", direction="forward",
    num_kv_heads=NUM_HEADS,
)):  # fmt: skip
    """What is compiled: of the model its sizes are its own, and forward alone.

    Stored programs of other dtypes, masks and numbers of key heads are not compiled any more.
    """

    @property
    def label(self) -> str:
        """All of it in a line."""
        of = "" if self.part == MODEL else f" N={NUM_HEADS} K={self.num_kv_heads}"
        what = f"{self.part} {self.implementation} T={self.length} {self.mask} {self.direction}"
        return f"{what} {self.dtype}{of}"


def plan(target: str, lengths: Sequence[int] = LENGTHS) -> list[Program]:
    """All programs of a target: causal attention in bfloat16, then SmolLM2."""
    names = OF_GPU if target in compiled.GPUS else OF_TPU
    found = [
        Program("attention", name, length, direction=direction)
        for length, direction, name in itertools.product(lengths, PASSES, names)
        if not (name == KERNEL and direction != "forward")
    ]
    models = [Program(MODEL, CHOSEN, n) for n in lengths if n <= smollm2.CONFIG.max_length]
    return found + models


def build(program: Program, target: str) -> tuple[Callable[..., Any], list[Any]]:
    """The function of a program and the shapes of its arguments."""
    return _attention(program, target) if program.part == "attention" else _model(program)


def _attention(program: Program, target: str) -> tuple[Callable[..., Any], list[Any]]:
    """Attention; an implementation is called as `attend` calls it on the target's platform."""
    length, dtype = program.length, program.dtype
    shapes: list[Any] = 3 * [((1, NUM_HEADS, length, HEAD_DIM), dtype)]
    if program.implementation == KERNEL:
        kernel = functools.partial(flash_attention, is_causal=True)
        return kernel, [(shape[1:], dtype) for shape, dtype in shapes]  # it knows no batch
    implementation = IMPLEMENTATIONS[program.implementation]
    spec = _spec(program, target)
    reason = implementation.why_unsupported and implementation.why_unsupported(spec)
    if reason:
        raise NotImplementedError(reason)
    platform = {"platform": spec.platform} if implementation.by_platform else {}

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        output: jax.Array = implementation.run(prepare(q, k, v, mask=causal()), **platform)[0]
        return output

    def with_gradients(q, k, v, d_output) -> Any:
        output, pull = jax.vjp(attention, q, k, v)
        return output, pull(d_output)

    if program.direction == "forward":
        return attention, shapes
    return with_gradients, [*shapes, shapes[0]]


def _spec(program: Program, target: str) -> AttentionSpec:
    """What `attend` asks for on the target."""
    shape = (1, NUM_HEADS, program.length, HEAD_DIM)
    generation = compiled.GPUS.get(target, {}).get("compute_capability")
    generation = generation and tuple(generation)
    return AttentionSpec(
        shape, shape, shape, program.dtype, causal().kinds,
        platform="tpu" if generation is None else "gpu", compute_capability=generation,
    )  # fmt: skip


def _model(program: Program) -> tuple[Callable[..., Any], list[Any]]:
    """SmolLM2: the logits of every position."""
    config, dtype = smollm2.CONFIG, jnp.dtype(program.dtype)
    width, hidden = config.d_model, 1536

    def of(*shape: int) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)

    start = functools.partial(
        init_multi_head,
        jax.random.key(0), width, config.num_heads,
        num_kv_heads=config.num_kv_heads, use_bias=False, dtype=dtype,
    )  # fmt: skip
    layer = smollm2.SmolLM2Layer(
        of(width), jax.eval_shape(start), of(width),
        of(width, hidden), of(width, hidden), of(hidden, width),
    )  # fmt: skip
    layers = (layer,) * config.num_layers
    params = smollm2.SmolLM2Params(of(config.vocab_size, width), layers, of(width))
    return smollm2.forward, [params, ((1, program.length), "int32")]


def compile_program(program: Program, target: str) -> dict[str, Any]:
    """Compile a program, and say what it is, or the first line of the reason that it is none."""
    row: dict[str, Any] = {"program": program._asdict(), "label": program.label}
    if program.part == "attention" and program.implementation != KERNEL:
        row["chosen"] = select(_spec(program, target)).name == program.implementation
    start = time.perf_counter()
    try:
        function, shapes = build(program, target)
        done = compiled.compile_for(function, *shapes, target=target)
    except NotImplementedError as error:
        return {**row, "status": "refused", "reason": _first_line(error)}
    except Exception as error:
        seconds = round(time.perf_counter() - start, 1)
        return {**row, "status": "failed", "reason": _first_line(error), "seconds": seconds}
    return {
        **row,
        "status": "compiled",
        "seconds": round(time.perf_counter() - start, 1),
        "bytes": compiled.memory(done)._asdict(),
        "kernels": compiled.kernels(done),
        "operations": {"copies": compiled.copies(done)},
        "hlo_sha256": compiled.digest(done),
    }


def _first_line(error: Exception) -> str:
    """The first line of an error, without places in files."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def compilers(target: str) -> dict[str, str]:
    """The versions of what compiles for a target."""
    names = ["libtpu"]
    if target in compiled.GPUS:
        names = ["jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-cuda-nvcc", "nvidia-cudnn-cu13"]
    return {name: importlib.metadata.version(name) for name in names}


def store(target: str, options: Any, deadline: float) -> Path:
    """Compile what is missing in a target's file, or asked for, until the deadline; the file."""
    path: Path = (options.out or RESULTS) / f"compiled-{target}.json"
    settings = {
        "timed": False, "notice": NOTICE, "target": target,
        "description": compiled.description(target), "compilers": compilers(target),
        "heads": NUM_HEADS, "head_dim": HEAD_DIM, "window": WINDOW, "left_out": LEFT_OUT,
    }  # fmt: skip
    rows, runs = {}, []
    if path.exists() and (found := read_result(path))["settings"] == settings:
        rows, runs = {Program(**row["program"]): row for row in found["programs"]}, found["runs"]
    origin = provenance.record(seeds="nothing is drawn: shapes alone")
    start, done = time.perf_counter(), 0
    whole = plan(target, options.lengths)
    todo = [p for p in whole if p not in rows or options.only]
    todo = [p for p in todo if wanted(p.label, options.only)]

    def write() -> None:
        seconds = round(time.perf_counter() - start, 1)
        run = {"date": origin["date"], "commit": origin["git"]["commit"], "seconds": seconds}
        order = dict.fromkeys([*whole, *rows])
        write_result(path, {
            "name": path.stem,
            "provenance": {**origin, "load_average_after": provenance.load_average()},
            "settings": settings, "runs": [*runs, {**run, "programs": done}],
            "left": [program.label for program in whole if program not in rows],
            "programs": [rows[program] for program in order if program in rows],
        })  # fmt: skip

    for program in todo:
        if time.monotonic() > deadline:
            break
        rows[program] = compile_program(program, target)
        done += 1
        write()
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Compile for each target; 1 if nothing here compiles for any of them."""
    parser = Parser("compiled", "Compiles attention for accelerators that are not here.")
    every = list(COMPILED)
    parser.add_argument("--targets", nargs="+", choices=every, default=every)
    parser.sized("--lengths", LENGTHS, (256,), help="positions")
    parser.sized("--minutes", 120, 10, help="when no program is begun any more")
    parser.only("programs whose label")
    options = parser.parse(arguments)
    if options.quick and options.out is None:
        parser.error("--quick is not a result: give --out FOLDER")
    deadline, written = time.monotonic() + 60 * options.minutes, 0
    for target in options.targets:
        if reason := compiled.missing(target):
            print(f"{target}: {reason}")
            continue
        path = store(target, options, deadline)
        if path.exists():
            found = read_result(path)
            done, left = len(found["programs"]), len(found["left"])
            print(f"{found['name']}: {done} programs, {left} left; {NOTICE}", flush=True)
            written += 1
    return int(not written)


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")  # nothing is run: no accelerator is asked for
    os.environ["JAX_SKIP_CUDA_CONSTRAINTS_CHECK"] = "1"
    sys.exit(main())
