"""Strings that nobody meant, for the notation: what it reads it computes, the rest it refuses.

:func:`outcome` is the contract: an answer, or a ``ValueError`` with carets under the place. Run
as a program it tries as many strings as fit into a time, and says how many; one that does not come
back stops it, with where it hangs::

    python -m tests.notation.fuzz --seconds 600 --seed 1
    python -m tests.notation.fuzz --seconds 0 --inputs 1000000 --processes 2 \\
        --output tests/data/fuzz_notation.json
"""

import faulthandler
import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np

from mha_book.notation.equation import Equation, parse_equations, run_loops
from mha_book.notation.expression import all_indices, key
from mha_book.notation.page import page_equations
from tests.fuzzing import Found, main

__all__ = ["CORPUS", "computed", "outcome", "strings"]

BOOK = Path(__file__).parents[2] / "book"

PIECES = (  # noqa: SIM905
    r"\frac \tfrac \dfrac \sqrt \sum \exp \log \ln \tanh \cdot \times \partial \delta \alpha \ell "
    r"\Sigma \tilde \hat \text{word} \mathrm{d} \operatorname{f} \begin{aligned} \end{aligned} "
    r"\begin{cases} \left( \right) \\ \\[2pt] \qquad \, \top \in \max \infty \{ \} \| "
    r"{ } ( ) [ ] ^ _ = + - * / , . ; : ' ~ & | < > ! 0 1 2 9 0.5 30 x y A W i j k h a b T "
    r"^{ij} ^{i} ^{j'} _{Q} _j ^2 ^{-1/2} ^{(i+1)} ^{(s~i+r)} _{j=1}^{T} x^i A^{ij} \exp( "
    r"\frac{1}{2} \sum_j \sum_{j'} \delta^{ij} \frac{\partial~L}{\partial~x^{i}}"
).split()

STRANGE = "\x00\n\r\t\u2028\u200b\ud7ff\ufeff²½٣ⅷ𝐱Åß漢🙂\\{}^_%$#"

CORPUS = [
    latex
    for page in sorted([*BOOK.glob("*.ipynb"), *BOOK.glob("*.md")])
    for latex in page_equations(page).values()
]
"""The equations of the book, those included that the notation does not read."""


def outcome(source: str) -> list[Equation]:
    """Return the equations of a string, each written in all its forms; none if it is refused."""
    try:
        equations = parse_equations(source)
    except ValueError as error:
        check_located(error)
        return []
    for equation in equations:
        for form in (repr, Equation.loops, lambda e: e.einsums, Equation._repr_markdown_):
            assert isinstance(form(equation), (str, tuple))
        compile(equation.loops(), "<loops>", "exec")
    return list(equations)


def check_located(error: ValueError) -> None:
    """The last two lines of the message are the source, and carets below it."""
    lines = str(error).split("\n")
    assert len(lines) >= 3, str(error)
    *message, shown, carets = lines
    assert message[0].strip(), str(error)
    assert set(carets[2:]) <= {" ", "^"}, str(error)
    assert 2 <= carets.index("^") <= len(shown), str(error)
    assert "^ ^" not in carets, str(error)


def computed(equation: Equation, seed: int = 0) -> str:
    """Compute an equation on small arrays, and by loops: both the same, or both refuse."""
    generator = np.random.default_rng(seed)
    sizes = {key(i): 2 for side in equation.sides for i in all_indices(side)}
    names = {**equation.scalars, **equation.operands}
    numbers = {name: 1 for name, leaf in names.items() if not leaf.indices}
    try:
        shapes = equation.shapes(**{**sizes, **numbers})
        given = {
            name: numbers.get(name, generator.uniform(0.5, 1.5, shapes[name]))
            for name in names
            if name in equation.operands or name in equation.scalars
        }
        with jax.enable_x64(True):  # differences of nearly equal numbers are common here
            value = np.asarray(equation(given, dims=sizes))
    except ValueError as error:
        check_located(error)
        return "refused"
    try:
        with np.errstate(all="ignore"):
            wanted = run_loops(equation, given, dims=sizes)
    except ArithmeticError:  # numbers alone: Python raises where an array has an infinity
        assert not np.isfinite(value).all()
        return "infinite"
    except ValueError as error:  # math: outside of where a function is defined
        return f"undefined ({error})"
    assert value.shape == wanted.shape
    if not np.isfinite(wanted).all() or abs(wanted).max(initial=0) > 1e6:
        return "large"
    scale = max(1.0, abs(wanted).max(initial=0))
    np.testing.assert_allclose(value, wanted, rtol=1e-6, atol=1e-6 * scale)
    return "computed"


def soup(draw: random.Random) -> str:
    """Pieces of the notation in any order."""
    return "".join(
        draw.choice(PIECES) + " " * (draw.random() < 0.3) for _ in range(draw.randint(0, 25))
    )


def changed(draw: random.Random) -> str:
    """An equation of the book with pieces left out, put in, exchanged or doubled."""
    text = draw.choice(CORPUS)
    for _ in range(draw.randint(1, 4)):
        at, end = sorted(draw.randint(0, len(text)) for _ in range(2))
        end = min(end, at + draw.choice((0, 1, 1, 2, 5, 20)))
        new = draw.choice(("", draw.choice(PIECES), draw.choice(STRANGE), text[at:end] * 2))
        text = text[:at] + new + text[end:]
    return text


