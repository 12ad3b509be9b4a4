"""From text to tokens and back, for any model that has a tokenizer.

Shapes: ``B`` sentences, ``T`` tokens.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from mha_book._checks import check, check_integers

__all__ = ["token_strings", "tokenize"]


def tokenize(model: Any, sentences: Sequence[str]) -> tuple[Int[Array, "B T"], Int[Array, " B"]]:
    """Turn sentences into tokens, with the special tokens that the model expects.

    Args:
        model: a loaded model, as :func:`~mha_book.models.minilm.load_minilm` gives it.
        sentences: at least one string.

    Returns:
        The token ids ``(B, T)``, filled up with the pad token to the longest sentence, and the
        number of real tokens of each sentence ``(B,)``, both int32.

    Raises:
        ValueError: ``sentences`` is one string or empty, or a sentence is too long for the model:
            nothing is cut off silently.
    """
    is_list = isinstance(sentences, Sequence) and not isinstance(sentences, str)
    is_list = is_list and len(sentences) > 0 and all(isinstance(s, str) for s in sentences)
    check(is_list, "sentences", "a list of at least one string", repr(sentences))
    rows = [model.tokenizer.encode(sentence).ids for sentence in sentences]
    for number, row in enumerate(rows):
        what = f"at most {model.config.max_length} tokens"
        check(len(row) <= model.config.max_length, f"sentences[{number}]", what, len(row))
    lengths = np.array([len(row) for row in rows], np.int32)
    token_ids = np.full((len(rows), lengths.max()), model.config.pad_id, np.int32)
    for row, ids in zip(token_ids, rows, strict=True):
        row[: len(ids)] = ids
    return jnp.asarray(token_ids), jnp.asarray(lengths)


def token_strings(model: Any, token_ids: Int[Array, " T"]) -> list[str]:
    """Return the tokens of one sentence as text, to label a figure with.

    Args:
        model: a loaded model, as :func:`~mha_book.models.minilm.load_minilm` gives it.
        token_ids: ``(T,)``, one row of what :func:`tokenize` gave, cut to its length.

    Returns:
        ``T`` strings. MiniLM marks a token that continues a word by ``##`` at its start, SmolLM2
        one that begins a word by a space.

    Raises:
        ValueError: ``token_ids`` has not one axis, or an id is not in the vocabulary.
    """
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
