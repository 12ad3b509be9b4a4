r"""Our column of the comparison with tensorgrad: each task, tried by ``mha_book.notation``.

What a task asks is said in ``TASKS``; a function of the same name tries it and returns whether it
did it, by what call, and a detail. The values that it is held to are NumPy's or JAX's own.
``compare_tensorgrad.py`` stores what both packages made of the tasks.
"""

import io
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_book.notation import Equation, run_loops
from mha_book.notation.system import System

__all__ = ["GROUPS", "OURS", "Result", "SIZES", "TASKS", "arrays", "attempt", "close", "forward"]

SIZES = {"h": 2, "i": 3, "j": 5, "a": 7, "b": 11, "c": 13, "d": 17}
INPUTS = {"X": "ib", "U": "jb", "W_Q": "hba", "W_K": "hba", "W_V": "hbc", "W_O": "hcd"}
LAYER = {
    "Q": r"Q^{hia} = X^{ib} W_Q^{hba}",
    "K": r"K^{hja} = U^{jb} W_K^{hba}",
    "V": r"V^{hjc} = U^{jb} W_V^{hbc}",
    "S": r"S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} K^{hja}",
    "A": r"A^{hij} = \frac{\exp(S^{hij})}{\sum_{j'} \exp(S^{hij'})}",
    "O": r"O^{hic} = A^{hij} V^{hjc}",
    "Y": r"Y^{id} = O^{hic} W_O^{hcd}",
}
EINSUMS = {
    "Q": "ib,hba->hia",
    "K": "jb,hba->hja",
    "V": "jb,hbc->hjc",
    "O": "hij,hjc->hic",
    "Y": "hic,hcd->id",
}
DTYPES = ("float16", "bfloat16", "float32", "float64")
GROUPS = {
    "state": "State, with the numbers that NumPy or JAX gives in float64",
    "derive": "Derive",
    "run": "Run",
    "draw": "Draw",
    "show": "Show the code",
    "count": "Count",
    "text": "Read and write",
}
TASKS = {
    "projection": ("state", "the projection $Q^{hia} = X^{ib} W_Q^{hba}$"),
    "scores": ("state", r"the scores $\frac{1}{\sqrt{d_k}} Q^{hia} K^{hja}$, $h$ repeated, kept"),
    "softmax": ("state", "the softmax as an exponential over a sum"),
    "heads": ("state", "the output of each head $A^{hij} V^{hjc}$"),
    "output": ("state", "the output projection, summed over $h$ and $c$"),
    "bias": ("state", "a bias that lacks the index $i$"),
    "delta": ("state", r"a diagonal matrix by a Kronecker delta, $x^i \delta^{ij}$"),
    "positions": ("state", "computed positions, $X^{i(hH+a)}$"),
    "layer": ("state", "the layer as a whole, from its seven equations"),
    "functions": ("state", "a maximum, a look-up by integers, a determinant"),
    "symmetry": ("state", "a matrix that is known to be symmetric"),
    "gradients": ("derive", "the gradient of each equation by each of its tensors"),
    "jacobian": ("derive", "a Jacobian, with Kronecker deltas"),
    "backward": ("derive", "the backward pass of the layer, softmax included"),
    "second": ("derive", "second derivatives as expressions, of the cross-entropy"),
    "expectation": ("derive", r"the expectation $\operatorname{E}[(q^a k^a)^2]$, Gaussian"),
    "taylor": ("derive", "a Taylor expansion"),
    "same": ("derive", "whether two expressions differ in the names of summed indices alone"),
    "dtypes": ("run", "in float16, bfloat16, float32 and float64, each kept"),
    "eager": ("run", "a quotient in float64 without compiling it"),
    "compiled": ("run", "the output and all gradients as one compiled program"),
    "jit": ("run", "inside `jax.jit`"),
    "vmap": ("run", "mapped over a further axis by the framework's vmap"),
    "autodiff": ("run", "differentiated by the framework's automatic differentiation"),
    "sizes": ("run", "refusing arrays in which an index has two sizes, and naming it"),
    "diagram": ("draw", "the tensor diagram of one equation"),
    "layer-diagram": ("draw", "the tensor diagram of the layer"),
    "image": ("draw", "a diagram as an image without a TeX installation"),
    "steps": ("draw", "the steps of a derivation, one diagram each"),
    "einsum": ("show", "the einsum of an equation"),
    "loops": ("show", "plain loops that run"),
    "program": ("show", "the source of the compiled program"),
    "flops": ("count", "floating-point operations of each equation"),
    "shapes": ("count", "shapes"),
    "parameters": ("count", "parameters of the layer"),
    "read": ("text", "read an equation from LaTeX"),
    "write": ("text", "write each equation of the layer as LaTeX that says all of it"),
    "write-gradients": ("text", "write each gradient as LaTeX that says all of it"),
    "notebook": ("text", "appear typeset in a notebook"),
}


