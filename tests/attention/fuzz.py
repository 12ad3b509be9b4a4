"""Masks that nobody wrote: any tree of them, pair by pair against plain rules, and in ``attend``.

:func:`visible_everywhere` and :func:`attended` are the contract for a mask, :func:`refused` for one
with something wrong in it, :func:`selected` for a spec. As a program it tries as many as fit into a
time, and says how many; the first that breaks the contract ends it, with its seed::

    python -m tests.attention.fuzz --seconds 600 --seed 1 --output tests/data/fuzz_masks.json
"""

import random
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mha_book import array_mask, attend, attention_spec, causal, padding, select, sliding_window
from mha_book.attention.dispatch import IMPLEMENTATIONS, AttentionSpec
from mha_book.masks import Mask, as_mask, visibility
from tests import oracles
from tests.attention.contract.cases import Rule
from tests.fuzzing import Found, main

__all__ = [
    "Drawn", "attended", "draw_mask", "refused", "run", "selected", "visible_everywhere",
]  # fmt: skip

SHAPES = [
    (*batch, *rest)
    for batch in ((), (2,), (3, 2))
    for rest in ((1, 4, 5), (4, 3, 7), (6, 1, 5), (4, 5, 2), (2, 3, 1), (2, 0, 3), (2, 3, 0))
]
"""Shapes of scores ``(…, N, T, S)``; few, since each of them compiles its operations."""

BLOCK = 40  # so many of one shape, one after another


class Drawn(NamedTuple):
    """A mask, and the same as words and as a rule in plain Python.

    Args:
        mask: what is tested.
        words: how it was made.
        rule: whether in batch entry ``b`` head ``n`` query ``i`` may see key ``j``.
    """

    mask: Mask
    words: str
    rule: Rule


def draw_mask(draw: random.Random, shape: tuple[int, ...], depth: int = 3) -> Drawn:
    """Draw a tree of masks: leaves of every kind under ``&``, ``|`` and ``~``."""
    kind = draw.choice(["leaf", "leaf", "and", "and", "or", "not"]) if depth else "leaf"
    if kind == "leaf":
        return LEAVES[draw.choice(list(LEAVES))](draw, shape)
    one = draw_mask(draw, shape, depth - 1)
    if kind == "not":
        return Drawn(~one.mask, f"~({one.words})", lambda b, n, i, j: not one.rule(b, n, i, j))
    other = draw_mask(draw, shape, depth - 1)
    if kind == "and":
        return Drawn(
            one.mask & other.mask,
            f"({one.words} & {other.words})",
            lambda b, n, i, j: one.rule(b, n, i, j) and other.rule(b, n, i, j),
        )
    return Drawn(
        one.mask | other.mask,
        f"({one.words} | {other.words})",
        lambda b, n, i, j: one.rule(b, n, i, j) or other.rule(b, n, i, j),
    )


def _offset(draw: random.Random, shape: tuple[int, ...]) -> tuple[Any, np.ndarray]:
    """An offset as Python's integer, NumPy's, or an array of no axes or of the batch axes."""
    batch, most = shape[:-3], shape[-1] + 2
    one = draw.randint(-shape[-2] - 2, most)
    form = draw.randrange(4)
    if form < 3:
        return (one, np.int64(one), jnp.asarray(one))[form], np.full(batch, one)
    each = [draw.randint(-shape[-2] - 2, most) for _ in range(int(np.prod(batch)))]
    array = np.array(each, np.int32).reshape(batch)
    return jnp.asarray(array), array


def _everything(draw: random.Random, shape: tuple[int, ...]) -> Drawn:
    return Drawn(Mask(), "Mask()", lambda b, n, i, j: True)


def _causal(draw: random.Random, shape: tuple[int, ...]) -> Drawn:
    offset, each = _offset(draw, shape)
    return Drawn(
        causal(offset), f"causal({each.tolist()})", lambda b, n, i, j: bool(j <= i + each[b])
    )


def _window(draw: random.Random, shape: tuple[int, ...]) -> Drawn:
    width, right = draw.choice((None, 1, 2, np.int32(4))), draw.choice((None, 0, 1, np.int32(3)))
    offset, each = _offset(draw, shape)

    def rule(b: tuple[int, ...], n: int, i: int, j: int) -> bool:
        position = i + each[b]
        inside = width is None or j > position - width
        return bool(inside and (right is None or j <= position + right))

    words = f"sliding_window({width}, {right}, {each.tolist()})"
    return Drawn(sliding_window(width, right, offset), words, rule)


