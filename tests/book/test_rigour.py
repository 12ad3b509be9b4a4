"""What the status page says of the rigour of the equations is counted, and the count is right."""

from pathlib import Path

from tests.book.extensions import ROOT, rigour
from tests.book.test_equations import EXECUTED  # which every module of equations has filled


def test_every_executed_equation_is_counted_once():
    compared = rigour.compared_with(ROOT)
    assert set(compared) == set(EXECUTED)
    assert {*compared.values()} <= {*rigour.SOURCES}
    counts = [count for _, count in rigour.rigour_rows(ROOT)]
    assert sum(count["executed"] for count in counts) == len(EXECUTED)
    assert sum(count[source] for count in counts for source in rigour.SOURCES) == len(EXECUTED)


SOURCE = """
import jax
import numpy as np
from mha_book import attend, init_multi_head, MultiHeadParams
from mha_book.notation import parse

LOSS = lambda x: attend(x)

def helper(rng):
    return LOSS(rng)

@executed("deep")
def deep(rng):
    return {}, {"Y": helper(rng)}

@executed("inputs")
def inputs(rng):
    return {"P": init_multi_head(rng)}, {"Y": parse(MultiHeadParams(np.ones(3)))}

@executed("slope")
def slope(rng):
    return {}, {"Y": jax.grad(np.sum)(jax.numpy.ones(3))}

@executed("arrays", tolerance=1e-9)
def arrays(rng):
    return {}, {"Y": jax.numpy.ones(3)}

def register(label, function):
    @executed(label)
    def feed(rng):
        return {}, {"Y": function(rng)}

register("by-call", attend)
for one in (1, 2):
    register("twice", np.sin)

@tested("no", latex="x")
def no(rng, altered):
    return attend(rng), 1
"""


def test_what_a_function_uses_is_followed(tmp_path: Path):
    folder = tmp_path / "tests" / "book" / "equations"
    folder.mkdir(parents=True)
    (folder / "rain.py").write_text(SOURCE, encoding="utf8")
    shared = 'from tests.book.equations.rain import register\n\nregister("elsewhere", len)\n'
    (folder / "snow.py").write_text(shared, encoding="utf8")
    assert rigour.compared_with(tmp_path) == {
        "deep": "the package",
        "inputs": "NumPy alone",
        "slope": "JAX",
        "arrays": "NumPy alone",
        "by-call": "the package",
        "twice": "NumPy alone",
        "elsewhere": "NumPy alone",
    }
