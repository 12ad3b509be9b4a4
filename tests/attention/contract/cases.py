"""What the contract suite varies, and how the variations are combined."""

import functools
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_book.attention.dispatch import IMPLEMENTATIONS, AttentionSpec
from mha_book.attention.platform import compute_capability
from mha_book.masks import array_mask, causal, padding, segments, sliding_window

__all__ = ["FACTORS", "MASKS", "Case", "MaskKind", "Sizes", "is_refused", "pairwise"]


class Case(NamedTuple):
    """One level of every factor."""

    implementation: str
    mask: str
    heads: str
    dtype: str
    lengths: str
    width: str
    layout: str
    mode: str
    lse: bool
    batch: tuple[int, ...]
    scale: str

    @property
    def name(self) -> str:
        """The levels in one line, for reports."""
        batch = "x".join(map(str, self.batch)) or "none"
        words = [*self[:8], "lse" if self.lse else "output", f"batch {batch}", self.scale]
        return ", ".join(words)


# Distinct primes, so that no two axes are taken for one another. The number of query heads is
# K·G and so a prime only where K or G is 1.
HEADS = {"N = K": (3, 3), "G = 3": (6, 2), "K = 1": (5, 1)}  # (N, K)
LENGTHS = {"T < S": (7, 13), "T = S": (11, 11), "T > S": (13, 7)}  # (T, S)
WIDTHS = {"C = H": (17, 17), "C != H": (17, 19)}  # (H, C)
ANYWHERE = tuple(name for name in IMPLEMENTATIONS if name != "cudnn")  # it needs a GPU
DTYPES = ("float32", "float64", "bfloat16", "float16")
LAYOUTS = ("NTH", "TNH")
MODES = ("jit", "jit, mask as argument", "eager")
BATCHES: tuple[tuple[int, ...], ...] = ((), (2,), (2, 3))
SCALES = ("scale left out", "scale a number", "scale an array")


