"""The keys that heads are known to attend to: by offset, by place, by what their tokens are.

Each function returns a :class:`~mha_book.specialization.patterns.Pattern`: the mean attention on
its target keys, a share from 0 to 1, over the rows that see a target and another key. The null
value, that of a head that attends evenly, is the mean share of targets among the visible keys.

Shapes: ``B`` texts, ``T`` queries, ``S`` keys.
"""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

from mha_book._checks import check, check_integers
from mha_book.specialization.patterns import Pattern, offsets, on_target

__all__ = ["at_offset", "in_window", "on_first", "on_flagged", "on_same_token", "on_successor"]


def at_offset(visible: Bool[Array, "B T S"], offset: int) -> Pattern:
    """Return the attention on the key ``offset`` places after the query: -1 previous, 0 itself.

    Args:
        visible: ``(B, T, S)``.
        offset: $j - i$.

    Returns:
        A share, 0 to 1; null value of a causal head: the mean of ``1 / (i + 1)``.

    Example:
        >>> at_offset(jnp.ones((1, 2, 2), bool), -1).score.tolist()
        [[[0.0, 0.0], [1.0, 0.0]]]
    """
    return on_target(visible, (offsets(visible) == offset)[None])


def on_first(visible: Bool[Array, "B T S"]) -> Pattern:
    """Return the attention on the first key, the usual sink.

    Args:
        visible: ``(B, T, S)``.

    Returns:
        A share, 0 to 1; null value of a causal head: the mean of ``1 / (i + 1)`` from the second
        row on.

    References:
        Xiao et al., Efficient streaming language models with attention sinks, 2024.

    Example:
        >>> on_first(jnp.ones((1, 1, 3), bool)).score.tolist()
        [[[1.0, 0.0, 0.0]]]
    """
    return on_target(visible, (jnp.arange(visible.shape[2]) == 0)[None, None])


def on_flagged(visible: Bool[Array, "B T S"], flags: Bool[Array, "B S"]) -> Pattern:
    """Return the attention on flagged keys: special tokens, punctuation, a part of speech.

    Args:
        visible: ``(B, T, S)``.
        flags: ``(B, S)``, which keys are meant.

    Returns:
        A share, 0 to 1; the null value is the mean share of flagged keys among the visible.

    Raises:
        ValueError: ``flags`` are not boolean or have other axes.

    Example:
        >>> on_flagged(jnp.ones((1, 1, 2), bool), jnp.array([[False, True]])).score.tolist()
        [[[0.0, 1.0]]]
    """
    what = f"axes (B, S) = {(visible.shape[0], visible.shape[2])}"
    check(flags.shape == (visible.shape[0], visible.shape[2]), "flags", what, flags.shape)
    return on_target(visible, flags[:, None, :])


def in_window(visible: Bool[Array, "B T S"], width: int) -> Pattern:
    """Return the attention on keys at most ``width`` places away, the query's own included.

    Args:
        visible: ``(B, T, S)``.
        width: 0 or more.

    Returns:
        A share, 0 to 1; a row that sees nothing beyond the window does not count.

    Raises:
        ValueError: ``width`` is negative.

    Example:
        >>> in_window(jnp.ones((1, 1, 3), bool), 1).score.tolist()
        [[[1.0, 1.0, 0.0]]]
    """
    check(width >= 0, "width", "0 or more", width)
    return on_target(visible, (jnp.abs(offsets(visible)) <= width)[None])


def on_same_token(visible: Bool[Array, "B T T"], token_ids: Int[Array, "B T"]) -> Pattern:
    """Return the attention on other occurrences of the query's own token (duplicate token).

    Args:
        visible: ``(B, T, T)``.
        token_ids: ``(B, T)``.

    Returns:
        A share, 0 to 1; rows without another visible occurrence do not count.

    Raises:
        ValueError: the tokens are no integers or their axes do not fit.

    References:
        Wang et al., Interpretability in the wild, 2022, section 3.

    Example:
        >>> on_same_token(jnp.ones((1, 2, 2), bool), jnp.array([[5, 5]])).score.tolist()
        [[[0.0, 1.0], [1.0, 0.0]]]
    """
    _check_tokens(token_ids, visible)
    same = token_ids[:, :, None] == token_ids[:, None, :]
    return on_target(visible, same & (offsets(visible) != 0)[None])


def on_successor(visible: Bool[Array, "B T T"], token_ids: Int[Array, "B T"]) -> Pattern:
    """Return the attention on keys that follow another occurrence of the query's token (induction).

    Args:
        visible: ``(B, T, T)``.
        token_ids: ``(B, T)``.

    Returns:
        A share, 0 to 1. The query's own successor is no target; rows without a target do not count:
        of a sequence repeated once, those of the second copy count.

    Raises:
        ValueError: the tokens are no integers or their axes do not fit.

    References:
        Olsson et al., In-context learning and induction heads, 2022.

    Example:
        >>> from mha_book import causal
        >>> from mha_book.specialization.patterns import visible_pairs
        >>> pattern = on_successor(visible_pairs(causal(), 1, 4), jnp.array([[7, 8, 9, 7]]))
        >>> pattern.score[0, 3].tolist()
        [0.0, 1.0, 0.0, 0.0]
    """
    _check_tokens(token_ids, visible)
    before = jnp.pad(token_ids[:, :-1], ((0, 0), (1, 0)))  # (B, T): the token before each key
    follows = token_ids[:, :, None] == before[:, None, :]
    offset = offsets(visible)
    has_one_before = jnp.arange(visible.shape[2])[None, :] > 0
    return on_target(visible, follows & ((offset != 1) & has_one_before)[None])


def _check_tokens(token_ids: Array, visible: Array) -> None:
    check_integers(token_ids, "token_ids")
    wanted = visible.shape[:2]
    is_square = visible.shape[1] == visible.shape[2]
    check(is_square, "visible", "axes (B, T, T): self-attention", f"shape {visible.shape}")
    check(token_ids.shape == wanted, "token_ids", f"axes (B, T) = {wanted}", token_ids.shape)
