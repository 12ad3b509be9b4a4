"""tensorgrad's column of the comparison: each task of ``notation_tasks``, tried by it.

Importable only where tensorgrad is installed; ``compare_tensorgrad.py`` says how to install it.
Numbers are computed by ``compile_to_callable``, its way to float64.
"""

import importlib
import os
import pkgutil
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from fractions import Fraction
from io import StringIO
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorgrad
import torch
from sympy import symbols
from tensorgrad import Delta, Derivative, Expectation, Tensor, Variable, to_book_tikz
from tensorgrad import functions as F
from tensorgrad.compiler import affine_flatten, compile_to_callable
from tensorgrad.extras.diagram_browser import diagram_html
from tensorgrad.extras.evaluate import evaluate
from tensorgrad.extras.to_diagram import simplify_trace, to_diagram_json
from tensorgrad.extras.to_index import to_index
from tensorgrad.extras.to_latex import to_latex
from tensorgrad.extras.to_tikz import to_tikz
from tensorgrad.imgtools import save_as_image

from tests.scripts import notation_tasks as tasks
from tests.scripts.notation_tasks import DTYPES, INPUTS, SIZES, Result, close, refused

__all__ = ["SOURCES", "THEIRS"]

h, i, j, a, b, c, d = symbols("h i j a b c d")
DIMS = {symbol: SIZES[symbol.name] for symbol in (h, i, j, a, b, c, d)}
AXES = {
    **INPUTS,
    "Q": "hia", "K": "hja", "V": "hjc", "S": "hij", "A": "hij", "O": "hic", "Y": "id",
    "Y_bar": "id", "b_Q": "ha",
}  # fmt: skip
VARIABLES = {name: Variable(name, *symbols(" ".join(own))) for name, own in AXES.items()}
COMPILE = "tensorgrad.compiler.compile_to_callable"
THEIRS: dict[str, Callable[[], Result]] = {}
SOURCES: dict[str, tuple[str, ...]] = {}


def task(name: str, *sources: str) -> Callable[[Callable[[], Result]], Callable[[], Result]]:
    """Register what tries a task, and what of tensorgrad it is about."""

    def register(function: Callable[[], Result]) -> Callable[[], Result]:
        THEIRS[name], SOURCES[name] = function, sources
        return function

    return register


def named(value: Any, variable: Variable) -> torch.Tensor:
    return torch.tensor(np.asarray(value)).refine_names(*variable.edges)


def values() -> dict[Variable, torch.Tensor]:
    given = tasks.arrays()
    return {variable: named(given[name], variable) for name, variable in VARIABLES.items()}


def plain(tensor: torch.Tensor, axes: str) -> np.ndarray:
    return tensor.align_to(*axes).rename(None).numpy()


def run(expression: Tensor, axes: str) -> np.ndarray:
    return plain(compile_to_callable(expression)(values(), DIMS), axes)


def scale() -> Tensor:
    """One over the root of the number of values of the index a: an order-0 delta is a size."""
    return Delta(a) ** Fraction(-1, 2)


def softmax(scores: Tensor) -> Tensor:
    return F.exp(scores) / F.sum(F.exp(scores), "j")


def equations() -> dict[str, Tensor]:
    """The right side of each equation of the layer."""
    v = VARIABLES
    return {
        "Q": v["X"] @ v["W_Q"],
        "K": v["U"] @ v["W_K"],
        "V": v["U"] @ v["W_V"],
        "S": F.dot(v["Q"], v["K"], dim="a") * scale(),
        "A": softmax(v["S"]),
        "O": F.dot(v["A"], v["V"], dim="j"),
        "Y": v["O"] @ v["W_O"],
    }


def layer() -> Tensor:
    v = VARIABLES
    scores = F.dot(v["X"] @ v["W_Q"], v["U"] @ v["W_K"], dim="a") * scale()
    return F.dot(softmax(scores), v["U"] @ v["W_V"], dim="j") @ v["W_O"]


def loss() -> Tensor:
    return F.sum(layer() * VARIABLES["Y_bar"])


def names_with(*words: str) -> list[str]:
    """The public functions and classes of the package with one of the words in their names."""
    found = {name for name in dir(Tensor) if any(word in name for word in words)}
    for module in pkgutil.walk_packages(tensorgrad.__path__, "tensorgrad."):
        if module.name.endswith("diagram_manim"):  # needs a package that tensorgrad does not
            continue
        if module.name.startswith("tensorgrad.compiler."):  # inside of the compiler
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            own = getattr(value, "__module__", "") or ""
            if not name.startswith("_") and callable(value) and own.startswith("tensorgrad"):
                found |= {name} if any(word in name.lower() for word in words) else set()
    return sorted(found)