class Result(NamedTuple):
    """Whether a package did a task, by what call, and what else there is to know."""

    does: bool
    how: str
    detail: str = ""


def attempt(function: Callable[[], Result]) -> Result:
    """Call a task's function in float64; an error that it does not expect is a failure."""
    try:
        with jax.enable_x64(True):
            does, how, detail = function()
            return Result(bool(does), how, detail)
    except Exception as error:
        return Result(False, "", refusal(error))


def refusal(error: Exception) -> str:
    """The type of an error, and the first line of what it says."""
    first = str(error).splitlines()[0] if str(error) else ""
    return f"{type(error).__name__}: {first[:160]}"


def refused(how: str, call: Callable[[], Any]) -> Result:
    """The result of a task that a package is expected to refuse."""
    try:
        call()
    except Exception as error:
        return Result(False, how, refusal(error))
    return Result(True, how, "expected a refusal, got none")


def absent(word: str) -> Result:
    """The result of a task for which the package has nothing: no name with this word in it."""
    found = [name for name in (*dir(Equation), *dir(System)) if word in name]
    return Result(bool(found), ", ".join(found), "nothing in the package")


def close(value: Any, expected: Any, tolerance: float = 1e-12) -> bool:
    """Whether arrays have one shape and agree, relative to the greatest element."""
    value, expected = np.asarray(value), np.asarray(expected)
    if value.shape != expected.shape:
        return False
    return bool(np.abs(value - expected).max() <= tolerance * max(1.0, np.abs(expected).max()))


def arrays() -> dict[str, np.ndarray]:
    """The layer's inputs and all that follows from them; a cotangent Y_bar, a bias b_Q."""
    rng = np.random.default_rng(4)
    axes = {**INPUTS, "Y_bar": "id", "b_Q": "ha"}
    given = {n: rng.normal(size=[SIZES[i] for i in own]) / 2 for n, own in axes.items()}
    return given | {name: np.asarray(value) for name, value in forward(given, np).items()}


def forward(given: dict[str, Any], numpy: Any = jnp) -> dict[str, Any]:
    """The layer, written by hand."""
    q = numpy.einsum("ib,hba->hia", given["X"], given["W_Q"])
    k = numpy.einsum("jb,hba->hja", given["U"], given["W_K"])
    v = numpy.einsum("jb,hbc->hjc", given["U"], given["W_V"])
    s = numpy.einsum("hia,hja->hij", q, k) / SIZES["a"] ** 0.5
    a = numpy.exp(s) / numpy.exp(s).sum(-1, keepdims=True)
    o = numpy.einsum("hij,hjc->hic", a, v)
    y = numpy.einsum("hic,hcd->id", o, given["W_O"])
    return {"Q": q, "K": k, "V": v, "S": s, "A": a, "O": o, "Y": y}


def one_step(name: str, own: dict[str, Any]) -> Any:
    """One equation of the layer, written by hand."""
    if name == "S":
        return jnp.einsum("hia,hja->hij", own["Q"], own["K"]) / SIZES["a"] ** 0.5
    if name == "A":
        return jax.nn.softmax(own["S"])
    equation = Equation(LAYER[name])
    return jnp.einsum(EINSUMS[name], *(own[operand] for operand in equation.operands))


