"""Text as a sequence of characters: the smallest vocabulary a language model can have.

Shapes: ``P`` characters of a text, ``B`` windows, ``T`` characters in each.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from mha_book._checks import check, check_integers

__all__ = ["UNKNOWN", "alphabet", "decode", "draw_windows", "encode", "even_windows"]

UNKNOWN = 0
"""The token of a character that is not in the alphabet; the others count from 1."""


def alphabet(text: str) -> str:
    """Return the distinct characters of a text in order of their code points.

    Args:
        text: any text.

    Returns:
        The characters; a model of them needs one token more than there are, for the unknown.

    Example:
        >>> alphabet("abba!")
        '!ab'
    """
    return "".join(sorted(set(text)))


def encode(text: str, characters: str) -> Int[Array, " P"]:
    """Return the tokens of a text, one for each character.

    Args:
        text: any text.
        characters: what :func:`alphabet` gave, usually of the training text.

    Returns:
        ``(P,)``, int32: 1 for the first of ``characters``, and so on; :data:`UNKNOWN` for others.

    Example:
        >>> encode("ab?", "ab").tolist()
        [1, 2, 0]
    """
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    known = np.frombuffer(characters.encode("utf-32-le"), np.uint32)
    check(bool(np.all(known[1:] > known[:-1])), "characters", "an alphabet", repr(characters))
    places = np.searchsorted(known, points)
    found = known[np.minimum(places, len(known) - 1)] == points
    return jnp.asarray(np.where(found, places + 1, UNKNOWN).astype(np.int32))


def decode(token_ids: Int[Array, " P"], characters: str) -> str:
    """Return the text of tokens: the inverse of :func:`encode` on known characters.

    Args:
        token_ids: ``(P,)``.
        characters: what :func:`alphabet` gave.

    Returns:
        The text, with U+FFFD for :data:`UNKNOWN`.

    Example:
        >>> decode(encode("ab?", "ab"), "ab")
        'ab�'
    """
    symbols = "\N{REPLACEMENT CHARACTER}" + characters
    return "".join(symbols[int(number)] for number in token_ids)


def draw_windows(
    token_ids: Int[Array, " P"], rng_key: Key[Array, ""], count: int, length: int
) -> Int[Array, "B T"]:
    """Return windows of a text that begin at random places, all equally likely.

    Args:
        token_ids: ``(P,)``.
        rng_key: PRNG key, which alone decides the places.
        count: ``B``.
        length: ``T``, at most ``P``.

    Returns:
        ``(B, T)``.

    Raises:
        ValueError: the text is shorter than a window.

    Example:
        >>> draw_windows(jnp.arange(5), jax.random.key(0), 2, 5).tolist()
        [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    """
    last = _last_start(token_ids, length)
    starts = jax.random.randint(rng_key, (count,), 0, last + 1, jnp.int32)
    return token_ids[starts[:, None] + jnp.arange(length, dtype=jnp.int32)[None, :]]


def even_windows(token_ids: Int[Array, " P"], count: int, length: int) -> Int[Array, "B T"]:
    """Return windows that begin at evenly spaced places, the first and the last included.

    Args:
        token_ids: ``(P,)``.
        count: ``B``, at least 1.
        length: ``T``, at most ``P``.

    Returns:
        ``(B, T)``; the same for every call, to score models on.

    Raises:
        ValueError: the text is shorter than a window.

    Example:
        >>> even_windows(jnp.arange(6), 2, 3).tolist()
        [[0, 1, 2], [3, 4, 5]]
    """
    starts = np.linspace(0, _last_start(token_ids, length), count).astype(np.int32)
    return token_ids[jnp.asarray(starts[:, None] + np.arange(length, dtype=np.int32)[None, :])]


def _last_start(token_ids: Array, length: int) -> int:
    check_integers(token_ids, "token_ids")
    check(token_ids.ndim == 1, "token_ids", "axes (P,), that is rank 1", token_ids.shape)
    last = token_ids.shape[0] - length
    check(last >= 0, "token_ids", f"at least {length} characters", token_ids.shape[0])
    return last