def absent(*words: str, note: str = "") -> Result:
    """The result of a task for which the package has nothing: no name with such a word in it."""
    found = names_with(*words)
    return Result(bool(found), ", ".join(found), note or "nothing in the package")


def stated(name: str, target: str, how: str, *sources: str, detail: str = "") -> None:
    def state() -> Result:
        value = run(equations()[target], AXES[target])
        return Result(close(value, tasks.arrays()[target]), how, detail)

    task(name, *sources, COMPILE)(state)


stated("projection", "Q", "X @ W_Q", "tensorgrad.Variable", "tensorgrad.Product")
stated(
    "scores",
    "S",
    'F.dot(Q, K, dim="a") * Delta(a) ** Fraction(-1, 2)',
    "tensorgrad.functions.dot",
    "tensorgrad.Delta",
    detail="Q @ K sums over h as well",
)
stated(
    "softmax",
    "A",
    'F.exp(S) / F.sum(F.exp(S), "j")',
    "tensorgrad.functions.exp",
    "tensorgrad.functions.softmax",
    detail="F.softmax says the same",
)
stated("heads", "O", 'F.dot(A, V, dim="j")', "tensorgrad.functions.dot")
stated("output", "Y", "O @ W_O", "tensorgrad.Product")


@task("bias", "tensorgrad.Sum", COMPILE)
def bias() -> Result:
    v, given = VARIABLES, tasks.arrays()
    value = run(v["X"] @ v["W_Q"] + v["b_Q"], "hia")
    expected = given["Q"] + given["b_Q"][:, None]
    return Result(close(value, expected), "X @ W_Q + b_Q", "repeated without being asked")


@task("delta", "tensorgrad.functions.diag", "tensorgrad.Delta", COMPILE)
def delta() -> Result:
    x = Variable("x", i)
    value = compile_to_callable(F.diag(x, ["i", "j"]))({x: named(np.arange(3.0), x)}, {i: 3})
    return Result(close(value.rename(None), np.diag(np.arange(3.0))), 'F.diag(x, ["i", "j"])')


@task("positions", "tensorgrad.compiler.affine_flatten", "tensorgrad.compiler.Affine", COMPILE)
def positions() -> Result:
    f, x = symbols("f"), tasks.arrays()["Y_bar"][:, :14]
    variable = Variable("X", i, f)
    split = variable @ affine_flatten(a, f=f, h=h, a=a)
    value = compile_to_callable(split)({variable: named(x, variable)}, {**DIMS, f: 14})
    expected = x.reshape(3, 2, 7).transpose(1, 0, 2)
    how = "X @ affine_flatten(a, f=f, h=h, a=a)"
    return Result(close(plain(value, "hia"), expected), how)


@task("layer", "tensorgrad.functions.dot", "tensorgrad.functions.sdpa", COMPILE)
def whole_layer() -> Result:
    good = close(run(layer(), "id"), tasks.arrays()["Y"])
    return Result(good, "one expression, built in Python")


@task(
    "functions",
    "tensorgrad.functions.max",
    "tensorgrad.functions.one_hot",
    "tensorgrad.functions.det",
    COMPILE,
)
def functions() -> Result:
    v, m = Variable("x", i), Variable("M", i, k=i)
    rows, table = Variable("n", j), Variable("E", b, c)
    x, square = np.array([2.0, 7.0, 5.0]), np.array([[2.0, 1, 0], [0, 3, 1], [1, 0, 5]])
    numbers, entries = np.array([2.0, 0, 5, 2, 1]), np.arange(143.0).reshape(11, 13)
    outputs = (F.max(v), F.one_hot(rows, b) @ table, F.det(m))
    pairs = ((v, x), (m, square), (rows, numbers), (table, entries))
    found = compile_to_callable(*outputs)({one: named(n, one) for one, n in pairs}, DIMS)
    expected = (7.0, entries[numbers.astype(int)], np.linalg.det(square))
    good = [close(one.rename(None), other) for one, other in zip(found, expected, strict=True)]
    return Result(all(good), "F.max, F.one_hot, F.det", "and relu, erf, inverse, sort, argmax")


