"""From text to tokens and back: by the tokenizer of a model, or character by character.

A character is the smallest token, and the characters of a text are the smallest vocabulary that a
language model can have. Training takes windows of such a text.

Shapes: ``B`` sentences or windows, ``T`` tokens in each, ``P`` characters of a text.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from mha_book._checks import (
    RngKey,
    as_key,
    check,
    check_flag,
    check_integers,
    check_size,
    check_type,
)
from mha_book.storage.files import check_text

__all__ = ["character_vocabulary", "encode_characters", "token_strings", "tokenize"]


def tokenize(
    model: Any, sentences: Sequence[str], *, parse_special: bool = True
) -> tuple[Int[Array, "B T"], Int[Array, " B"]]:
    """Turn sentences into tokens, with the special tokens that the model expects.

    Args:
        model: a loaded model, as :func:`~mha_book.models.minilm.load_minilm` gives it.
        sentences: at least one string.
        parse_special: whether the name of a special token inside a sentence, such as
            ``<|im_end|>``, becomes that token, as in transformers. False reads it as plain text:
            for text that is not to be trusted.

    Returns:
        The token ids ``(B, T)``, filled up with the pad token to the longest sentence, and the
        number of real tokens of each sentence ``(B,)``, both int32.

    Raises:
        ValueError: ``sentences`` is one string or empty, or a sentence has a lone surrogate or is
            too long for the model: nothing is cut off silently.
    """
    is_list = isinstance(sentences, Sequence) and not isinstance(sentences, str)
    is_list = is_list and len(sentences) > 0 and all(isinstance(s, str) for s in sentences)
    check(is_list, "sentences", "a list of at least one string", repr(sentences))
    _check_loaded(model)
    check_flag(parse_special, "parse_special")
    for number, sentence in enumerate(sentences):
        check_text(sentence, f"sentences[{number}]")
    as_before = getattr(model.tokenizer, "encode_special_tokens", False)
    model.tokenizer.encode_special_tokens = not parse_special
    try:
        rows = [model.tokenizer.encode(sentence).ids for sentence in sentences]
    finally:
        model.tokenizer.encode_special_tokens = as_before
    for number, row in enumerate(rows):
        what = f"at most {model.config.max_length} tokens"
        check(len(row) <= model.config.max_length, f"sentences[{number}]", what, len(row))
    lengths = np.array([len(row) for row in rows], np.int32)
    token_ids = np.full((len(rows), lengths.max()), model.config.pad_id, np.int32)
    for row, ids in zip(token_ids, rows, strict=True):
        row[: len(ids)] = ids
    return jnp.asarray(token_ids), jnp.asarray(lengths)


def _check_loaded(model: Any) -> None:
    is_model = hasattr(model, "tokenizer") and hasattr(model, "config")
    what = "a loaded model, which has a tokenizer, not its params alone"
    check(is_model, "model", what, type(model).__name__)


def token_strings(model: Any, token_ids: Int[Array, " T"]) -> list[str]:
    """Return the tokens of one sentence as text, to label a figure with.

    Args:
        model: a loaded model, as :func:`~mha_book.models.minilm.load_minilm` gives it.
        token_ids: ``(T,)``, one row of what :func:`tokenize` gave, cut to its length.

    Returns:
        ``T`` strings. MiniLM marks a token that continues a word by ``##`` at its start, SmolLM2
        one that begins a word by a space.
    """
    _check_loaded(model)
    check_integers(token_ids, "token_ids")
    shape = tuple(token_ids.shape)
    what = "axes (T,), that is rank 1"
    check(len(shape) == 1, "token_ids", what, f"rank {len(shape)}, shape {shape}")
    ids = [int(number) for number in token_ids]
    size = model.config.vocab_size
    for number in ids:
        check(0 <= number < size, "token_ids", f"numbers from 0 to {size - 1}", number)
    if type(model.tokenizer.decoder).__name__ == "ByteLevel":  # its own names are coded bytes
        return [model.tokenizer.decode([number], skip_special_tokens=False) for number in ids]
    return [model.tokenizer.id_to_token(number) for number in ids]


UNKNOWN = 0
"""The token of a character that is not in the vocabulary; the others count from 1."""


def character_vocabulary(text: str) -> str:
    """Return the distinct characters of a text in order of their code points.

    Returns:
        The characters; a model of them needs one token more than there are, for the unknown.

    Example:
        >>> character_vocabulary("abba!")
        '!ab'
    """
    check_type(text, "text", str, "a string")
    return "".join(sorted(set(text)))


def encode_characters(text: str, characters: str) -> Int[Array, " P"]:
    """Return the tokens of a text, one for each character.

    Args:
        text: any text.
        characters: what :func:`character_vocabulary` gave, usually of the training text.

    Returns:
        ``(P,)``, int32: 1 for the first of ``characters``, and so on; :data:`UNKNOWN` for others.

    Example:
        >>> encode_characters("ab?", "ab").tolist()
        [1, 2, 0]
    """
    check_type(text, "text", str, "a string")
    points, known = _code_points(text), _known_characters(characters)
    places = np.searchsorted(known, points)
    found = known[np.minimum(places, len(known) - 1)] == points
    return jnp.asarray(np.where(found, places + 1, UNKNOWN).astype(np.int32))


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _known_characters(characters: str) -> np.ndarray:
    """Return the code points of a vocabulary, which has each character once and in order."""
    check_type(characters, "characters", str, "a string")
    check(bool(characters), "characters", "one or more", repr(characters))
    known = _code_points(characters)
    is_sorted = bool(np.all(known[1:] > known[:-1]))
    check(is_sorted, "characters", "different ones in order of code points", repr(characters))
    return known


def sample_windows(
    token_ids: Int[Array, " P"], rng_key: RngKey, count: int, length: int
) -> Int[Array, "B T"]:
    """Return ``(count, length)`` tokens: windows at random places of a text, all equally likely."""
    last = _last_start(token_ids, count, length)
    starts = jax.random.randint(as_key(rng_key), (count,), 0, last + 1, jnp.int32)
    return token_ids[starts[:, None] + jnp.arange(length, dtype=jnp.int32)[None, :]]


def evenly_spaced_windows(
    token_ids: Int[Array, " P"], count: int, length: int
) -> Int[Array, "B T"]:
    """Return ``(count, length)`` tokens: windows evenly spaced from a text's start to its end."""
    starts = np.linspace(0, _last_start(token_ids, count, length), count).astype(np.int32)
    return token_ids[jnp.asarray(starts[:, None] + np.arange(length, dtype=np.int32)[None, :])]


def _last_start(token_ids: Array, count: int, length: int) -> int:
    check_size(count, "count")
    check_size(length, "length")
    check_integers(token_ids, "token_ids")
    check(token_ids.ndim == 1, "token_ids", "axes (P,), that is rank 1", token_ids.shape)
    last = token_ids.shape[0] - length
    check(last >= 0, "token_ids", f"at least {length} characters", token_ids.shape[0])
    return last