def pulled_back() -> dict[tuple[str, str], np.ndarray]:
    """The gradient of each equation by each of its tensors, by JAX; its output the cotangent."""
    given = arrays()
    found: dict[tuple[str, str], np.ndarray] = {}
    for name, latex in LAYER.items():
        own = {n: jnp.asarray(given[n]) for n in Equation(latex).operands if n != "d_k"}
        _, pull = jax.vjp(lambda own, name=name: one_step(name, own), own)
        (gradients,) = pull(jnp.asarray(given[name]))
        found |= {(name, n): np.asarray(value) for n, value in gradients.items()}
    return found


def layer_gradients() -> dict[str, np.ndarray]:
    """The gradients of the layer by its inputs, by JAX."""
    given = arrays()
    inputs = {name: jnp.asarray(given[name]) for name in INPUTS}
    gradients = jax.grad(lambda own: jnp.sum(forward(own)["Y"] * given["Y_bar"]))(inputs)
    return {name: np.asarray(value) for name, value in gradients.items()}


OURS: dict[str, Callable[[], Result]] = {}


def task(name: str) -> Callable[[Callable[[], Result]], Callable[[], Result]]:
    """Register what tries a task."""

    def register(function: Callable[[], Result]) -> Callable[[], Result]:
        OURS[name] = function
        return function

    return register


def system() -> System:
    return System.parse(r" \\ ".join(LAYER.values()))


def run(equation: Equation, given: dict[str, Any], **more: Any) -> Any:
    known = {**given, "d_k": SIZES["a"], **more}
    return equation({name: known[name] for name in equation.operands})


def _stated(name: str, target: str) -> None:
    @task(name)
    def state() -> Result:
        given = arrays()
        value = run(Equation(LAYER[target]), given)
        return Result(close(value, given[target]), "Equation(latex)(**arrays)")


for _name, _target in {"projection": "Q", "scores": "S", "softmax": "A"}.items():
    _stated(_name, _target)
for _name, _target in {"heads": "O", "output": "Y"}.items():
    _stated(_name, _target)


@task("bias")
def bias() -> Result:
    given = arrays()
    latex = r"Q^{hia} = X^{ib} W_Q^{hba} + b_Q^{ha}"
    value = run(Equation(latex, broadcast=("i",)), given)
    told = refused("", lambda: Equation(latex)).detail.split(":")[0]
    expected = given["Q"] + given["b_Q"][:, None]
    detail = f"has to be declared: {told} without it"
    return Result(close(value, expected), 'Equation(latex, broadcast=("i",))', detail)


@task("delta")
def delta() -> Result:
    x = np.arange(3.0)
    value = Equation(r"M^{ij} = x^i \delta^{ij}")(x=x)
    return Result(close(value, np.diag(x)), r"\delta^{ij}")


@task("positions")
def positions() -> Result:
    x = arrays()["Y_bar"][:, :14]
    value = Equation(r"Z^{hia} = X^{i(hH+a)}")(X=x, H=7, dims={"h": 2, "a": 7})
    return Result(close(value, x.reshape(3, 2, 7).transpose(1, 0, 2)), "X^{i(hH+a)}")


@task("layer")
def layer() -> Result:
    given = arrays()
    value = system()({name: given[name] for name in INPUTS})["Y"]
    return Result(close(value, given["Y"]), "System.parse(latex)(arrays)")


@task("functions")
def functions() -> Result:
    how = r"of functions \exp, \log, \tanh, \sin, \cos, \sqrt and powers"
    return refused(how, lambda: Equation(r"v = \max_i q^i"))


@task("symmetry")
def symmetry() -> Result:
    left, right = Equation(r"y^i = A^{ij} x^j"), Equation(r"y^i = A^{ji} x^j")
    return Result(left == right, "", "nothing is known of a tensor but its indices")


@task("gradients")
def gradients() -> Result:
    given, good = arrays(), 0
    expected = pulled_back()
    for (name, operand), value in expected.items():
        gradient = Equation(LAYER[name]).gradient(operand)
        good += close(run(gradient, given, **{f"dL_d{name}": given[name]}), value)
    detail = f"{good} of {len(expected)} equal to jax.vjp"
    return Result(good == len(expected), "Equation.gradient(name)", detail)