@task("symmetry", "tensorgrad.Variable", "tensorgrad.tensor.Variable.with_eq_constraint")
def symmetry() -> Result:
    m, x = Variable("A", i, k=i).with_symmetries("i k"), Variable("x", i)
    detail = "equations, such as orthonormal columns, by Variable.with_eq_constraint"
    return Result(m @ x == m @ x.rename(i="k"), "Variable.with_symmetries", detail)


@task("gradients", "tensorgrad.tensor.Tensor.grad", COMPILE)
def gradients() -> Result:
    expected, good = tasks.pulled_back(), 0
    sides = equations()
    for (name, operand), value in expected.items():
        bar = Variable(f"{name}_bar", dict(VARIABLES[name].shape))
        total = F.sum(sides[name] * bar)
        given = {**values(), bar: named(tasks.arrays()[name], bar)}
        found = compile_to_callable(total.grad(VARIABLES[operand]))(given, DIMS)
        good += close(plain(found, AXES[operand]), value)
    detail = f"{good} of {len(expected)} equal to jax.vjp"
    return Result(good == len(expected), "Tensor.grad(variable)", detail)


@task("jacobian", "tensorgrad.tensor.Tensor.grad", COMPILE)
def jacobian() -> Result:
    derived = equations()["Q"].grad(VARIABLES["W_Q"], {"h": "p", "b": "q", "a": "r"})
    found = compile_to_callable(derived)(values(), DIMS)
    given = tasks.arrays()
    expected = jax.jacobian(lambda w: tasks.one_step("Q", {"X": given["X"], "W_Q": w}))
    good = close(plain(found, "hiapqr"), expected(jnp.asarray(given["W_Q"])))
    return Result(good, "Tensor.grad(variable)", to_index(derived.simplify()))


@task("backward", "tensorgrad.grad", "tensorgrad.tensor.Tensor.grad", COMPILE)
def backward() -> Result:
    expected, total = tasks.layer_gradients(), loss()
    derived = tensorgrad.grad(total, {name: VARIABLES[name] for name in expected})
    found = compile_to_callable(*derived.values())(values(), DIMS)
    pairs = zip(found, expected.items(), strict=True)
    good = sum(close(plain(one, AXES[n]), value, 1e-10) for one, (n, value) in pairs)
    detail = f"{good} of {len(expected)} equal to jax.grad; one expression of each"
    return Result(good == len(expected), "tensorgrad.grad(loss, params)", detail)


def cross_entropy() -> tuple[Tensor, Variable, Variable]:
    x, p = Variable("x", i), Variable("p", i)
    return -(p @ F.log(F.exp(x) / F.sum(F.exp(x)))), x, p


@task("second", "tensorgrad.tensor.Tensor.grad", COMPILE)
def second() -> Result:
    entropy, x, p = cross_entropy()
    given = {x: named(np.array([0.3, -1.0, 2.0]), x), p: named(np.array([0.2, 0.5, 0.3]), p)}
    found = compile_to_callable(entropy.grad(x).grad(x))(given, {i: 3})
    target, logits = (jnp.asarray(given[one].rename(None).numpy()) for one in (p, x))
    expected = jax.hessian(lambda z: -jnp.sum(target * jax.nn.log_softmax(z)))(logits)
    return Result(close(found.rename(None), expected), "Tensor.grad(x).grad(x)")


@task("expectation", "tensorgrad.Expectation")
def expectation() -> Result:
    q, k = Variable("q", a), Variable("k", a)
    inner = Expectation((q @ k) * (q @ k), q)
    found = Expectation(inner, k).full_simplify()
    return Result(found == Delta(a), "Expectation(Expectation(...)).full_simplify()", repr(found))


@task("taylor", "tensorgrad.functions.taylor")
def taylor() -> Result:
    x, step = Variable("x", i), Variable("t", i)
    found = F.taylor(F.exp(x), x, step, 2)
    given = {x: named(np.array([0.3, -1.0, 2.0]), x), step: named(np.array([0.1, 0.2, -0.3]), step)}
    value = compile_to_callable(found)(given, {i: 3}).rename(None).numpy()
    start, t = (given[one].rename(None).numpy() for one in (x, step))
    return Result(close(value, np.exp(start) * (1 + t + t**2 / 2)), "F.taylor(f, x, eps, n)")


@task("same", "tensorgrad.tensor.Tensor.is_isomorphic")
def same() -> Result:
    m, x = Variable("A", i, j), Variable("x", j)
    left, right = m @ x, m.rename(j="k") @ x.rename(j="k")
    return Result(left == right, "Tensor == Tensor", "isomorphism of the networks")