class Sizes(NamedTuple):
    """The lengths of all axes of a case."""

    batch: tuple[int, ...]
    num_heads: int
    num_kv_heads: int
    query_length: int
    key_length: int
    head_dim: int
    value_dim: int

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape ``(…, N, T, S)``."""
        return (*self.batch, self.num_heads, self.query_length, self.key_length)


def sizes(case: Case) -> Sizes:
    """Return the lengths of all axes of ``case``."""
    head_dim, value_dim = WIDTHS[case.width]
    if case.implementation == "cudnn" and value_dim == head_dim:
        head_dim = value_dim = 16  # it takes multiples of 8 only
    return Sizes(case.batch, *HEADS[case.heads], *LENGTHS[case.lengths], head_dim, value_dim)


Rule = Callable[[tuple[int, ...], int, int, int], bool]


class MaskKind(NamedTuple):
    """One way to hide keys: what is handed to ``attend``, and the same as a rule.

    Args:
        arguments: from the sizes, ``mask`` and ``is_causal`` as ``attend`` takes them.
        rule: from the sizes, whether in batch entry ``b`` head ``n`` query ``i`` may see key ``j``.
        bias: from the sizes, an additive bias, or None.
        kinds: the kind of mask that ``attention_spec`` has to find.
    """

    arguments: Callable[[Sizes], dict[str, Any]]
    rule: Callable[[Sizes], Rule]
    kinds: frozenset[str] = frozenset()
    bias: Callable[[Sizes], np.ndarray] | None = None


def _everything(s: Sizes) -> Rule:
    return lambda b, n, i, j: True


@functools.cache
def _key_lengths(s: Sizes) -> np.ndarray:
    """One length for each batch entry: all keys but one, then none, then some."""
    lengths = [s.key_length - 2, 0, s.key_length, 3, 1, s.key_length - 1]
    return np.resize(lengths, s.batch).astype(np.int32)


@functools.cache
def _query_lengths(s: Sizes) -> np.ndarray:
    lengths = [s.query_length - 3, s.query_length, 2, 0, s.query_length - 1, 5]
    return np.resize(lengths, s.batch).astype(np.int32)


@functools.cache
def _offsets(s: Sizes) -> np.ndarray:
    return np.resize([1, -3, 2, 5, 0, -1], s.batch).astype(np.int32)


def _array(s: Sizes) -> np.ndarray:
    """A random array; one query of one head sees nothing, one key is seen by nobody."""
    array = np.random.default_rng(31).random(s.scores) < 0.6
    array[..., 1, 2, :] = False
    array[..., 4] = False
    return array


def _array_of_heads(s: Sizes) -> np.ndarray:
    """An array that differs by head and key alone; the last head sees nothing."""
    array = np.random.default_rng(37).random((s.num_heads, 1, s.key_length)) < 0.7
    array[-1] = False
    return array.reshape((1,) * len(s.batch) + array.shape)


def _array_of_positions(s: Sizes) -> np.ndarray:
    array = np.random.default_rng(41).random((s.query_length, s.key_length)) < 0.5
    array[3] = False
    return array.reshape((1,) * (len(s.batch) + 1) + array.shape)


def _bias(s: Sizes) -> np.ndarray:
    """A finite bias, the same for all batch entries."""
    bias = np.random.default_rng(43).standard_normal(s.scores[len(s.batch) :])
    return bias.reshape((1,) * len(s.batch) + bias.shape)


def _bias_with_infinity(s: Sizes) -> np.ndarray:
    """A bias of full shape that hides some pairs, one whole row and one whole column."""
    rng = np.random.default_rng(47)
    bias = rng.standard_normal(s.scores)
    bias[rng.random(s.scores) < 0.2] = -np.inf
    bias[..., 0, 5, :] = -np.inf
    bias[..., 2] = -np.inf
    return bias


def _bias_of_keys(s: Sizes) -> np.ndarray:
    """A bias with one number a key, for all queries and heads; the first is hidden."""
    bias = np.random.default_rng(53).standard_normal((1,) * (len(s.batch) + 2) + (s.key_length,))
    bias[..., 0] = -np.inf
    return bias


def _lookup(array: np.ndarray, s: Sizes) -> Rule:
    full = np.broadcast_to(array, s.scores)
    return lambda b, n, i, j: bool(full[(*b, n, i, j)])


def _combined_rule(s: Sizes) -> Rule:
    of_heads, lengths = _lookup(_array_of_heads(s), s), _key_lengths(s)
    return lambda b, n, i, j: i + 2 - 5 <= j <= i + 2 and j < lengths[b] and of_heads(b, n, i, j)


def _combined(s: Sizes) -> dict[str, Any]:
    mask = causal(2) & sliding_window(6, 4, query_offset=2)
    mask &= padding(jnp.asarray(_key_lengths(s)))
    return {"mask": mask & array_mask(jnp.asarray(_array_of_heads(s)))}


def _with_lengths(keys: Any, queries: Any = None) -> dict[str, Any]:
    return {"mask": padding(jnp.asarray(keys), None if queries is None else jnp.asarray(queries))}


def _padding_rule(s: Sizes) -> Rule:
    keys, queries = _key_lengths(s), _query_lengths(s)
    return lambda b, n, i, j: bool(j < keys[b] and i < queries[b])


@functools.cache
def _segments(s: Sizes) -> tuple[np.ndarray, np.ndarray]:
    """Segments of the queries and keys, in no order; one of each is the other's nowhere."""
    draw = np.random.default_rng(59).integers
    shapes = (*s.batch, s.query_length), (*s.batch, s.key_length)
    of_queries, of_keys = (draw(n, n + 3, shape, np.int32) for n, shape in enumerate(shapes))
    return of_queries, of_keys


def _segments_rule(s: Sizes) -> Rule:
    of_queries, of_keys = _segments(s)
    return lambda b, n, i, j: bool(of_queries[(*b, i)] == of_keys[(*b, j)])


