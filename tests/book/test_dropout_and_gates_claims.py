"""The evidence for the claims of the chapter on dropout and gates."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book.models import tiny
from mha_book.storage import load_arrays, load_tree
from tests.book.extensions import ROOT
from tests.book.verdicts import decides
from tests.oracles import interval


@pytest.mark.needs_torch
@pytest.mark.filterwarnings("default")
def test_c32_the_usual_rates_as_published():
    """0.1 on the weights and after the output in BERT, GPT-2 and T5; none in Llama and Mistral."""
    import transformers

    bert, gpt2 = transformers.BertConfig(), transformers.GPT2Config()
    assert (bert.attention_probs_dropout_prob, bert.hidden_dropout_prob) == (0.1, 0.1)
    assert (gpt2.attn_pdrop, gpt2.resid_pdrop) == (0.1, 0.1)
    assert transformers.T5Config().dropout_rate == 0.1
    for config in (transformers.LlamaConfig(), transformers.MistralConfig()):
        assert config.attention_dropout == 0.0
        assert [name for name in config.to_dict() if "drop" in name] == ["attention_dropout"]


@pytest.fixture(scope="module")
def stored():
    path = ROOT / "book" / "data" / "gradients-dropout.json"
    return json.loads(path.read_text(encoding="utf8"))


def test_c32_dropout_between_is_like_the_others(stored):
    for regime, sign in (("whole text", 1), ("scarce text", -1)):
        validation = {name: np.array(row["validation"]) for name, row in stored[regime].items()}
        for name in ("weights", "heads", "output", "weights and output", "all three"):
            middle, half = interval(validation[name] - validation["none"])
            assert sign * middle > half, (regime, name)
        middle, half = interval(validation["all three"] - validation["weights and output"])
        assert sign * middle > half, regime
    # Stopped where each was best, no setting differs detectably from none.
    curves = {
        name: np.array(row["curve_validation"]).min(axis=1)
        for name, row in stored["scarce text"].items()
    }
    for name in curves.keys() - {"none"}:
        middle, half = interval(curves[name] - curves["none"])
        assert abs(middle) < half, name
    places = ("weights", "heads", "output")
    noise = {place: np.array(stored["noise"][place]["variance"]) for place in places}
    assert (noise["heads"] < 0.9 * noise["weights"]).mean() > 0.5
    assert (noise["heads"] < 0.9 * noise["output"]).all()
    for row in (stored["noise"][place] for place in places):
        assert np.allclose(row["variance"], row["variance_by_formula"], rtol=0.05)
        assert np.mean(row["beyond_three_errors"]) < 0.02  # the mean is that without dropout
    decides("C32", "corrected")


def test_c35_removing_heads(stored):
    costs, heads = {}, 1 << np.arange(8)
    for name, losses in stored["removal"].items():
        losses = np.array(losses)
        costs[name] = losses - losses[:, :1]
        assert (costs[name][:, heads] > 0).all(), "a head is free"
    alone = costs["none"][:, heads]
    four = np.argsort(alone, axis=1)[:, :4]
    together = costs["none"][np.arange(5), (1 << four).sum(axis=1)]
    ratio = together / np.take_along_axis(alone, four, axis=1).sum(axis=1)
    assert ratio.min() > 0.8
    assert ratio.max() < 1.5
    backed = costs["weights"][:, 255] / costs["weights"][:, heads].sum(axis=1)
    assert backed.min() > 2.5
    assert (costs["none"][:, 255] / alone.sum(axis=1)).max() < 1.6
    assert (costs["weights"][:, heads].mean(axis=1) < alone.mean(axis=1) / 2).all()
    decides("C35", "undecided")


def test_c35_gradients_arrive_without_heads(stored):
    arrays, _ = load_arrays(ROOT / "book" / "data" / "gradients-dropout.safetensors")
    config = tiny.TinyConfig(**stored["model"])
    params = load_tree(arrays, tiny.init_tiny(jax.random.key(0), config), "none")
    ids = jnp.asarray(np.random.default_rng(0).integers(1, config.vocab_size, (4, 33)))

    def arriving(gate):
        gates = jnp.full((config.num_layers, config.num_heads), gate)
        slope = jax.grad(lambda p: tiny.loss(p, ids, config=config, gates=gates))(params)
        return float(jnp.linalg.norm(slope.token_embedding))

    assert arriving(0.0) > 0.5 * arriving(1.0)
