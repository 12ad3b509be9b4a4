"""What a file of compiled programs can be held to, with the compiler and without it."""

from typing import Any

import jax

from accelerators import Program, build, compile_program
from mha_book.attention.dispatch import IMPLEMENTATIONS

AGAIN = (  # compiled again where the compiler is here: of the kernel and of the reference
    Program("attention", "splash", 2048, num_kv_heads=8),
    Program("attention", "reference", 2048, num_kv_heads=8),
)
SAME = ("status", "bytes", "kernels", "operations")
PADDING = 2**12  # of the lengths, of tables of results: what XLA adds to the arrays


def check_shapes(document: dict[str, Any]) -> int:
    """Bytes of arguments and results follow from the shapes; how many programs were looked at."""
    looked_at = 0
    for row in document["programs"]:
        if row["status"] != "compiled":
            continue
        _, shapes = build(Program(**row["program"]), document["settings"]["target"])
        arguments = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(*x) if _is_pair(x) else x, shapes, is_leaf=_is_pair
        )
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


def check_again(document: dict[str, Any]) -> None:
    """Programs of AGAIN are what they were, to the byte."""
    stored = {Program(**row["program"]): row for row in document["programs"]}
    for program in AGAIN:
        found = compile_program(program, document["settings"]["target"])
        is_kernel = bool(found["kernels"])  # its code says where the checkout lies
        for name in (*SAME, *(() if is_kernel else ("hlo_sha256",))):
            assert found[name] == stored[program][name], (program, name)


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


def _is_pair(x: Any) -> bool:
    return isinstance(x, tuple) and isinstance(x[-1], str)


def _size(tree: Any) -> int:
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))