@task("jacobian")
def jacobian() -> Result:
    given = arrays()
    derived = Equation(LAYER["Q"]).jacobian("W_Q")
    own = {name: given[name] for name in derived.operands}
    sizes = {index: SIZES[index[0]] for index in derived.free if index[0] in "hab"}
    expected = jax.jacobian(lambda w: one_step("Q", {"X": given["X"], "W_Q": w}))(given["W_Q"])
    return Result(close(derived(own, dims=sizes), expected), "Equation.jacobian(name)")


@task("backward")
def backward() -> Result:
    given, expected = arrays(), layer_gradients()
    own = {name: given[name] for name in INPUTS}
    found = system().gradients(given["Y_bar"], **own)
    good = sum(close(found[name], value, 1e-10) for name, value in expected.items())
    steps = len(system().backward().equations)
    detail = f"{good} of {len(expected)} equal to jax.grad; {steps} equations"
    return Result(good == len(expected), "System.backward(), System.gradients(...)", detail)


@task("second")
def second() -> Result:
    entropy = Equation(r"f = -p^i \log\left(\frac{\exp x^i}{\sum_{i'} \exp x^{i'}}\right)")
    p, x = jnp.array([0.2, 0.5, 0.3]), jnp.array([0.3, -1.0, 2.0])
    value = jax.hessian(lambda x: entropy(p=p, x=x))(x)
    softmax = jax.nn.softmax(x)
    good = close(value, jnp.sum(p) * (jnp.diag(softmax) - jnp.outer(softmax, softmax)))
    detail = "of a derivative, no derivative" + ("; the numbers by jax.hessian" if good else "")
    return refused("", lambda: entropy.jacobian("x").jacobian("x"))._replace(detail=detail)


@task("expectation")
def expectation() -> Result:
    latex = r"v = \operatorname{E}\left((q^a k^a)^2\right)"
    return refused("", lambda: Equation(latex))


@task("taylor")
def taylor() -> Result:
    return absent("taylor")


@task("same")
def same() -> Result:
    left, right = Equation(r"y^i = A^{ij} x^j"), Equation(r"y^i = A^{ik} x^k")
    return Result(left == right, "Equation == Equation", "compares names, summed ones too")


@task("dtypes")
def dtypes() -> Result:
    s, equation = arrays()["S"], Equation(LAYER["A"])
    kept = [d for d in DTYPES if equation(S=jnp.asarray(s, d)).dtype == d]
    return Result(kept == list(DTYPES), "Equation(latex)(**arrays)", ", ".join(kept))


@task("eager")
def eager() -> Result:
    given = arrays()
    return Result(close(run(Equation(LAYER["A"]), given), given["A"]), "Equation(latex)(**arrays)")


@task("compiled")
def compiled() -> Result:
    given, expected, layer = arrays(), layer_gradients(), system()

    def both(bar: jax.Array, own: dict[str, jax.Array]) -> tuple[jax.Array, dict[str, jax.Array]]:
        value, pull = layer.vjp(own)
        return value, pull(bar)

    value, found = jax.jit(both)(given["Y_bar"], {name: given[name] for name in INPUTS})
    good = all(close(found[name], value, 1e-10) for name, value in expected.items())
    return Result(good and close(value, given["Y"]), "jax.jit of System.vjp", "XLA")


@task("jit")
def jit() -> Result:
    given, layer = arrays(), system()
    value = jax.jit(lambda own: layer(own)["Y"])({name: given[name] for name in INPUTS})
    return Result(close(value, given["Y"]), "jax.jit")


@task("vmap")
def vmap() -> Result:
    given = arrays()
    queries = np.stack([given["Q"], 2 * given["Q"]])
    equation = Equation(LAYER["S"])
    value = jax.vmap(lambda q: equation(Q=q, K=given["K"], d_k=7))(queries)
    return Result(close(value, np.stack([given["S"], 2 * given["S"]])), "jax.vmap")


@task("autodiff")
def autodiff() -> Result:
    given, expected = arrays(), layer_gradients()["W_K"]
    own, layer = {name: given[name] for name in INPUTS}, system()

    def loss(w: jax.Array) -> jax.Array:
        return jnp.sum(layer({**own, "W_K": w})["Y"] * given["Y_bar"])

    return Result(close(jax.grad(loss)(jnp.asarray(own["W_K"])), expected), "jax.grad")


