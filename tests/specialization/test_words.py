"""From tokens to words: attention between words, and which word has most of it."""

import numpy as np
import pytest

from mha_book.specialization import words

rng = np.random.default_rng(11)


def test_attention_between_words():
    owner = np.array([-1, 0, 0, 1, 2, -1])
    weights = rng.dirichlet(np.ones(6), size=(3, 6))
    between = words.word_weights(weights, owner)
    assert between.shape == (3, 3, 3)
    wanted = weights[1, [1, 2]].mean(0)
    np.testing.assert_allclose(between[1, 0], [wanted[1] + wanted[2], wanted[3], wanted[4]])
    special = weights[:, :, [0, 5]].sum(-1)
    rows = np.stack([special[:, [1, 2]].mean(-1), special[:, 3], special[:, 4]], -1)
    np.testing.assert_allclose(between.sum(-1) + rows, 1)


def test_the_most_attended_other_word():
    between = np.array([[[0.9, 0.5, 0.1], [0.2, 0.7, 0.1], [0.3, 0.2, 0.5]]])
    assert words.most_attended(between, 0, is_causal=False).tolist() == [1]
    assert words.most_attended(between, 2, is_causal=True).tolist() == [0]
    assert words.most_attended(between, 1, is_causal=True).tolist() == [0]


def test_words_of_tokens_with_a_tokenizer_that_cuts_words():
    class Encoding:
        offsets = ((0, 0), (0, 2), (2, 5), (5, 6), (6, 10), (10, 11), (0, 0))

    class Model:
        class tokenizer:
            encode = staticmethod(lambda text: Encoding)

    given = ["Kings", ",", "now", "."]
    assert words.join_words(given) == "Kings, now."
    assert words.word_ids(Model, given).tolist() == [-1, 0, 0, 1, 2, 3, -1]
    with pytest.raises(ValueError, match="none for words"):
        words.word_ids(Model, [*given, "then", "."])
