r"""Measures of one head's attention pattern: each a mean over rows, with its baseline.

A measure that is linear in the weights is a :class:`Pattern`: a score for every pair of query and
key, and the rows that count. The measure of head $h$ is
$m^h = \frac{1}{|R|} \sum_{i \in R} \sum_j A^{hij} s^{ij}$ over the counted rows $R$. Where $s$ is 1
on some *target* keys and 0 elsewhere, this is the mean attention on the target, a share from 0 to
1. A row counts if it sees a target and another key: with one of the two there is nothing to choose.
The keys that heads are known to attend to are found by offset, by place, or by their tokens.

The baseline is the same mean for a head that attends evenly to the $n_i$ keys that row $i$ sees,
$\frac{1}{|R|} \sum_{i \in R} \sum_j s^{ij} / n_i$ over visible $j$: the mean share of targets among
the visible keys. For one target key it is the mean of $1/n_i$.

Shapes: ``B`` texts, ``N`` heads, ``T`` queries, ``S`` keys.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from mha_book._checks import check, check_size, check_type, checked, widen
from mha_book.masks import Mask

__all__ = [
    "Pattern",
    "at_offset",
    "mean_score",
    "on_keys",
    "on_target",
    "prefix_matching",
    "visible_pairs",
]


class Pattern(NamedTuple):
    """A measure that is linear in the weights.

    Args:
        score: ``(B, T, S)``, what all of a row's attention on one key counts; 0 where not visible.
        counted: ``(B, T)``, boolean: the rows that the mean is over.
    """

    score: Array
    counted: Array


def visible_pairs(
    mask: Mask, batch: int, query_length: int, key_length: int | None = None
) -> Bool[Array, "B T S"]:
    """Return which key each query sees, the same for all heads.

    Give lengths of the queries too, ``padding(lengths, lengths)``: the rows of padding would count.

    Args:
        mask: the mask of the model.
        batch: ``B``.
        query_length: ``T``.
        key_length: ``S``; None for ``T``.

    Returns:
        ``(B, T, S)``.

    Example:
        >>> from mha_book import causal
        >>> visible_pairs(causal(), 1, 2).tolist()
        [[[True, False], [True, True]]]
    """
    check_type(mask, "mask", Mask, "array_mask makes one of a boolean array")
    check_size(batch, "batch", 0)
    shape = (batch, 1, query_length, query_length if key_length is None else key_length)
    pairs = mask.materialize(*shape[2:])
    pairs = jnp.reshape(pairs, (1,) * (4 - pairs.ndim) + pairs.shape)
    fits = all(got in (1, size) for got, size in zip(pairs.shape, shape, strict=True))
    what = f"one for all heads, axes (B, 1, T, S) = {shape}"
    check(fits, "mask", what, f"shape {pairs.shape}")
    return jnp.broadcast_to(pairs, shape)[:, 0]


@checked
def on_target(visible: Bool[Array, "B T S"], target: Bool[Array, "#B #T #S"]) -> Pattern:
    """Return the mean attention on target keys: from 0 to 1, a share.

    A row counts if it sees a target and another key. Each axis of ``target`` is that of ``visible``
    or 1.

    Example:
        >>> pattern = on_target(jnp.ones((1, 1, 2), bool), jnp.array([[[True, False]]]))
        >>> pattern.score.tolist(), pattern.counted.tolist()
        ([[[1.0, 0.0]]], [[True]])
    """
    hit = visible & target
    return Pattern(hit.astype(jnp.float32), hit.any(-1) & (visible & ~target).any(-1))


@checked
def offsets(visible: Bool[Array, "B T S"]) -> Int[Array, "T S"]:
    """Return how far each key stands after each query, $j - i$."""
    queries, keys = visible.shape[1:]
    return jnp.arange(keys)[None, :] - jnp.arange(queries)[:, None]


@checked
def uniform_weights(visible: Bool[Array, "B T S"]) -> Float[Array, "B 1 T S"]:
    """Return the same weight on every visible key; rows that see nothing are zero."""
    count = jnp.maximum(visible.sum(-1, keepdims=True), 1)
    return (visible.astype(jnp.float32) / count.astype(jnp.float32))[:, None]


@checked
def distance(visible: Bool[Array, "B T S"]) -> Pattern:
    r"""Return the mean distance attended over, $\sum_j A^{ij} |i - j|$, in tokens.

    The baseline of a causal row is ``i / 2``. Rows that see one key do not count.
    """
    score = jnp.where(visible, jnp.abs(offsets(visible)).astype(jnp.float32)[None], 0.0)
    return Pattern(score, visible.sum(-1) > 1)


@checked
def at_offset(visible: Bool[Array, "B T S"], offset: int) -> Pattern:
    """Return the attention on the key ``offset`` places after the query: -1 previous, 0 itself.

    Returns:
        A share, 0 to 1; baseline of a causal head: the mean of ``1 / (i + 1)``.

    Example:
        >>> at_offset(jnp.ones((1, 2, 2), bool), -1).score.tolist()
        [[[0.0, 0.0], [1.0, 0.0]]]
    """
    is_integer = isinstance(offset, (int, np.integer)) and not isinstance(offset, bool)
    check(is_integer, "offset", "an integer", repr(offset))
    return on_target(visible, (offsets(visible) == offset)[None])


@checked
def on_first_token(visible: Bool[Array, "B T S"]) -> Pattern:
    """Return the attention on the first key, the usual attention sink (Xiao et al., 2024)."""
    return on_target(visible, (jnp.arange(visible.shape[2]) == 0)[None, None])


@checked
def on_keys(visible: Bool[Array, "B T S"], keys: Bool[Array, "B S"]) -> Pattern:
    """Return the attention on chosen ``keys``: special tokens, punctuation, a part of speech.

    Returns:
        A share, 0 to 1; the baseline is the mean share of these keys among the visible.

    Example:
        >>> on_keys(jnp.ones((1, 1, 2), bool), jnp.array([[False, True]])).score.tolist()
        [[[0.0, 1.0]]]
    """
    return on_target(visible, keys[:, None, :])


@checked
def in_window(visible: Bool[Array, "B T S"], width: int) -> Pattern:
    """Return the attention on keys at most ``width`` places away, the query's own included.

    A row that sees nothing beyond the window does not count.
    """
    check_size(width, "width", 0, "an integer of 0 or more")
    return on_target(visible, (jnp.abs(offsets(visible)) <= width)[None])


@checked
def on_duplicate_token(visible: Bool[Array, "B T T"], token_ids: Int[Array, "B T"]) -> Pattern:
    """Return the attention on other occurrences of the query's own token (Wang et al., 2022).

    Rows without another visible occurrence do not count.
    """
    same = token_ids[:, :, None] == token_ids[:, None, :]
    return on_target(visible, same & (offsets(visible) != 0)[None])


@checked
def prefix_matching(visible: Bool[Array, "B T T"], token_ids: Int[Array, "B T"]) -> Pattern:
    """Return the prefix-matching score of induction heads: attention on what followed the token.

    A target is a key that comes right after another occurrence of the query's token.

    Returns:
        A share, 0 to 1. The query's own successor is no target; rows without a target do not count:
        of a sequence repeated once, those of the second copy count.

    References:
        Olsson et al., In-context learning and induction heads, 2022.

    Example:
        >>> from mha_book import causal
        >>> pattern = prefix_matching(visible_pairs(causal(), 1, 4), jnp.array([[7, 8, 9, 7]]))
        >>> pattern.score[0, 3].tolist()
        [0.0, 1.0, 0.0, 0.0]
    """
    before = jnp.pad(token_ids[:, :-1], ((0, 0), (1, 0)))  # (B, T): the token before each key
    follows = token_ids[:, :, None] == before[:, None, :]
    offset = offsets(visible)
    has_one_before = jnp.arange(visible.shape[2])[None, :] > 0
    return on_target(visible, follows & ((offset != 1) & has_one_before)[None])


@checked
def normalized_entropy(
    weights: Float[Array, "B N T S"], visible: Bool[Array, "B T S"]
) -> tuple[Float[Array, "B N T"], Bool[Array, "B T"]]:
    r"""Return the entropy of each row over the greatest it can have, $-\sum_j A \log A / \log n_i$.

    Returns:
        ``(B, N, T)``, from 0 (one key alone) to 1, the baseline (all visible keys alike), and the
        rows that count, ``(B, T)``: those that see two keys or more. Others are 0.
    """
    count = visible.sum(-1)  # (B, T)
    counted = count > 1
    entropy = entropy_terms(weights).sum(-1)
    greatest = jnp.log(jnp.where(counted, count, 2).astype(entropy.dtype))[:, None]
    return jnp.where(counted[:, None], entropy / greatest, 0.0), counted


@checked
def mean_score(weights: Float[Array, "B N T S"], pattern: Pattern) -> Float[Array, " N"]:
    """Return a measure of each head: the mean over all counted rows of all texts.

    Args:
        weights: ``(B, N, T, S)``; half precision is summed up in float32.
        pattern: what is measured.

    Returns:
        ``(N,)``, float32 or wider; NaN where no row counts.

    Example:
        >>> visible = jnp.ones((1, 4, 4), bool)
        >>> mean_score(uniform_weights(visible), at_offset(visible, 0)).tolist()
        [0.25]
    """
    check_type(pattern, "pattern", Pattern, "as on_target gives one")
    pairs = (weights.shape[0], *weights.shape[2:])
    check(pattern.score.shape == pairs, "pattern", f"axes (B, T, S) = {pairs}", pattern.score.shape)
    counted = pattern.counted[:, None, :, None]
    of_rows = widen(jnp.where(counted, weights, 0))
    total = jnp.einsum("bnts,bts->n", of_rows, pattern.score.astype(of_rows.dtype))
    return total / pattern.counted.sum().astype(of_rows.dtype)


def entropy_terms(weights: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    r"""Return $-A \log A$, with its limit 0 at 0, in float32 or wider."""
    weights = widen(weights)
    return -weights * jnp.log(jnp.where(weights == 0, 1, weights))
