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

from mha_book._checks import as_key, check, check_size, check_type, checked
from mha_book.specialization.patterns import Pattern, offsets, on_target

__all__ = ["repeated_tokens"]


@checked
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
    :func:`~mha_book.specialization.patterns.prefix_matching`. Of a model without such heads the
    loss there is that of the first copy.

    Args:
        rng_key: PRNG key.
        batch: ``B``.
        period: ``P``, at most the size of the vocabulary.
        vocabulary: ``(V,)``, the ids to draw from, each as likely as any other.
        copies: how often the period stands there, at least 2.
        first_id: the token that begins every sequence; None for none.

    Returns:
        ``(B, T)`` with ``T = copies · P``, one more with ``first_id``; int32 or wider.

    References:
        Olsson et al., In-context learning and induction heads, 2022.

    Example:
        >>> ids = repeated_tokens(jax.random.key(0), 1, 3, jnp.arange(5, 9), first_id=0)
        >>> ids.shape, bool((ids[:, 1:4] == ids[:, 4:]).all())
        ((1, 7), True)
    """
    size = vocabulary.shape[0]
    _check_period(period, size, "tokens of the vocabulary")
    check_size(copies, "copies", 2)
    check_size(batch, "batch")
    rng_key = as_key(rng_key)
    keys = jax.random.split(rng_key, batch)
    drawn = jax.vmap(lambda key: jax.random.permutation(key, vocabulary)[:period])(keys)  # (B, P)
    ids = jnp.tile(drawn if drawn.dtype.itemsize >= 4 else drawn.astype(jnp.int32), (1, copies))
    if first_id is None:
        return ids
    what = f"a non-negative integer of {ids.dtype}, or None"
    check_size(first_id, "first_id", 0, what)
    check(first_id <= jnp.iinfo(ids.dtype).max, "first_id", what, first_id)
    return jnp.concatenate([jnp.full((batch, 1), first_id, ids.dtype), ids], axis=1)


@checked
def copied_positions(token_ids: Int[Array, "B T"], period: int) -> Bool[Array, "B T"]:
    """Return which tokens of a repeated sequence can be predicted by copying.

    These are the tokens that stand, after the same predecessor, ``P`` places before too: the first
    token of each copy is left out, as another comes before it the first time.
    """
    _check_period(period, token_ids.shape[1], "tokens of a sequence")
    same = jnp.pad(token_ids[:, period:] == token_ids[:, :-period], ((0, 0), (period, 0)))
    return same & jnp.pad(same[:, :-1], ((0, 0), (1, 0)))


def _check_period(period: int, most: int, whose: str) -> None:
    what = f"from 1 to the {most} {whose}, an integer"
    check_size(period, "period", 1, what)
    check(period <= most, "period", what, period)


class ProbeTask(NamedTuple):
    """How the sequences are made.

    Tokens are numbered: item ``color · symbols + symbol`` first, then the probe of each color,
    then answers.
    """

    colors: int = 12
    symbols: int = 4
    before: int = 4  # items before the first probe
    probes: int = 6  # R
    by_place: bool = True  # whether an item is before each probe and the answer gives its symbol

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
    """Sequences ``(B, T)``, and what their probes are answered from, ``(B, R)`` each.

    These are the symbol of the item before a probe (0 where none is asked for), the symbol of the
    color named, and the position of the item with that color.
    """

    tokens: Array
    near: Array
    far: Array
    source: Array


def probe_sequences(rng_key: Key[Array, ""], task: ProbeTask, batch: int) -> Probes:
    """Draw sequences: colors without repetition, everything else evenly and independently.

    The color named is that of one of the items before the one that stands before the probe.
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


@checked
def probe_patterns(
    task: ProbeTask, drawn: Probes, visible: Bool[Array, "B T T"]
) -> tuple[Pattern, Pattern]:
    """Return the two roles at the probes: attention on the item before, and on the color named.

    The baseline of both, in a causal head, is the mean of ``1 / (i + 1)`` over the positions of the
    probes. The last token of the sequences may be left out.
    """
    check_type(task, "task", ProbeTask)
    check_type(drawn, "drawn", Probes, "what probe_sequences gave")
    rows, length = task.rows, visible.shape[-1]
    is_probe = jnp.zeros((length, 1), bool).at[rows].set(True)
    before = ((offsets(visible) == -1) & is_probe)[None]
    at = jax.nn.one_hot(drawn.source, length, dtype=bool)
    named = jnp.zeros(visible.shape, bool).at[:, rows].set(at)
    return on_target(visible, before), on_target(visible, named)