def _lengths(draw: random.Random, shape: tuple[int, ...]) -> Drawn:
    batch, dtype = shape[:-3], draw.choice(("int8", "int32", "uint8", "uint32"))

    def lengths(most: int) -> np.ndarray:
        each = [draw.randint(0, most) for _ in range(int(np.prod(batch)))]
        return np.array(each, dtype).reshape(batch)

    keys, queries = lengths(shape[-1]), lengths(shape[-2])
    if draw.random() < 0.5:
        words, mask = f"padding({keys.tolist()})", padding(jnp.asarray(keys))
        return Drawn(mask, words, lambda b, n, i, j: bool(j < keys[b]))
    mask = padding(jnp.asarray(keys), jnp.asarray(queries))
    words = f"padding({keys.tolist()}, {queries.tolist()})"
    return Drawn(mask, words, lambda b, n, i, j: bool(j < keys[b] and i < queries[b]))


def _array(draw: random.Random, shape: tuple[int, ...]) -> Drawn:
    axes = tuple(draw.choice((1, size)) for size in shape)
    given = np.random.default_rng(draw.randrange(2**32)).random(axes) < draw.random()
    full = np.broadcast_to(given, shape)
    words = f"array_mask(of shape {axes})"
    return Drawn(array_mask(jnp.asarray(given)), words, lambda b, n, i, j: bool(full[*b, n, i, j]))


LEAVES: dict[str, Callable[[random.Random, tuple[int, ...]], Drawn]] = {
    "everything": _everything, "causal": _causal, "window": _window, "lengths": _lengths,
    "array": _array,
}  # fmt: skip


# --- what a mask allows ---------------------------------------------------------------------------


def _used(mask: Mask, shape: tuple[int, ...]) -> jax.Array:
    """What of a mask hides a key, as ``attend`` finds it."""
    array = visibility(as_mask(mask, False, shape), None, shape)
    assert array is not None
    return jnp.broadcast_to(array, shape)


def _alone(mask: Mask, shape: tuple[int, ...]) -> jax.Array:
    return jnp.broadcast_to(mask.materialize(*shape[-2:]), shape)


def _mapped(mask: Mask, shape: tuple[int, ...]) -> jax.Array:
    """Map over the first batch axis; what has no such axis is the same for all."""
    leaves, structure = jax.tree.flatten(mask)  # an axis in the place of a bound would be a bound
    size, axes = shape[0], [0 if leaf.ndim and len(leaf) == shape[0] else None for leaf in leaves]
    leaves = [x[0] if a is None and x.ndim else x for x, a in zip(leaves, axes, strict=True)]

    def one(*leaves: jax.Array) -> jax.Array:
        return _used(jax.tree.unflatten(structure, leaves), shape[1:])

    return jax.vmap(one, in_axes=axes, axis_size=size)(*leaves)


def _carried(mask: Mask, shape: tuple[int, ...]) -> jax.Array:
    """Carry it through a loop, whose second step looks."""
    _, seen = jax.lax.scan(lambda one, _: (one, _used(one, shape)), mask, None, length=2)
    return seen[1]


WAYS: dict[str, Callable[[Mask, tuple[int, ...]], jax.Array]] = {
    "used": _used,
    "materialized": _alone,
    "an argument of jit": lambda mask, shape: jax.jit(_used, static_argnums=1)(mask, shape),
    "inside jit": lambda mask, shape: jax.jit(lambda: _used(mask, shape))(),
    "carried through scan": _carried,
    "rebuilt": lambda mask, shape: _used(jax.tree.map(lambda leaf: leaf, mask), shape),
    "is_causal": lambda mask, shape: jnp.broadcast_to(
        visibility(as_mask(mask, True, shape), None, shape), shape
    ),
    "mapped": _mapped,
}
"""How a mask gets to where it is used."""


def visible_everywhere(drawn: Drawn, shape: tuple[int, ...], ways: list[str]) -> None:
    """Hold a mask to its rule, pair by pair, in some of the ways it can travel."""
    expected = oracles.visible_pairs(drawn.rule, shape)
    for way in ways:
        if way == "mapped" and len(shape) == 3:
            continue
        wanted = expected & np.tril(np.ones(shape[-2:], bool)) if way == "is_causal" else expected
        got = np.asarray(WAYS[way](drawn.mask, shape))
        assert got.dtype == bool
        assert np.array_equal(got, wanted), f"{way}: {drawn.words} on {shape}"


# --- attention under it ---------------------------------------------------------------------------

WIDTH, VALUES = 3, 2


def _answer(*operands: Any, **options: Any) -> tuple[np.ndarray | None, str]:
    """The output, or why there is none."""
    try:
        return np.asarray(attend(*operands, **options)), ""
    except NotImplementedError as error:
        return None, str(error)


