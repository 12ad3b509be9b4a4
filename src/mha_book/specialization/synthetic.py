r"""Synthetic sequences: random tokens that repeat, and a task of recall that needs two heads.

In a repeated random sequence what can be predicted comes from copying alone.

The task, a form of associative recall, needs heads of two kinds: one that finds by place, one that
finds by content. A sequence shows *items*, each one token that has a color and a symbol, and asks
for symbols. A *probe* names a color that was shown before; the token after it, the *answer*, gives
the symbol of the item before the probe and that of the item with the color named. The first is
found by its place, whatever it is; the second by what it is, wherever it stands. Colors do not
repeat within a sequence, symbols are drawn evenly and independently. Who knows the answers has a
loss of 0, who knows neither symbol of ``s`` one of $2 \log s$ nats.

Shapes: ``B`` sequences of ``T`` tokens, ``P`` tokens before a sequence repeats, ``R`` probes.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, Key

from mha_book._checks import as_key, check, check_integers, check_rank, check_size, check_type
from mha_book.specialization.patterns import Pattern, offsets, on_target

__all__ = [
    "ProbeTask",
    "Probes",
    "copied_positions",
    "probe_patterns",
    "probe_sequences",
    "repeated_tokens",
]


def repeated_tokens(
    rng_key: Key[Array, ""],
    batch: int,
    period: int,
    vocabulary: Int[Array, " V"],
    *,
    copies: int = 2,
    first_id: int | None = None,
) -> Int[Array, "B T"]:
    """Return random tokens, no two alike within a period, that are then repeated.

    On such a sequence an induction head has exactly one target for each row of the second copy, see
    :func:`~mha_book.specialization.patterns.on_induction_target`. Of a model without such heads the
    loss there is that of the first copy.

    Args:
        rng_key: PRNG key.
        batch: ``B``.
        period: ``P``, at most the size of the vocabulary.
        vocabulary: ``(V,)``, the ids to draw from, each as likely as any other.
        copies: how often the period stands there, at least 2.
        first_id: the token that begins every sequence; None for none.

    Returns:
        ``(B, T)`` with ``T = copies · P``, one more with ``first_id``.

    Raises:
        ValueError: the vocabulary is too small or no integers, or there are fewer than 2 copies.

    References:
        Olsson et al., In-context learning and induction heads, 2022.

    Example:
        >>> ids = repeated_tokens(jax.random.key(0), 1, 3, jnp.arange(5, 9), first_id=0)
        >>> ids.shape, bool((ids[:, 1:4] == ids[:, 4:]).all())
        ((1, 7), True)
    """
    check_integers(vocabulary, "vocabulary")
    check(vocabulary.ndim == 1, "vocabulary", "axes (V,)", f"shape {vocabulary.shape}")
    size = vocabulary.shape[0]
    is_count = isinstance(period, int) and 0 < period <= size
    check(is_count, "period", f"from 1 to the {size} tokens of the vocabulary", repr(period))
    check_size(copies, "copies", 2)
    check_size(batch, "batch")
    if first_id is not None:
        limits = jnp.iinfo(vocabulary.dtype)
        what = f"an integer of {vocabulary.dtype}, the dtype of vocabulary, or None"
        check_size(first_id, "first_id", limits.min, what)
        check(first_id <= limits.max, "first_id", what, first_id)
    rng_key = as_key(rng_key)
    keys = jax.random.split(rng_key, batch)
    drawn = jax.vmap(lambda key: jax.random.permutation(key, vocabulary)[:period])(keys)  # (B, P)
    ids = jnp.tile(drawn, (1, copies))
    if first_id is None:
        return ids
    return jnp.concatenate([jnp.full((batch, 1), first_id, ids.dtype), ids], axis=1)


def copied_positions(token_ids: Int[Array, "B T"], period: int) -> Bool[Array, "B T"]:
    """Return which tokens of a repeated sequence can be predicted by copying.

    Args:
        token_ids: ``(B, T)``, what :func:`repeated_tokens` gave.
        period: ``P``.

    Returns:
        ``(B, T)``: True for a token whose own and whose predecessor's stand ``P`` places before
        too. Each first token of a copy is left out: its predecessor is another than the first time.

    Raises:
        ValueError: the tokens have not two axes.

    Example:
        >>> copied_positions(jnp.array([[0, 5, 6, 5, 6]]), 2).tolist()
        [[False, False, False, False, True]]
    """
    check_integers(token_ids, "token_ids")
    check(token_ids.ndim == 2, "token_ids", "axes (B, T)", f"shape {token_ids.shape}")
    length = token_ids.shape[1]
    is_count = isinstance(period, int) and 0 < period <= length
    check(is_count, "period", f"from 1 to the {length} tokens of a sequence", repr(period))
    same = jnp.pad(token_ids[:, period:] == token_ids[:, :-period], ((0, 0), (period, 0)))
    return same & jnp.pad(same[:, :-1], ((0, 0), (1, 0)))


class ProbeTask(NamedTuple):
    """How the sequences are made.

    Tokens are numbered: item ``color · symbols + symbol`` first, then the probe of each color,
    then answers.

    Args:
        colors: how many colors there are to tell apart.
        symbols: how many symbols.
        before: items before the first probe.
        probes: ``R``.
        by_place: whether an item stands before each probe and the answer gives its symbol too;
            False for answers that give the symbol of the color named alone.
    """

    colors: int = 12
    symbols: int = 4
    before: int = 4
    probes: int = 6
    by_place: bool = True

    @property
    def items(self) -> int:
        """How many items a sequence has."""
        return self.before + int(self.by_place) * self.probes

    @property
    def period(self) -> int:
        """How many tokens from one probe to the next."""
        return 2 + int(self.by_place)

    @property
    def first_answer(self) -> int:
        """The number of the first answer: the tokens before it are items and probes."""
        return self.colors * self.symbols + self.colors

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.first_answer + int(self.symbols ** (1 + int(self.by_place)))

    @property
    def length(self) -> int:
        """How many tokens a sequence has."""
        return self.before + self.period * self.probes

    @property
    def rows(self) -> np.ndarray:
        """The positions of the probes, ``(R,)``."""
        return self.before + self.period * np.arange(self.probes) + int(self.by_place)


class Probes(NamedTuple):
    """A batch of sequences, and what their probes are answered from.

    Args:
        tokens: ``(B, T)``.
        near: ``(B, R)``, the symbol of the item before each probe; 0 where none is asked for.
        far: ``(B, R)``, the symbol of the color named.
        source: ``(B, R)``, the position of the item with that color.
    """

    tokens: Array
    near: Array
    far: Array
    source: Array


def probe_sequences(rng_key: Key[Array, ""], task: ProbeTask, batch: int) -> Probes:
    """Draw sequences: colors without repetition, everything else evenly and independently.

    The color named is that of one of the items before the one that stands before the probe.

    Args:
        rng_key: PRNG key.
        task: how they are made.
        batch: ``B``.

    Returns:
        The sequences.

    Raises:
        ValueError: there are more items than colors, or no item before the first probe.

    Example:
        >>> probe_sequences(jax.random.key(0), ProbeTask(), 2).tokens.shape
        (2, 22)
    """
    check_type(task, "task", ProbeTask)
    rng_key = as_key(rng_key)
    check_size(batch, "batch")
    check(task.before > 0, "task", "an item before the first probe", task)
    check(task.items <= task.colors, "task", f"{task.items} colors or more", task)
    color_key, symbol_key, source_key = jax.random.split(rng_key, 3)
    keys = jax.random.split(color_key, batch)
    order = jax.vmap(lambda key: jax.random.permutation(key, task.colors))(keys)
    color = order[:, : task.items]
    symbol = jax.random.randint(symbol_key, (batch, task.items), 0, task.symbols)
    block = jnp.arange(task.probes)
    seen = task.before + int(task.by_place) * block  # items to choose from
    drawn = jax.random.uniform(source_key, (batch, task.probes))
    chosen = jnp.floor(drawn * seen.astype(jnp.float32)[None]).astype(jnp.int32)
    far = jnp.take_along_axis(symbol, chosen, 1)
    probe = task.colors * task.symbols + jnp.take_along_axis(color, chosen, 1)
    item = color * task.symbols + symbol
    if task.by_place:
        near = symbol[:, task.before :]
        answer = task.first_answer + near * task.symbols + far
        later = jnp.stack([item[:, task.before :], probe, answer], -1)
    else:
        near = jnp.zeros_like(far)
        later = jnp.stack([probe, task.first_answer + far], -1)
    tokens = jnp.concatenate([item[:, : task.before], later.reshape(batch, -1)], 1)
    in_block = task.before + task.period * (chosen - task.before)
    return Probes(tokens, near, far, jnp.where(chosen < task.before, chosen, in_block))


def probe_patterns(
    task: ProbeTask, drawn: Probes, visible: Bool[Array, "B T T"]
) -> tuple[Pattern, Pattern]:
    """Return the two roles at the probes: attention on the item before, and on the color named.

    Args:
        task: how the sequences are made.
        drawn: the sequences.
        visible: ``(B, T, T)``; the last token of the sequences may be left out.

    Returns:
        Two shares, 0 to 1; the baseline of both, in a causal head, is the mean of
        ``1 / (i + 1)`` over the positions of the probes.

    Example:
        >>> from mha_book import causal
        >>> from mha_book.specialization.patterns import visible_pairs
        >>> task = ProbeTask()
        >>> drawn = probe_sequences(jax.random.key(0), task, 3)
        >>> place, content = probe_patterns(task, drawn, visible_pairs(causal(), 3, task.length))
        >>> int(place.counted.sum()), int(content.counted.sum())
        (18, 18)
    """
    check_type(task, "task", ProbeTask)
    check_type(drawn, "drawn", Probes, "what probe_sequences gave")
    check_rank(visible, "visible", "(B, T, T)", 3)
    rows, length = task.rows, visible.shape[-1]
    is_probe = jnp.zeros((length, 1), bool).at[rows].set(True)
    before = ((offsets(visible) == -1) & is_probe)[None]
    at = jax.nn.one_hot(drawn.source, length, dtype=bool)
    named = jnp.zeros(visible.shape, bool).at[:, rows].set(at)
    return on_target(visible, before), on_target(visible, named)