MASKS: dict[str, MaskKind] = {
    "none": MaskKind(lambda s: {}, _everything),
    "causal": MaskKind(
        lambda s: {"is_causal": True}, lambda s: lambda b, n, i, j: j <= i, frozenset({"causal"})
    ),
    "causal, offset": MaskKind(
        lambda s: {"mask": causal(3)}, lambda s: lambda b, n, i, j: j <= i + 3, frozenset({"band"})
    ),
    "causal, negative offset": MaskKind(
        lambda s: {"mask": causal(-2)}, lambda s: lambda b, n, i, j: j <= i - 2, frozenset({"band"})
    ),
    "causal, offset by entry": MaskKind(
        lambda s: {"mask": causal(jnp.asarray(_offsets(s)))},
        lambda s: lambda b, n, i, j: bool(j <= i + _offsets(s)[b]),
        frozenset({"offsets"}),
    ),
    "window": MaskKind(
        lambda s: {"mask": sliding_window(3, 1, query_offset=1)},
        lambda s: lambda b, n, i, j: i + 1 - 2 <= j <= i + 1 + 1,
        frozenset({"band"}),
    ),
    "window before": MaskKind(
        lambda s: {"mask": sliding_window(4)},
        lambda s: lambda b, n, i, j: i - 3 <= j <= i,
        frozenset({"window"}),
    ),
    "key lengths": MaskKind(
        lambda s: _with_lengths(_key_lengths(s)),
        lambda s: lambda b, n, i, j: bool(j < _key_lengths(s)[b]),
        frozenset({"lengths"}),
    ),
    "key and query lengths": MaskKind(
        lambda s: _with_lengths(_key_lengths(s), _query_lengths(s)),
        _padding_rule,
        frozenset({"lengths"}),
    ),
    "array": MaskKind(
        lambda s: {"mask": array_mask(jnp.asarray(_array(s)))},
        lambda s: _lookup(_array(s), s),
        frozenset({"array"}),
    ),
    "array, broadcast": MaskKind(  # handed over bare
        lambda s: {"mask": jnp.asarray(_array_of_positions(s))},
        lambda s: _lookup(_array_of_positions(s), s),
        frozenset({"array"}),
    ),
    "combination": MaskKind(_combined, _combined_rule, frozenset({"band", "lengths", "array"})),
    "segments": MaskKind(
        lambda s: {"mask": segments(*(jnp.asarray(x) for x in _segments(s)))},
        _segments_rule,
        frozenset({"segments"}),
    ),
    "segments, causal, lengths": MaskKind(
        lambda s: {
            "mask": segments(*(jnp.asarray(x) for x in _segments(s)))
            & padding(jnp.asarray(_key_lengths(s))),
            "is_causal": True,
        },
        lambda s: (
            lambda b, n, i, j: bool(
                j <= i and j < _key_lengths(s)[b] and _segments_rule(s)(b, n, i, j)
            )
        ),
        frozenset({"segments", "causal", "lengths"}),
    ),
    "bias": MaskKind(lambda s: {}, _everything, bias=_bias),
    "bias with -inf": MaskKind(lambda s: {}, _everything, bias=_bias_with_infinity),
    "bias, causal, lengths": MaskKind(
        lambda s: {**_with_lengths(_key_lengths(s)), "is_causal": True},
        lambda s: lambda b, n, i, j: bool(j <= i and j < _key_lengths(s)[b]),
        frozenset({"causal", "lengths"}),
        bias=_bias_of_keys,
    ),
}

FACTORS: dict[str, tuple[Any, ...]] = {
    "mask": tuple(MASKS),
    "heads": tuple(HEADS),
    "dtype": DTYPES,
    "lengths": tuple(LENGTHS),
    "width": tuple(WIDTHS),
    "layout": LAYOUTS,
    "mode": MODES,
    "lse": (False, True),
    "batch": BATCHES,
    "scale": SCALES,
}
EAGER = {"heads": "G = 3", "lengths": "T > S", "batch": (2,)}
"""What eager pairwise cases do not vary."""


def request(case: Case) -> AttentionSpec:
    """Return what ``attention_spec`` has to make of the case."""
    s, kind = sizes(case), MASKS[case.mask]
    return AttentionSpec(
        (*s.batch, s.num_heads, s.query_length, s.head_dim),
        (*s.batch, s.num_kv_heads, s.key_length, s.head_dim),
        (*s.batch, s.num_kv_heads, s.key_length, s.value_dim),
        case.dtype,
        kind.kinds,
        kind.bias is not None,
        jax.default_backend(),
        frozenset({"lse"}) if case.lse else frozenset(),
        compute_capability(),
    )


BY_CUDNN = ("none", "causal", "window before", "key lengths", "key and query lengths")


def is_refused(case: Case) -> bool:
    """Whether the implementation that the case names may not serve it: written down by hand."""
    if case.implementation == "jax_nn":
        no_half = case.dtype == "float16" and jax.default_backend() != "gpu"
        return case.lse or case.dtype == "float64" or no_half or case.width != "C = H"
    has_bias = MASKS[case.mask].bias is not None
    if case.implementation == "cudnn":
        is_wide = case.dtype in ("float32", "float64") or case.width != "C = H"
        return jax.default_backend() != "gpu" or is_wide or case.lse or case.mask not in BY_CUDNN
    if case.implementation == "splash":
        traced = "array" in case.mask or case.mask in ("causal, offset by entry", "combination")
        return case.lse or case.dtype in ("float64", "float16") or has_bias or traced
    return case.implementation == "blockwise" and has_bias


@functools.cache
def pairwise(implementation: str, cases_of_a_mask: int = 4) -> tuple[Case, ...]:
    """Return a few cases of each mask, in which it meets every level of every other factor.

    The levels of a factor follow one another in a random order, so that over all masks those of two
    factors meet as well. Eager cases have one shape, since run one by one the operations of each
    new shape compile anew.
    """
    draw = random.Random(implementation)
    chosen = []
    for mask in MASKS:
        levels = [list(some) * cases_of_a_mask for some in FACTORS.values()][1:]
        columns = [some[:cases_of_a_mask] for some in levels]
        for column in columns:
            draw.shuffle(column)
        for row in zip(*columns, strict=True):
            case = Case(implementation, mask, *row)
            chosen.append(case._replace(**EAGER) if case.mode == "eager" else case)
    return tuple(chosen)
