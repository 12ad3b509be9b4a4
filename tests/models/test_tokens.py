"""Texts character by character, and windows of them; tokenizers: in the tests of the models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.models import smollm2
from mha_book.models.tokens import (
    character_vocabulary,
    encode_characters,
    evenly_spaced_windows,
    sample_windows,
    token_strings,
    tokenize,
)


def test_characters_there_and_back():
    text = "We the People — 1787"
    letters = character_vocabulary(text)
    assert letters == "".join(sorted(set(text)))
    assert [letters[i - 1] for i in encode_characters(text, letters).tolist()] == [*text]
    assert encode_characters("Zz!", letters).tolist() == [0, 0, 0]
    assert encode_characters("", letters).shape == (0,)
    with pytest.raises(ValueError, match="characters: expected different ones in order"):
        encode_characters("ab", "ba")
    half = character_vocabulary("a\ud800")  # of a surrogate pair
    assert encode_characters("\ud800a", half).tolist() == [2, 1]


@pytest.mark.needs_models
def test_special_tokens_are_read_as_such_or_as_text():
    model = smollm2.load_smollm2()
    text = "a<|im_end|>"
    special, plain = (tokenize(model, [text], parse_special=x)[0][0] for x in (True, False))
    assert token_strings(model, special)[-1] == "<|im_end|>"
    assert len(plain) > len(special)
    assert "".join(token_strings(model, plain)[1:]) == text
    np.testing.assert_array_equal(tokenize(model, [text])[0][0], special)  # and set back
    with pytest.raises(ValueError, match=r"sentences\[1\]: expected text without lone surrogates"):
        tokenize(model, ["a", "\ud800"])


def test_windows():
    text = jnp.arange(10, dtype=jnp.int32)
    drawn = np.asarray(sample_windows(text, jax.random.key(0), 4000, 7))
    np.testing.assert_array_equal(drawn - drawn[:, :1], np.tile(np.arange(7), (4000, 1)))
    starts, counts = np.unique(drawn[:, 0], return_counts=True)
    assert starts.tolist() == [0, 1, 2, 3]
    assert counts.min() > 900
    assert evenly_spaced_windows(text, 4, 7)[:, 0].tolist() == [0, 1, 2, 3]
    for call in (
        lambda: evenly_spaced_windows(text, 1, 11),
        lambda: sample_windows(text, jax.random.key(0), 1, 11),
    ):
        with pytest.raises(ValueError, match="token_ids: expected at least 11 characters; got 10"):
            call()
