r"""From tokens to words: attention between the words of an annotated sentence.

A tokenizer may cut a word into several tokens. Attention on a word is the sum over its tokens, and
attention from a word the mean over its tokens, so that a row still adds up to 1 together with what
it gives to special tokens.

Shapes: ``T`` tokens, ``W`` words.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from mha_book._checks import check, check_flag, check_size, checked

__all__ = ["word_ids", "word_weights"]


def join_words(words: Sequence[str]) -> str:
    """Return a sentence of words, with no space before the words "." and ","."""
    check(not isinstance(words, str), "words", "a list of words", repr(words))
    return " ".join(words).replace(" .", ".").replace(" ,", ",")


def word_ids(model: Any, words: Sequence[str]) -> Int[np.ndarray, " T"]:
    """Return to which word each token of the joined words belongs.

    Args:
        model: a loaded model with a tokenizer.
        words: as for ``join_words``.

    Returns:
        ``(T,)``, numbers of words; -1 for special tokens.

    """
    text, ends, at = join_words(words), [], 0
    for word in words:
        at = text.index(word, at) + len(word)
        ends.append(at)
    offsets = model.tokenizer.encode(text).offsets
    owner = [int(np.searchsorted(ends, end)) if end > start else -1 for start, end in offsets]
    without = sorted(set(range(len(words))) - set(owner))
    check(not without, "words", "a token for each", f"none for words {without}")
    return np.array(owner)


@checked
def word_weights(
    weights: Float[Any, "*heads T T"], owner: Int[np.ndarray, " T"]
) -> Float[np.ndarray, "*heads W W"]:
    """Return the attention between words: summed over the key's tokens, averaged over the query's.

    Args:
        weights: ``(…, T, T)``.
        owner: ``(T,)``, from :func:`word_ids`.

    Returns:
        ``(…, W, W)``; rows add up to 1 less what goes to special tokens.

    References:
        Clark et al., What does BERT look at?, 2019, section 4.1.

    Example:
        >>> weights = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
        >>> word_weights(weights, np.array([-1, 0, 0])).round(2).tolist()
        [[0.65]]
    """
    check(bool((owner >= 0).any()), "owner", "at least one word", owner.tolist())
    member = (owner[:, None] == np.arange(owner.max() + 1)).astype(float)  # (T, W)
    means: np.ndarray = np.swapaxes(member / member.sum(0), 0, 1)
    between: np.ndarray = means @ np.asarray(weights, float) @ member
    return between


@checked
def most_attended(
    between: Float[np.ndarray, "*heads W W"], word: int, *, is_causal: bool
) -> Int[np.ndarray, "*heads"]:
    """Return which other word, before it if ``is_causal``, has most attention from number ``word``.

    Of every head; ``between`` is what :func:`word_weights` returned.
    """
    check_flag(is_causal, "is_causal")
    number = between.shape[-1]
    what = "the number of one that sees another"
    check_size(word, "word", int(is_causal), what)
    check(word < number > 1, "word", what, word)
    row = between[..., word, :].copy()
    row[..., word] = -1.0
    if is_causal:
        row[..., word + 1 :] = -1.0
    return np.asarray(row.argmax(-1))