@task("dtypes", COMPILE)
def dtypes() -> Result:
    one, program = VARIABLES["S"], compile_to_callable(equations()["A"])
    full = values()[one].rename(None)
    kept = [
        name
        for name in DTYPES
        if program({one: full.to(getattr(torch, name)).refine_names(*one.edges)}, DIMS).dtype
        == getattr(torch, name)
    ]
    return Result(kept == list(DTYPES), "compile_to_callable", ", ".join(kept))


@task("eager", "tensorgrad.extras.evaluate.evaluate")
def eager() -> Result:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        own = {VARIABLES["S"]: values()[VARIABLES["S"]]}
        result = refused("evaluate", lambda: evaluate(equations()["A"], own, dict(DIMS)))
    finally:
        torch.set_default_dtype(before)
    error = result.detail.split(":")[0]  # which of the two dtypes it names varies
    return result._replace(detail=f"{error}: it casts a power below zero to float32")


@task("compiled", COMPILE, "tensorgrad.compile")
def compiled() -> Result:
    expected = tasks.layer_gradients()
    outputs = (layer(), *(loss().grad(VARIABLES[name]) for name in expected))
    value, *found = compile_to_callable(*outputs)(values(), DIMS)
    pairs = zip(found, expected.items(), strict=True)
    good = all(close(plain(one, AXES[n]), other, 1e-10) for one, (n, other) in pairs)
    scores = compile_to_callable(equations()["S"], torch_compile=True)(values(), DIMS)
    again = close(plain(scores, "hij"), tasks.arrays()["S"])
    detail = "PyTorch calls" + (", for torch.compile where asked" if again else "")
    whole = close(plain(value, "id"), tasks.arrays()["Y"])
    return Result(good and whole, "compile_to_callable(output, *gradients)", detail)


@task("jit", COMPILE)
def jit() -> Result:
    program, own = compile_to_callable(equations()["A"]), VARIABLES["S"]
    call = jax.jit(lambda s: program({own: s}, DIMS))
    result = refused("", lambda: call(tasks.arrays()["S"]))
    return result._replace(detail="its programs are PyTorch's")


@task("vmap", COMPILE)
def vmap() -> Result:
    program, given = compile_to_callable(equations()["S"]), values()
    queries, keys = VARIABLES["Q"], VARIABLES["K"]

    def scores(q: torch.Tensor) -> torch.Tensor:
        own = {queries: q, keys: given[keys].rename(None)}  # unnamed: in the variables' order
        return program(own, DIMS).align_to(*"hij").rename(None)

    assert close(scores(given[queries].rename(None)), tasks.arrays()["S"])
    stacked = torch.stack([given[queries].rename(None)] * 2)
    result = refused("torch.func.vmap", lambda: torch.func.vmap(scores)(stacked))
    return result._replace(detail=result.detail.split(";")[0])


@task("autodiff", "tensorgrad.extras.evaluate.evaluate", COMPILE)
def autodiff() -> Result:
    given, sides = values(), equations()["S"]
    queries = given[VARIABLES["Q"]].rename(None).requires_grad_()
    own = {**given, VARIABLES["Q"]: queries.refine_names(*AXES["Q"])}
    compiled = compile_to_callable(sides)(own, DIMS).requires_grad
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        side = F.dot(VARIABLES["Q"], VARIABLES["K"], dim="a")
        traced = evaluate(side, own, dict(DIMS)).requires_grad
    finally:
        torch.set_default_dtype(before)
    detail = "" if compiled else "not of compiled programs, which run without a tape"
    return Result(traced, "evaluate", detail)


@task("sizes", COMPILE, "tensorgrad.Product")
def sizes() -> Result:
    given = values()
    given[VARIABLES["K"]] = given[VARIABLES["K"]][..., 1:]
    own = {VARIABLES[name]: given[VARIABLES[name]] for name in ("Q", "K")}
    result = refused("", lambda: compile_to_callable(equations()["S"])(own, {}))
    said = "when it runs, and by symbols when it is built"
    return Result("for a:" in result.detail, said, result.detail)


def drawings(expression: Tensor) -> str:
    """The formats in which an expression is drawn."""
    drawn = {
        "TikZ": r"\graph" in to_tikz(expression) and "tikzpicture" in to_book_tikz(expression),
        "HTML": "<html" in diagram_html(expression),
        "JSON": '"nodes"' in to_diagram_json(expression),
    }
    return ", ".join(name for name, good in drawn.items() if good)