def attended(draw: random.Random, drawn: Drawn, shape: tuple[int, ...]) -> Counter[str]:
    """Hold ``attend`` under a mask to loops, by every implementation; each serves or says why not.

    Returns:
        How many implementations served, and how many did not.
    """
    *batch, num_heads, queries, keys = shape
    rng = np.random.default_rng(draw.randrange(2**32))
    heads = draw.choice([k for k in range(1, num_heads + 1) if num_heads % k == 0])
    width = draw.choice((WIDTH, VALUES))
    query = rng.standard_normal((*batch, num_heads, queries, WIDTH)).astype(np.float32)
    key = rng.standard_normal((*batch, heads, keys, WIDTH)).astype(np.float32)
    value = rng.standard_normal((*batch, heads, keys, width)).astype(np.float32)
    bias = None
    if draw.random() < 0.3:
        axes = tuple(draw.choice((1, size)) for size in shape)
        bias = rng.standard_normal(axes).astype(np.float32)
        bias[rng.random(axes) < 0.2] = -np.inf
    visible = oracles.visible_pairs(drawn.rule, shape)
    expected, _, _ = oracles.attention(query, key, value, visible, bias)
    options = {"mask": drawn.mask, "bias": None if bias is None else jnp.asarray(bias)}
    operands = tuple(map(jnp.asarray, (query, key, value)))
    spec = attention_spec(*operands, **options)
    chosen = select(spec).name
    served = Counter[str]()
    for name in (None, *IMPLEMENTATIONS):
        why = IMPLEMENTATIONS[name or chosen].why_unsupported
        reason = None if why is None else why(spec)
        got, said = _answer(*operands, **options, implementation=name)
        if got is None:
            assert name is not None, "what select names has to serve"
            assert reason, f"{name} refused what it said it served: {said}"
            assert said.endswith(f"got {name!r}: {reason}")
            served["attend refused"] += 1
            continue
        assert reason is None, f"{name} served, and said: {reason}"
        served["attend served"] += 1
        where = f"{name}: {drawn.words} on {shape}, {heads} key heads"
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-5, err_msg=where)
    return served


# --- what is wrong --------------------------------------------------------------------------------


def _wrong(draw: random.Random, shape: tuple[int, ...]) -> tuple[str, Callable[[], Mask]]:
    """Something that is no mask here: the argument that the error has to name, and the call."""
    batch, keys, queries = shape[:-3], shape[-1], shape[-2]
    more = (*batch, 5)
    choice: list[tuple[str, Callable[[], Any]]] = [
        ("query_offset", lambda: causal(draw.choice((1.5, "1", None, True, jnp.ones(batch))))),
        ("window", lambda: sliding_window(draw.choice((0, 0.5, "2", True)))),
        ("right", lambda: sliding_window(2, draw.choice((-2, 1.0, [1])))),
        ("key_lengths", lambda: padding(draw.choice((3, [3], None, jnp.ones(batch))))),
        ("key_lengths", lambda: padding(jnp.full(batch, -1))),
        ("query_lengths", lambda: padding(jnp.full(batch, 0), draw.choice((2, jnp.full(3, -1))))),
        ("array", lambda: array_mask(draw.choice((None, [[True]], jnp.ones(shape))))),
        ("array", lambda: array_mask(jnp.ones((3,), bool))),
        ("other", lambda: causal() & draw.choice((None, True, np.ones(shape, bool)))),
        ("other", lambda: np.ones(shape, bool) | causal()),
        ("mask.upper", lambda: causal(jnp.zeros(more, int))),
        ("mask.lower", lambda: sliding_window(2, None, jnp.zeros(more, int))),
        ("mask.key_lengths", lambda: padding(jnp.zeros(more, int))),
        ("mask.key_lengths", lambda: padding(jnp.full(batch, keys + 1))),
        ("mask.query_lengths", lambda: padding(jnp.full(batch, 0), jnp.full(batch, queries + 1))),
        ("mask", lambda: array_mask(jnp.ones((1, *shape), bool))),
        ("mask", lambda: array_mask(jnp.ones(shape[1:], bool))),
        ("mask", lambda: array_mask(jnp.ones((*shape[:-1], keys + 2), bool))),
        ("mask", lambda: Mask(array=jnp.ones(shape))),
        ("mask.upper", lambda: Mask(upper=0.5)),
        ("mask.key_lengths", lambda: Mask(key_lengths=3)),
    ]
    return draw.choice(choice)


