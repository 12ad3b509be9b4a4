"""The chapter on three bugs in a kernel: XLA's compiler for TPUs accepts all of its versions."""

import ast
import functools

import jax.numpy as jnp
import pytest

from benchmarks.harness import compiled
from tests.book import gates

CELLS = {cell.id: cell.source for cell in gates.load(gates.ROOT / "book/kernel-bugs.ipynb").cells}
IMPORTS = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
"""
SOURCE = "\n\n".join((IMPORTS, *(CELLS[name] for name in ("softmax-step", "kernel", "call"))))
(PLANTED,) = (
    ast.literal_eval(node.value)
    for node in ast.parse(CELLS["planted"]).body
    if isinstance(node, ast.Assign) and node.targets[0].id == "PLANTED"
)


def test_each_mistake_is_one_place_in_the_code():
    assert len(PLANTED) == 3
    assert all(SOURCE.count(old) == 1 for old, _ in PLANTED.values())


@pytest.mark.needs_libtpu
@pytest.mark.parametrize("name", ["as written", *PLANTED])
def test_the_compiler_takes_it(name):
    names = {}
    exec(SOURCE.replace(*PLANTED.get(name, ("", ""))), names)
    call = functools.partial(names["attention"], names["kernel"])
    program = compiled.compile_for(call, *[((1024, 128), jnp.float32)] * 3, target="v6e")
    assert sum(compiled.kernels(program).values()) == 1
    assert compiled.memory(program).temporaries == 0
