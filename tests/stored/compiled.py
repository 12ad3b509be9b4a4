"""What a file of compiled programs can be held to, with the compiler and without it."""

from typing import Any

import jax
import jax.numpy as jnp

from accelerators import Program, build, compile_program, plan
from harness.compiled import shapes_of
from mha_book.attention.dispatch import IMPLEMENTATIONS

SAME = ("status", "bytes", "kernels")
PADDING = 2**12  # of the lengths, of tables of results: what XLA adds to the arrays


def check_shapes(document: dict[str, Any]) -> int:
    """Bytes of arguments and results follow from the shapes; how many programs were looked at."""
    target, looked_at = document["settings"]["target"], 0
    for row in document["programs"]:
        if row["status"] != "compiled" or Program(**row["program"]) not in plan(target):
            continue
        _, shapes = build(Program(**row["program"]), target)
        arguments = shapes_of(shapes)
        results = None
        if row["program"]["part"] == "attention":  # of the rest tracing takes long
            x, *others = [x for x in arguments if x.shape != (1,)]
            forward = row["program"]["direction"] == "forward"
            results = [x] if forward else [x, x, *others[:2]]
        for name, arrays in (("arguments", arguments), ("outputs", results)):
            if arrays is not None:
                size = _size(arrays)
                extra = row["bytes"][name] - size
                # A TPU fills up the narrow weights of SmolLM2 to whole tiles.
                most = size / 32 if row["program"]["part"].startswith("SmolLM2") else PADDING
                assert 0 <= extra < most, (row["label"], name, extra)
        looked_at += 1
    return looked_at


def check_again(document: dict[str, Any], place: int) -> None:
    """A program is what it was, to the byte."""
    row = document["programs"][place]
    found = compile_program(Program(**row["program"]), document["settings"]["target"])
    is_kernel = bool(found["kernels"])  # its code says where the checkout lies
    for name in (*SAME, *(() if is_kernel else ("hlo_sha256",))):
        assert found[name] == row[name], (row["label"], name)
    assert found["operations"]["copies"] == row["operations"]["copies"], row["label"]


def check_arrays(documents: list[dict[str, Any]]) -> int:
    """What programs for GPUs hold is whole arrays: of scores, of queries, of keys and values.

    Blockwise attention holds tiles, as large on every GPU and under every mask. A layer holds what
    its attention does, and up to three arrays more. How many programs were looked at.
    """
    held: dict[Any, float] = {}
    rows = [
        (Program(**row["program"]), number, row["bytes"]["temporaries"])
        for number, document in enumerate(documents)
        for row in document["programs"]
        if row["status"] == "compiled" and row["program"]["part"] in ("attention", "layer")
    ]
    for program, number, temporaries in rows:
        queries = 8 * program.length * 128 * jnp.dtype(program.dtype).itemsize
        scores, is_forward = queries * program.length / 128, program.direction == "forward"
        keys, found = queries * program.num_kv_heads / 8, temporaries / queries
        where = (program, number, found)
        if program.part == "layer":
            inside = {"the choice": "cudnn"}.get(program.implementation, program.implementation)
            more = found - held[program._replace(part="attention", implementation=inside), number]
            assert min(abs(more - count) for count in range(4)) < 0.05, where
        elif program.implementation == "cudnn":
            count = 1 if is_forward else 2 if program.mask == "full" else 3
            more = abs(temporaries - 2 * keys - count * queries)
            assert more < 0.02 * queries, where
        elif program.implementation == "jax_nn":
            counts = (3,) if is_forward else (4, 5, 6)
            assert any(0 <= temporaries / scores - count < 0.07 for count in counts), where
        elif program.implementation == "reference":
            assert 2 <= (temporaries - (2 if is_forward else 4) * scores) / queries < 5.1, where
        else:
            same = held.setdefault(program._replace(mask=""), found)
            assert abs(found / same - 1) < 1e-3, where
        held[program, number] = found
    return len(rows)


def check_scores(document: dict[str, Any]) -> int:
    """No kernel holds the scores, and the reference does; how many programs were looked at."""
    looked_at = 0
    for row in document["programs"]:
        program = Program(**row["program"])
        if row["status"] != "compiled" or program.part != "attention":
            continue
        pairs, held = 8 * program.length**2, row["bytes"]["temporaries"]
        holds = (
            IMPLEMENTATIONS[program.implementation].scores_in_memory
            if (program.implementation != "flash")
            else "none of them"
        )
        if holds == "none of them":
            assert held <= 4 * row["bytes"]["arguments"], row["label"]
            assert row["kernels"], row["label"]
            looked_at += 1
        elif holds == "all of them":
            assert held >= 2 * pairs, row["label"]
            assert not any("fmha" in name or "splash" in name for name in row["kernels"])
            looked_at += 1
    return looked_at


def _size(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