def refused(draw: random.Random, shape: tuple[int, ...]) -> str:
    """Put something wrong into a tree of masks: a ``ValueError`` that names the argument.

    Returns:
        The name.
    """
    name, make = _wrong(draw, shape)
    others = [draw_mask(draw, shape, 1).mask for _ in range(2)]
    query = jnp.zeros((*shape[:-1], WIDTH))
    key = jnp.zeros((*shape[:-2], shape[-1], WIDTH))
    try:
        mask = make()
        mask = draw.choice((mask, ~mask, mask | others[0], ~(others[1] & (others[0] | mask))))
        attend(query, key, key, mask=mask)
    except ValueError as error:
        words = str(error)
        assert words.startswith((f"{name}: ", f"{name} (")), f"{name}: {words}"
        assert "expected" in words
        assert "got" in words
        return name
    raise AssertionError(f"{name}: something wrong on {shape} was taken")


def selected(draw: random.Random) -> str:
    """Hold ``select`` to its word on a spec that no call made: what it names serves.

    Returns:
        What it named.
    """
    batch = draw.choice(((), (2,), (0,), (3, 2)))
    heads, group = draw.choice((1, 2, 3)), draw.choice((1, 2, 5))
    queries, keys = (draw.choice((0, 1, 4, 16, 17, 128, 129, 1024, 10**6)) for _ in range(2))
    width, values = (draw.choice((0, 1, 8, 17, 64, 128, 256, 264)) for _ in range(2))
    kinds = ("causal", "window", "band", "offsets", "lengths", "array")
    spec = AttentionSpec(
        (*batch, heads * group, queries, width),
        (*batch, heads, keys, width),
        (*batch, heads, keys, draw.choice((width, values))),
        draw.choice(("float32", "float64", "bfloat16", "float16")),
        frozenset(kind for kind in kinds if draw.random() < 0.25),
        draw.random() < 0.3,
        draw.choice(("cpu", "gpu", "tpu")),
        frozenset(w for w in ("lse", "forward_mode", "dropout_multiplier") if draw.random() < 0.2),
        draw.choice((None, (7, 5), (8, 0), (9, 0), (10, 0), (12, 1))),
        draw.random() < 0.2,
        draw.random() < 0.2,
    )
    found = select(spec)
    assert found == select(spec)
    reasons = {}
    for name, implementation in IMPLEMENTATIONS.items():
        reason = implementation.why_unsupported and implementation.why_unsupported(spec)
        if "forward_mode" in spec.wants and not implementation.forward_mode:
            reason = reason or "forward"
        if "dropout_multiplier" in spec.wants and not implementation.dropout_multiplier:
            reason = reason or "factors"
        assert reason is None or (isinstance(reason, str) and reason.strip()), name
        reasons[name] = reason
    assert reasons[found.name] is None, f"{found} cannot serve {spec}"
    for name, said in found.rejected:
        assert reasons[name] is not None, f"{name} could serve {spec}"
        assert said
    return found.name


def run(seconds: float, seed: int, most: int = 10**9) -> Found:
    """Try masks, wrong masks and specs until the time is over; raise at the first that fails.

    Args:
        seconds: how long.
        seed: of what is drawn; each number has its own, so that it can be drawn again alone.
        most: how many at most.

    Returns:
        How many of each kind, and the slowest, by its number.
    """
    counts, slowest, ends = Counter[str](), (0.0, ""), time.monotonic() + seconds
    for number in range(most):
        if time.monotonic() > ends:
            break
        start = time.process_time()
        try:
            shape = random.Random(f"{seed} {number // BLOCK}").choice(SHAPES)
            counts += one(random.Random(f"{seed} {number}"), shape)
        except Exception:
            print(f"number {number} of seed {seed}", file=sys.stderr)
            raise
        slowest = max(slowest, (time.process_time() - start, f"number {number} of seed {seed}"))
        if number % BLOCK == BLOCK - 1:
            jax.clear_caches()  # the next have another shape, and other programs
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return Found(counts, round(slowest[0] * 1000), slowest[1], peak)


def one(draw: random.Random, shape: tuple[int, ...]) -> Counter[str]:
    """Try one mask, by two of the ways and one in four in ``attend``, a wrong one and ten specs."""
    drawn = draw_mask(draw, shape)
    visible_everywhere(drawn, shape, ["used", draw.choice(list(WAYS))])
    counts = Counter(masks=1)
    if draw.random() < 0.25:
        counts += attended(draw, drawn, shape)
    counts[f"wrong {refused(draw, shape)}"] += 1
    for _ in range(10):
        counts[f"selected {selected(draw)}"] += 1
    return counts


if __name__ == "__main__":
    main(run, __doc__)
