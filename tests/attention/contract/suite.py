"""One case of the contract: build it, poison what nobody looks at, run it, compare."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import attend, attend_with_lse, attention_spec, select
from mha_book.attention import blocks
from mha_book.attention.blockwise import blockwise_attention
from mha_book.attention.dispatch import IMPLEMENTATIONS
from mha_book.attention.operands import Operands
from tests import oracles
from tests.attention.contract.cases import (
    LAYOUTS,
    MASKS,
    MODES,
    SCALES,
    Case,
    is_refused,
    request,
    sizes,
)

__all__ = ["TOLERANCES", "Outcome", "numerics", "run"]

TOLERANCES = {"float64": 1e-12, "float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}
"""The largest error allowed, as a part of the largest entry expected (of 1 where that is less).

Half-precision inputs are rounded before the oracle sees them, so that what remains is the
rounding of the result, 2^-11 and 2^-8, and in some implementations that of the weights.
"""

WIDE = {dtype: "float64" if dtype == "float64" else "float32" for dtype in TOLERANCES}
"""The dtype of the scores, and so of the scale and the log-sum-exp."""

SCALE = 0.37  # where a scale is given: no default, of no dtype exactly


class Problem(NamedTuple):
    """The operands of a case, heads first, in float64 but rounded to the dtype of the case."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    bias: np.ndarray | None
    scale: float | None
    visible: np.ndarray
    d_output: np.ndarray
    d_lse: np.ndarray | None


class Outcome(NamedTuple):
    """What running a case showed: nothing in ``complaints`` is a pass."""

    worst: float  # the largest error as a part of the tolerance
    complaints: tuple[str, ...]


def by_small_blocks(operands: Operands, platform: str) -> tuple[jax.Array, jax.Array]:
    """Attend by blocks of a few positions: several to each axis, the last of them partly empty."""
    few = {"ROWS": 4, "ROWS_LEVEL": 4, "KEYS": 5, "SCORES": 45, "FEWEST": 2}
    with mock.patch.multiple(blocks, **few):
        return blockwise_attention(operands, platform=platform)


SMALL_BLOCKS = IMPLEMENTATIONS["blockwise"]._replace(run=by_small_blocks)


@contextlib.contextmanager
def numerics(case: Case) -> Iterator[None]:
    """Set JAX up for a case, and back: float64 where it is asked for, nothing promoted unseen.

    Matrix products of float32 are computed in float32 (accelerators would take less by default).
    The gradient of jax.nn in half precision promotes inside JAX, so that it cannot be strict.
    """
    wide = case.dtype in ("float32", "float64")
    with (
        jax.enable_x64(case.dtype == "float64"),
        jax.numpy_dtype_promotion(
            "strict" if wide or case.implementation not in ("jax_nn", "cudnn") else "standard"
        ),
        jax.numpy_rank_promotion("raise"),
        jax.default_matmul_precision("highest" if wide else None),
        mock.patch.dict(IMPLEMENTATIONS, {"blockwise": SMALL_BLOCKS}),
    ):
        yield


def build(case: Case) -> Problem:
    """Return the operands and cotangents of a case."""
    return _build(_problem_of(case))


def _problem_of(case: Case) -> Case:
    """The first of the cases that are one problem: they differ in how it is put."""
    name = "cudnn" if case.implementation == "cudnn" else "reference"  # which has its own widths
    scale = case.scale if case.scale == SCALES[0] else SCALES[1]
    return case._replace(implementation=name, layout=LAYOUTS[0], mode=MODES[0], scale=scale)


@functools.lru_cache(4)  # cases of one problem come one after another
def _build(case: Case) -> Problem:
    s, kind = sizes(case), MASKS[case.mask]
    rng, dtype = np.random.default_rng(2017), jnp.dtype(case.dtype)

    def draw(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype).astype(np.float64)

    query = draw(*s.batch, s.num_heads, s.query_length, s.head_dim)
    key = draw(*s.batch, s.num_kv_heads, s.key_length, s.head_dim)
    value = draw(*s.batch, s.num_kv_heads, s.key_length, s.value_dim)
    d_output = draw(*s.batch, s.num_heads, s.query_length, s.value_dim)
    d_lse = rng.standard_normal(s.scores[:-1]).astype(np.float32) if case.lse else None
    bias = None if kind.bias is None else kind.bias(s).astype(dtype)
    visible = oracles.visible_pairs(kind.rule(s), s.scores)
    if bias is not None:
        bias = bias.astype(np.float64)
        visible &= bias > -np.inf
    scale = None if case.scale == SCALES[0] else float(np.float32(SCALE))
    return Problem(query, key, value, bias, scale, visible, d_output, d_lse)


