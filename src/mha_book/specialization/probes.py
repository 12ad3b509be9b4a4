r"""Sequences that need heads of two kinds: one that finds by place, one that finds by content.

A sequence shows *items*, each one token that has a colour and a symbol, and asks for symbols. A
*probe* names a colour that was shown before; the token after it, the *answer*, gives the symbol of
the item before the probe and that of the item with the colour named. The first is found by its
place, whatever it is; the second by what it is, wherever it stands. Colours do not repeat within a
sequence, symbols are drawn evenly and independently. Who knows the answers has a loss of 0, who
knows neither symbol of ``s`` one of $2 \log s$ nats.

Shapes: ``B`` sequences of ``T`` tokens, ``R`` probes in each.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Key

from mha_book._checks import check
from mha_book.specialization.patterns import Pattern, offsets, on_target

__all__ = ["ProbeTask", "Probes", "probe_patterns", "probe_sequences"]


class ProbeTask(NamedTuple):
    """How the sequences are made.

    Tokens are numbered: item ``colour · symbols + symbol`` first, then the probe of each colour,
    then answers.

    Args:
        colours: how many colours there are to tell apart.
        symbols: how many symbols.
        before: items before the first probe.
        probes: ``R``.
        by_place: whether an item stands before each probe and the answer gives its symbol too;
            False for answers that give the symbol of the colour named alone.
    """

    colours: int = 12
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
        return self.colours * self.symbols + self.colours

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return self.first_answer + self.symbols ** (1 + int(self.by_place))

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
        far: ``(B, R)``, the symbol of the colour named.
        source: ``(B, R)``, the position of the item with that colour.
    """

    tokens: Array
    near: Array
    far: Array
    source: Array


def probe_sequences(rng_key: Key[Array, ""], task: ProbeTask, batch: int) -> Probes:
    """Draw sequences: colours without repetition, everything else evenly and independently.

    The colour named is that of one of the items before the one that stands before the probe.

    Args:
        rng_key: PRNG key.
        task: how they are made.
        batch: ``B``.

    Returns:
        The sequences.

    Raises:
        ValueError: there are more items than colours, or no item before the first probe.

    Example:
        >>> probe_sequences(jax.random.key(0), ProbeTask(), 2).tokens.shape
        (2, 22)
    """
    check(task.before > 0, "task", "an item before the first probe", task)
    check(task.items <= task.colours, "task", f"{task.items} colours or more", task)
    colour_key, symbol_key, source_key = jax.random.split(rng_key, 3)
    keys = jax.random.split(colour_key, batch)
    order = jax.vmap(lambda key: jax.random.permutation(key, task.colours))(keys)
    colour = order[:, : task.items]
    symbol = jax.random.randint(symbol_key, (batch, task.items), 0, task.symbols)
    block = jnp.arange(task.probes)
    seen = task.before + int(task.by_place) * block  # items to choose from
    drawn = jax.random.uniform(source_key, (batch, task.probes))
    chosen = jnp.floor(drawn * seen.astype(jnp.float32)[None]).astype(jnp.int32)
    far = jnp.take_along_axis(symbol, chosen, 1)
    probe = task.colours * task.symbols + jnp.take_along_axis(colour, chosen, 1)
    item = colour * task.symbols + symbol
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
    """Return the two roles at the probes: attention on the item before, and on the colour named.

    Args:
        task: how the sequences are made.
        drawn: the sequences.
        visible: ``(B, T, T)``; the last token of the sequences may be left out.

    Returns:
        Two shares, 0 to 1; the null value of both, in a causal head, is the mean of
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
    rows, length = task.rows, visible.shape[-1]
    is_probe = jnp.zeros((length, 1), bool).at[rows].set(True)
    before = ((offsets(visible) == -1) & is_probe)[None]
    at = jax.nn.one_hot(drawn.source, length, dtype=bool)
    named = jnp.zeros(visible.shape, bool).at[:, rows].set(at)
    return on_target(visible, before), on_target(visible, named)
