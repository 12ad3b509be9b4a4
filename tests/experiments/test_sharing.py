"""The study of shared keys and values: its short form, its parts, and what is stored."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import sharing
from experiments.sharing_training import Sizes, rate
from mha_book.models import tiny

STORED = Path(__file__).parents[2] / "book" / "data" / "sharing.json"
pytestmark = pytest.mark.unoptimized


def complete(document, sizes, names):
    """Every training is there, for every seed, and each curve begins where it should."""
    assert document["config"] == json.loads(json.dumps(sizes._asdict()))
    scratch, conversion, full = document["scratch"], document["conversion"], sharing.FULL
    assert list(scratch) == names
    for found in scratch.values():
        losses = np.array(found["losses"])
        assert losses.shape == (sizes.seeds, len(found["steps"]))
        assert np.isfinite(losses).all()
        assert (found["steps"][0], found["steps"][-1]) == (0, sizes.steps)
        np.testing.assert_array_equal(found["last"], losses[:, -1])
        np.testing.assert_array_equal(found["best"], losses.min(axis=1))
    assert list(conversion) == [full, *map(str, sizes.shared)]
    for heads, found in conversion.items():
        ways = [full] if heads == full else [*sharing.CONVERSIONS, "trained so", "fresh"]
        assert list(found) == ["steps", *ways]
        assert found["steps"] == [0, *sizes.uptraining]
        for way in ways:
            assert np.shape(found[way]) == (sizes.seeds, len(found["steps"]))
            assert np.isfinite(found[way]).all()
    at_once = {
        heads: {way: np.array(curves)[:, 0] for way, curves in found.items() if way != "steps"}
        for heads, found in conversion.items()
    }
    same = {"rtol": 1e-6}
    np.testing.assert_allclose(at_once[full][full], scratch[full]["last"], **same)
    for heads in map(str, sizes.shared):
        own = scratch[f"{heads}, width"]
        np.testing.assert_allclose(at_once[heads]["trained so"], own["last"], **same)
        np.testing.assert_allclose(at_once[heads]["fresh"], np.array(own["losses"])[:, 0], **same)
        back = document["back"][heads]
        np.testing.assert_array_equal(back["shared"], own["last"])
        np.testing.assert_allclose(back["repeated"], back["shared"], **same)


@pytest.mark.usefixtures("world")
@pytest.mark.slow
def test_the_short_form(tmp_path, capsys):
    path = sharing.main(["--quick", "--work", str(tmp_path)])
    document = json.loads(path.read_text())
    complete(document, sharing.QUICK, [sharing.FULL, "2, width"])
    assert document["provenance"]["command"].endswith("--quick")
    assert "2 heads, mean: " in capsys.readouterr().out
    # Where the rate is 0, as in the first step, nothing moves; later something does.
    losses = np.array(document["scratch"]["2, width"]["losses"])
    np.testing.assert_array_equal(losses[:, 0], losses[:, 1])
    assert (losses[:, -1] != losses[:, 0]).all()


def test_the_stored_study():
    document = json.loads(STORED.read_text())
    sizes = Sizes()
    kinds = ("width", "parameters")
    names = [sharing.FULL, *(f"{heads}, {kind}" for heads in sizes.shared for kind in kinds)]
    complete(document, sizes, names)
    full = document["scratch"][sharing.FULL]
    for heads in sizes.shared:
        narrow, equal = (document["scratch"][f"{heads}, {kind}"] for kind in kinds)
        assert narrow["num_kv_heads"] == equal["num_kv_heads"] == heads
        assert narrow["parameters"] < 0.98 * full["parameters"]
        assert equal["parameters"] == pytest.approx(full["parameters"], rel=0.002)
        for found in (narrow, equal):
            share = found["cache_numbers"] / full["cache_numbers"]
            assert share == heads / sizes.num_heads


def test_models_of_equal_width_and_of_equal_size():
    base = tiny.TinyConfig(107, 64, 64, num_heads=8, use_bias=False)
    found = sharing.variants(base, (2, 1))
    assert list(found) == [sharing.FULL, "2, width", "2, parameters", "1, width", "1, parameters"]
    counts = {name: sharing.parameter_count(config) for name, config in found.items()}
    for heads in (2, 1):
        saved = 2 * 2 * 64 * (8 - heads) * 8  # keys and values of two layers
        assert counts[sharing.FULL] - counts[f"{heads}, width"] == saved
        assert abs(counts[f"{heads}, parameters"] - counts[sharing.FULL]) <= 129  # half a unit each
        assert found[f"{heads}, parameters"].d_hidden > 256
        assert found[f"{heads}, parameters"].num_kv_heads == heads


def test_what_has_one_shape_starts_the_same_in_every_variant():
    base = tiny.TinyConfig(7, 5, 8, num_layers=1, num_heads=4, use_bias=False)
    configs = sharing.variants(base, (1,))
    full, shared = jax.jit(
        lambda key: [tiny.init_tiny(key, configs[name]) for name in (sharing.FULL, "1, width")]
    )(jax.random.key(3))
    others = dict(jax.tree_util.tree_leaves_with_path(shared))
    for path, leaf in jax.tree_util.tree_leaves_with_path(full):
        of_shared_heads = jax.tree_util.keystr(path).endswith(("w_k", "w_v"))
        assert (leaf.shape == others[path].shape) != of_shared_heads
        assert of_shared_heads or bool((leaf == others[path]).all())


def test_the_schedule():
    at = [float(rate(jnp.float32(step), jnp.float32(24), jnp.float32(4.0))) for step in range(25)]
    assert at[:3] == [0.0, 2.0, 4.0]
    assert at[13] == pytest.approx(2.0)  # half way down
    assert at[24] == pytest.approx(0.0, abs=1e-6)
    assert np.all(np.diff(at[2:]) < 0)
