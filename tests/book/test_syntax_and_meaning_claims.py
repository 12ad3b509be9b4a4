"""The evidence for the claims of the chapter on syntax and meaning."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.models import minilm, smollm2
from mha_book.models.tokens import tokenize
from mha_book.specialization.words import join_words
from mha_book.storage import read_table
from tests.book.extensions import ROOT
from tests.book.verdicts import decides

DATA = ROOT / "book" / "data"


def above_chance(table, name):
    baseline = table[f"{name} (uninformed)"]
    return (table[name] - baseline) / (1 - baseline)


def test_c10_kinds_are_few_and_most_heads_are_of_none():
    kinds = ("previous", "self", "local", "same token", "induction")
    for model, sink in (("smollm2", "first"), ("minilm", "special")):
        table = read_table(DATA / f"heads-{model}.csv")
        found = {kind: above_chance(table, kind) >= 0.5 for kind in (*kinds, sink)}
        if model == "minilm":
            found["next"] = above_chance(table, "next") >= 0.5
        assert found["previous"].any()  # a fixed distance
        assert found["local"].any()
        assert found[sink].sum() == max(inside.sum() for inside in found.values())
        assert np.mean(np.any(list(found.values()), axis=0)) < 0.5
        assert np.sum(list(found.values()), axis=0).max() > 1  # and some are of several
        # No gap: as many again lie between a quarter and a half as beyond.
        nearly = np.any([above_chance(table, kind) >= 0.25 for kind in (*kinds, sink)], axis=0)
        assert nearly.sum() > 1.5 * np.any(list(found.values()), axis=0).sum()
    decides("C10", "corrected")


SENTENCES = json.loads((DATA / "syntax.json").read_text(encoding="utf-8"))["sentences"]


def test_c10_the_annotations_are_sound():
    given = "a an the this that these those my your his her our their each every no some"
    determiners = set(given.split())
    assert len(SENTENCES) >= 40
    for s in SENTENCES:
        words = s["words"]
        assert words[-1] == "."
        for determiner, noun in s["determiner"]:
            assert determiner < noun
            assert words[determiner].lower() in determiners
            assert words[noun].lower() not in determiners
        for (subject, verb), between, before in zip(
            s["subject"], s["between"], s["before"], strict=True
        ):
            assert all(subject < noun < verb for noun in between)
            assert all(noun < subject < verb for noun in before)
        nouns = {noun for _, noun in s["determiner"]} | {noun for noun, _ in s["subject"]}
        assert not nouns & {verb for _, verb in s["subject"]}
    assert len({join_words(s["words"]) for s in SENTENCES}) == len(SENTENCES)


@pytest.mark.needs_models
def test_c52_heads_prefer_words_of_like_meaning():
    words = "cat dog, king queen, doctor nurse, bread butter, river lake, winter summer"
    words += ", gold silver, knife fork, moon sun, bus train"
    pairs = [pair.split() for pair in words.split(", ")]
    size = len(pairs)
    texts = [f"The {a} and the {b}" for _, b in pairs for a, _ in pairs]

    def won(weights):  # the share of comparisons that the partner wins, for each head
        square = np.asarray(weights).reshape(*weights.shape[:-1], size, size)
        own = np.diagonal(square, axis1=-2, axis2=-1)[..., None]
        return (own > square).sum((-1, -2)) / (size * (size - 1)), square

    model = smollm2.load_smollm2()
    config = model.config._replace(num_layers=2)
    params = model.params._replace(layers=model.params.layers[:2])
    ids, lengths = tokenize(model, texts)

    @jax.jit
    def of_lm(params, ids):
        _, records = smollm2.forward_with_intermediates(params, ids, config=config)
        return records[1].intermediates.weights[:, 8, 5, 2]

    share, square = won(of_lm(params, ids))
    assert share > 0.9
    assert np.diagonal(square).mean() > 3 * square.mean()

    encoder = minilm.load_minilm()
    ids, lengths = tokenize(encoder, texts)

    @jax.jit
    def of_encoder(params, ids, lengths):
        _, records = minilm.encode_with_intermediates(params, ids, lengths)
        return jnp.stack([r.intermediates.weights[:, :, 5, 2].T for r in records])

    share, square = won(of_encoder(encoder.params, ids, lengths))
    assert share[3, 5] > 0.85
    draw = np.random.default_rng(0)
    shuffled = (square[..., draw.permutation(size)] for _ in range(50))
    nulls = [won(s.reshape(*s.shape[:-2], -1))[0].max() for s in shuffled]
    assert share.max() > np.quantile(nulls, 0.95)
    decides("C52", "undecided")