DRAW = (
    "tensorgrad.extras.to_tikz.to_tikz",
    "tensorgrad.to_book_tikz",
    "tensorgrad.extras.diagram_browser.diagram_html",
)


@task("diagram", *DRAW)
def diagram() -> Result:
    found = drawings(equations()["S"])
    return Result(bool(found), "to_tikz, to_book_tikz, diagram_html", found)


@task("layer-diagram", *DRAW)
def layer_diagram() -> Result:
    found = drawings(layer())
    return Result(bool(found), "to_tikz, to_book_tikz, diagram_html", found)


@task("image", "tensorgrad.imgtools.save_as_image")
def image() -> Result:
    path = os.environ["PATH"]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["PATH"] = folder  # no TeX there
        try:
            target = str(Path(folder) / "scores.png")
            result = refused("save_as_image", lambda: save_as_image(equations()["S"], target))
        finally:
            os.environ["PATH"] = path
    return result._replace(detail=f"{result.detail}; a browser draws the HTML")


@task("steps", "tensorgrad.extras.to_diagram.simplify_trace", "tensorgrad.imgtools.save_steps")
def steps() -> Result:
    entropy, x, _ = cross_entropy()
    trace = simplify_trace(Derivative(entropy, x))
    good = len(trace.frames) > 1 and "<html" in diagram_html(trace)
    return Result(good, "simplify_trace, diagram_html", "an HTML page; by TeX a PNG")


@task("einsum", COMPILE)
def einsum() -> Result:
    found = set(names_with("einsum")) - {"conv_einsum_dispatch"}  # runs a convolution
    detail = "none; the compiled program holds matrix products and einsums"
    return Result(bool(found), ", ".join(sorted(found)), detail)


@task("loops", COMPILE)
def loops() -> Result:
    return absent("loop")


@task("program", COMPILE)
def program() -> Result:
    printed = StringIO()
    with redirect_stdout(printed):
        compile_to_callable(equations()["Q"], verbose=True)(values(), DIMS)
    good = "def _compiled" in printed.getvalue()
    return Result(good, "compile_to_callable(..., verbose=True)", "Python that calls PyTorch")


@task("flops", "tensorgrad.compiler.factor")
def flops() -> Result:
    return absent("flop", note="none; the compiler weighs operations inside")


@task("shapes", "tensorgrad.tensor.Tensor.shape")
def shapes() -> Result:
    found = equations()["Q"].shape
    return Result(found == {"h": h, "i": i, "a": a}, "Tensor.shape", "symbols, by the edges' names")


@task("parameters", "tensorgrad.tensor.Tensor.shape")
def parameters() -> Result:
    return absent("param", "numel", "count")


@task("read", "tensorgrad.Tensor", "tensorgrad.functions.graph")
def read() -> Result:
    result = refused("", lambda: Tensor(tasks.LAYER["Q"]))
    graph = F.graph("M -j- x", M=Variable("M", i, j), x=Variable("x", j))
    assert set(graph.edges) == {"i"}
    return result._replace(detail="no LaTeX; F.graph reads a text like Graphviz's")


def says_all(text: str) -> bool:
    """Whether LaTeX of to_latex is free of the words that it puts in the place of what it omits."""
    return not any(word in text for word in ("Expr", r"\text{Delta}_{}"))


@task("write", "tensorgrad.extras.to_latex.to_latex", "tensorgrad.extras.to_index.to_index")
def write() -> Result:
    written = [to_latex(side.simplify()) for side in equations().values()]
    good = sum(map(says_all, written))
    assert all(to_index(side.simplify()) for side in equations().values())
    detail = f"{good} of {len(written)}: a root of a size and a sum inside a function are left out"
    return Result(good == len(written), "to_latex", f"{detail}; to_index has them, not as LaTeX")


@task("write-gradients", "tensorgrad.extras.to_latex.to_latex")
def write_gradients() -> Result:
    sides, written = equations(), []
    for name, operand in tasks.pulled_back():
        bar = Variable(f"{name}_bar", dict(VARIABLES[name].shape))
        derived = F.sum(sides[name] * bar).grad(VARIABLES[operand])
        written.append(to_latex(derived.full_simplify()))
    good = sum(map(says_all, written))
    return Result(good == len(written), "to_latex", f"{good} of {len(written)}")


@task("notebook", "tensorgrad.Tensor")
def notebook() -> Result:
    found = [name for name in dir(layer()) if name.startswith("_repr_")]
    return Result(bool(found), ", ".join(found), "diagrams are shown by a call")
