"""Random sequences that repeat: what can be predicted in them comes from copying alone.

Shapes: ``B`` sequences, ``P`` tokens before a sequence repeats, ``T`` tokens in all.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Key

from mha_book._checks import check, check_integers

__all__ = ["copied_positions", "repeated_tokens"]


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

    On such a sequence a head that attends to what followed the same token before
    (:func:`~mha_book.specialization.patterns.on_successor`) has exactly one target for each row of
    the second copy; of a model without such heads the loss there is that of the first copy.

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
    check(0 < period <= size, "period", f"from 1 to the {size} tokens of the vocabulary", period)
    check(copies >= 2, "copies", "2 or more", copies)
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
    same = jnp.pad(token_ids[:, period:] == token_ids[:, :-period], ((0, 0), (period, 0)))
    return same & jnp.pad(same[:, :-1], ((0, 0), (1, 0)))