@functools.lru_cache(4)
def _expected(case: Case) -> tuple[np.ndarray, np.ndarray, oracles.Gradients]:
    """Output, log-sum-exp and gradients of a problem by loops."""
    problem = _build(case)
    structure = (problem.visible, problem.bias, problem.scale)
    output, lse, _ = oracles.attention(*problem[:3], *structure)
    cotangents = {"d_output": problem.d_output, "d_lse": problem.d_lse}
    return output, lse, oracles.attention_gradients(*problem[:3], *structure, **cotangents)


def poison(problem: Problem) -> Problem:
    """Put NaN and infinity wherever the contract says that it must not matter."""
    query, key, value = (np.array(x) for x in problem[:3])
    empty, unseen = unused(problem)
    query[empty] = np.nan
    key[unseen] = np.inf
    value[unseen] = np.nan
    return problem._replace(query=query, key=key, value=value)


def unused(problem: Problem) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows are empty, ``(…, N, T)``, and which keys no query sees, ``(…, K, S)``."""
    *batch, num_heads, query_length, key_length = problem.visible.shape
    num_kv_heads = problem.key.shape[-3]
    shape = (*batch, num_kv_heads, num_heads // num_kv_heads, query_length, key_length)
    return ~problem.visible.any(-1), ~problem.visible.reshape(shape).any((-3, -2))


def run(case: Case) -> Outcome:
    """Run one case: the forward pass and every gradient, or the refusal."""
    with numerics(case):
        return _refuse(case) if is_refused(case) else _serve(case)


def _operands(case: Case, problem: Problem) -> tuple[dict[str, jax.Array], dict[str, Any]]:
    """The arrays to differentiate by, in the layout of the case, and the other arguments."""

    def array(x: np.ndarray) -> jax.Array:
        x = np.swapaxes(x, -3, -2) if case.layout == "TNH" else x
        return jnp.asarray(x, case.dtype)

    operands = {name: array(getattr(problem, name)) for name in ("query", "key", "value")}
    others: dict[str, Any] = {"layout": case.layout}
    others |= {"mask": None, "is_causal": False} | MASKS[case.mask].arguments(sizes(case))
    if problem.bias is not None:
        operands["bias"] = jnp.asarray(problem.bias, case.dtype)
    if case.scale == "scale an array":
        operands["scale"] = jnp.asarray(problem.scale, WIDE[case.dtype])
    elif case.scale == "scale a number":
        others["scale"] = problem.scale
    return operands, others


def _refuse(case: Case) -> Outcome:
    """A named implementation that cannot serve says why, and ``select`` says the same."""
    operands, others = _operands(case, build(case))
    complaints, reason = [], ""
    try:
        run = attend_with_lse if case.lse else attend
        run(**operands, **others, implementation=case.implementation)
    except NotImplementedError as error:
        reason = str(error).partition(f"got {case.implementation!r}: ")[2]
    if not reason:
        complaints.append("attend did not say why it cannot serve")
    asked = attention_spec(**operands, **others, wants=request(case).wants)
    if asked != request(case):
        complaints.append(f"attention_spec gives {asked}, expected {request(case)}")
    selection = select(asked)
    if selection.name == case.implementation:
        complaints.append("select takes what cannot serve")
    # Where the selection goes first by preference, the others are not asked.
    if dict(selection.rejected).get(case.implementation, reason) != reason:
        complaints.append(f"select gives the reasons {selection.rejected}, expected {reason!r}")
    return Outcome(0.0, tuple(complaints))


def _transform(case: Case, others: dict[str, Any]) -> Callable[..., Any]:
    """The forward pass and the pullback of given cotangents, eager or jitted."""

    def both(operands: dict[str, jax.Array], cotangents: Any, mask: Any) -> Any:
        def call(operands: dict[str, jax.Array]) -> Any:
            arguments = {**others, **operands, "mask": mask}
            run = attend_with_lse if case.lse else attend
            return run(**arguments, implementation=case.implementation)

        result, pull = jax.vjp(call, operands)
        return result, pull(cotangents)[0]

    mask = others["mask"]
    if case.mode == "jit":  # the mask's structure stays known
        return jax.jit(lambda operands, cotangents: both(operands, cotangents, mask))
    run = both if case.mode == "eager" else jax.jit(both)
    return lambda operands, cotangents: run(operands, cotangents, mask)


def _heads_first(case: Case, x: Any) -> np.ndarray:
    x = np.asarray(x)  # first: NumPy hands the axes of a JAX array to a program of JAX
    return np.swapaxes(x, -3, -2) if case.layout == "TNH" else x


def _cotangents(case: Case, problem: Problem) -> Any:
    d_output = jnp.asarray(_heads_first(case, problem.d_output), case.dtype)
    return (d_output, jnp.asarray(problem.d_lse, WIDE[case.dtype])) if case.lse else d_output


def _serve(case: Case) -> Outcome:
    problem = build(case)
    operands, others = _operands(case, poison(problem))
    result, gradients = _transform(case, others)(operands, _cotangents(case, problem))
    output, lse = result if case.lse else (result, None)
    heads_first, wide = functools.partial(_heads_first, case), jnp.dtype(WIDE[case.dtype])

    expected, expected_lse, expected_gradients = _expected(_problem_of(case))
    compare = Comparison(TOLERANCES[case.dtype])
    dtype = operands["query"].dtype
    empty, unseen = unused(problem)
    compare("output", heads_first(output), expected, output.dtype, dtype, empty)
    if lse is not None:
        compare("lse", lse, expected_lse, lse.dtype, wide)
    no_pair = ~problem.visible
    # The scale has one gradient: each pair's product times the gradient of its score, summed. The
    # terms cancel, within a row first, so that what one was rounded by is measured by all of them.
    group = problem.query.shape[-3] // problem.key.shape[-3]
    products = problem.query @ np.swapaxes(np.repeat(problem.key, group, axis=-3), -1, -2)
    terms = float(np.linalg.norm(products * expected_gradients.bias))
    if problem.bias is not None:
        summed = [a for a, size in enumerate(problem.bias.shape) if size != no_pair.shape[a]]
        bias = expected_gradients.bias.sum(tuple(summed), keepdims=True)
        expected_gradients = expected_gradients._replace(bias=bias)
        no_pair = no_pair.all(tuple(summed), keepdims=True)
    unused_by = {"query": empty, "key": unseen, "value": unseen, "bias": no_pair}
    for name, gradient in gradients.items():
        wanted = np.asarray(getattr(expected_gradients, name))
        got = heads_first(gradient) if name in ("query", "key", "value") else gradient
        zero = unused_by.get(name)
        compare(
            f"gradient of {name}", got, wanted, gradient.dtype, operands[name].dtype, zero,
            terms if name == "scale" else 0.0,
        )  # fmt: skip
    wants = request(case).wants
    if attention_spec(**{**others, **operands}, wants=wants) != request(case):
        compare.complaints.append("attention_spec does not give the spec expected")
    return Outcome(compare.worst, tuple(compare.complaints))


class Comparison:
    """Collects what differs from the oracle."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.worst, self.complaints = tolerance, 0.0, list[str]()

    def __call__(
        self,
        name: str,
        got: Any,
        expected: np.ndarray,
        dtype: Any,
        wanted: Any,
        zero: np.ndarray | None = None,
        terms: float = 0.0,
    ) -> None:
        """Hold ``got`` to ``expected``, its dtype to ``wanted``, and to exact zeros at ``zero``.

        ``terms`` is the size of what was summed up, where the sum may be much less.
        """
        got = np.asarray(got).astype(np.float64)
        if dtype != wanted:
            self.complaints.append(f"{name}: dtype {dtype}, expected {wanted}")
        if got.shape != expected.shape:
            self.complaints.append(f"{name}: shape {got.shape}, expected {expected.shape}")
            return
        same = (got == expected) | np.isfinite(expected) & np.isfinite(got)
        if not same.all():
            self.complaints.append(f"{name}: {np.count_nonzero(~same)} entries not finite")
            return
        finite = np.isfinite(expected)  # an empty row's log-sum-exp is -inf on both sides
        if zero is not None and got[zero].any():
            self.complaints.append(f"{name}: {np.count_nonzero(got[zero])} should be zero")
        size = max(1.0, terms, np.abs(expected[finite]).max(initial=0.0))
        error = np.abs(got[finite] - expected[finite]).max(initial=0.0) / size
        self.worst = max(self.worst, error / self.tolerance)
        if error > self.tolerance:
            self.complaints.append(f"{name}: error {error:.1e}, tolerance {self.tolerance:.1e}")