def strange(draw: random.Random) -> str:
    """Any characters."""
    return "".join(
        draw.choice((draw.choice(STRANGE), draw.choice(PIECES), chr(draw.randrange(0xD800))))
        for _ in range(draw.randint(0, 12))
    )


def deep(draw: random.Random) -> str:
    """One thing inside another, many times, or one after another."""
    count = draw.choice((1, 2, 5, 19, 20, 21, 50, 300))
    opening, closing = draw.choice(
        [("(", ")"), ("[", "]"), (r"\sqrt{", "}"), (r"\frac{1}{", "}"), ("(", ")^{9}"), ("{", "}"),
         (r"\sum_j ", ""), (r"\exp(", ")"), ("-", ""), ("(2 ", ")^{99}"), ("x^{", "}"),
         ("x^i + ", ""), ("x^i ", ""), ("9", ""), (r"\begin{aligned}", r"\end{aligned}"),
         ("y = x^i, ", ""), ("x^i / (", ")")]
    )  # fmt: skip
    core = draw.choice(("x^i", "A^{ij} x^j", "2", "", draw.choice(PIECES)))
    return f"{draw.choice(('y^i', 'y', ''))} = {opening * count}{core}{closing * count}"


NAMES, LETTERS = "xyzAWK", "ijkab"


def grown(draw: random.Random) -> str:
    """An equation by the grammar, most of them well formed: these reach the evaluator."""
    free = draw.sample(LETTERS, draw.randint(0, 2))
    left = f"y^{{{''.join(free)}}}" if free else "y"
    return f"{left} = {_terms(draw, free, 3)}"


def _terms(draw: random.Random, free: list[str], depth: int) -> str:
    terms = [_factors(draw, free, depth) for _ in range(draw.choice((1, 1, 2, 3)))]
    return draw.choice((" + ", " - ")).join(terms)


def _factors(draw: random.Random, free: list[str], depth: int) -> str:
    factors = [_factor(draw, free, depth) for _ in range(draw.choice((1, 1, 2, 3)))]
    return " ".join([*factors, *(_tensor(draw, [i]) for i in free if draw.random() < 0.8)])


def _factor(draw: random.Random, free: list[str], depth: int) -> str:
    kind = draw.randrange(9) if depth else 0
    if kind <= 2:
        return _tensor(draw, draw.choices([*LETTERS, *free], k=draw.randint(0, 3)))
    if kind == 3:
        return rf"({_terms(draw, free, depth - 1)})" + draw.choice(("", "^2", "^{-1}", "^{1/2}"))
    if kind == 4:
        above, below = _terms(draw, free, depth - 1), _terms(draw, free, depth - 1)
        return rf"\frac{{{above}}}{{{below}}}"
    if kind == 5:
        return rf"\{draw.choice(('exp', 'tanh', 'sin', 'log'))}({_terms(draw, free, depth - 1)})"
    if kind == 6:
        index = draw.choice(LETTERS)
        return rf"(\sum_{index} {_factors(draw, [*free, index], depth - 1)})"
    if kind == 7:
        one, other = draw.sample(LETTERS, 2)
        at = draw.choice((f"({one}+{other})", f"({one}+1)", f"(2{one}+{other})", f"(s {one}+r)"))
        return f"K^{{{at}}}"
    return draw.choice(("2 \\cdot x", r"\delta^{ij}", r"\tfrac12", r"\sqrt{2}", "3.5", "W_Q^{ia}"))


def _tensor(draw: random.Random, indices: list[str]) -> str:
    name = draw.choice(NAMES)
    return f"{name}_{{{len(indices)}}}^{{{''.join(indices)}}}" if indices else f"{name}_0"


KINDS: dict[str, Callable[[random.Random], str]] = {
    "soup": soup, "changed": changed, "strange": strange, "deep": deep, "grown": grown,
}  # fmt: skip


def strings(draw: random.Random) -> Iterator[tuple[str, str]]:
    """Yield strings of every kind in turn, with the name of the kind."""
    while True:
        for name, kind in KINDS.items():
            yield name, kind(draw)


def run(seconds: float, seed: int, most: int = 10**9, evaluated: float = 0.002) -> Found:
    """Try strings until the time is over; raise at the first that breaks the contract.

    Args:
        seconds: how long.
        seed: of the strings.
        most: how many strings at most.
        evaluated: which share of the equations is computed as well, which takes longest.

    Returns:
        How many strings of each kind and ``strings`` in all, how many equations were read, and what
        computing gave; and the slowest string.
    """
    draw = random.Random(seed)
    counts = Counter[str]()
    slowest, ends = (0.0, ""), time.monotonic() + seconds
    for number, (kind, source) in enumerate(strings(draw)):
        if number >= most or time.monotonic() > ends:
            break
        if number % 50 == 0:  # a watch costs a thread
            faulthandler.dump_traceback_later(60, exit=True)
        start = time.process_time()
        try:
            found = outcome(source)
            taken = time.process_time() - start
            assert taken < 1.0, f"{taken:.2f} s"
            if found and draw.random() < evaluated * (20 if kind == "grown" else 1):
                counts[computed(found[0])] += 1
        except Exception:
            print(f"string {number} of seed {seed}: {source!r}", file=sys.stderr)
            raise
        slowest = max(slowest, (taken, source))
        counts["strings"] += 1
        counts[kind] += 1
        counts["equations"] += len(found)
    faulthandler.cancel_dump_traceback_later()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Found(counts, round(slowest[0] * 1000), slowest[1], peak)


if __name__ == "__main__":
    main(run, __doc__)