@task("sizes")
def sizes() -> Result:
    given = arrays()
    try:
        Equation(LAYER["S"])(Q=given["Q"], K=given["K"][..., 1:], d_k=7)
    except ValueError as error:
        return Result("index a" in str(error), "a caret below the index", refusal(error))
    return Result(False, "")


def formats(figure: Any) -> str:
    """The formats among PNG, SVG and PDF in which a figure of matplotlib can be stored."""
    found = []
    for name in ("png", "svg", "pdf"):
        with io.BytesIO() as file:
            figure.savefig(file, format=name)
            found += [name.upper()] if file.tell() else []
    return ", ".join(found)


@task("diagram")
def diagram() -> Result:
    found = formats(Equation(LAYER["S"]).diagram())
    return Result(bool(found), "Equation.diagram()", f"a figure of matplotlib: {found}")


@task("layer-diagram")
def layer_diagram() -> Result:
    found = formats(system().diagram())
    return Result(bool(found), "System.diagram()", f"a figure of matplotlib: {found}")


@task("image")
def image() -> Result:
    return Result(bool(formats(Equation(LAYER["S"]).diagram())), "Equation.diagram().savefig(path)")


@task("steps")
def steps() -> Result:
    return absent("step")


@task("einsum")
def einsum() -> Result:
    found = {name: Equation(LAYER[name]).einsum for name in EINSUMS}
    return Result(found == EINSUMS, "Equation.einsum", f"such as {found['Q']}")


@task("loops")
def loops() -> Result:
    given, good = arrays(), 0
    for name, latex in LAYER.items():
        equation = Equation(latex)
        known = {**given, "d_k": SIZES["a"]}
        own = {operand: known[operand] for operand in equation.operands}
        good += close(run_loops(equation, own), given[name])
    detail = f"{good} of {len(LAYER)} equations"
    return Result(good == len(LAYER), "Equation.loops()", detail)


@task("program")
def program() -> Result:
    return absent("program")._replace(detail="none; JAX has its own, jax.make_jaxpr")


@task("flops")
def flops() -> Result:
    found = system().flops(**SIZES)
    expected = 2 * np.prod([SIZES[index] for index in "hiab"])
    return Result(found["Q"] == expected, "Equation.flops(**dims), System.flops(**dims)")


@task("shapes")
def shapes() -> Result:
    found = Equation(LAYER["Q"]).shapes(h=2, i=3, a=7, b=11)
    return Result(found["Q"] == (2, 3, 7), "Equation.shapes(**dims)", "numbers, from sizes")


@task("parameters")
def parameters() -> Result:
    names = [name for name in INPUTS if name.startswith("W")]
    found = system().parameters(names, **SIZES)
    good = all(found[n] == np.prod([SIZES[i] for i in INPUTS[n]]) for n in names)
    return Result(bool(good), "System.parameters(names, **dims)")


@task("read")
def read() -> Result:
    return Result(len([Equation(latex) for latex in LAYER.values()]) == 7, "Equation(latex)")


def read_back(equations: list[Equation]) -> int:
    """How many equations come back from the LaTeX that is written of them."""
    written = [Equation.from_sides(e.sides, broadcast=e.broadcast) for e in equations]
    again = [Equation(e.latex, broadcast=e.broadcast) for e in written]
    return sum(one == other for one, other in zip(equations, again, strict=True))


@task("write")
def write() -> Result:
    equations = [Equation(latex) for latex in LAYER.values()]
    good = read_back(equations)
    detail = f"{good} of {len(equations)} come back when it is read"
    return Result(good == len(equations), "Equation.from_sides(sides).latex", detail)


@task("write-gradients")
def write_gradients() -> Result:
    derived = [
        Equation(latex).gradient(name)
        for latex in LAYER.values()
        for name in Equation(latex).operands
        if name != "d_k"
    ]
    good = read_back(derived)
    detail = f"{good} of {len(derived)} come back when it is read"
    return Result(good == len(derived), "Equation.gradient(name).latex", detail)


@task("notebook")
def notebook() -> Result:
    found = Equation(LAYER["Q"])._repr_markdown_()
    return Result(LAYER["Q"] in found and "ib,hba->hia" in found, "Equation._repr_markdown_()")
