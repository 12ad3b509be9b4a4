"""The evidence for the rows of the ledger of papers: every verdict from stored data or by count."""

import numpy as np
import pytest

from mha_book.sharding.placement import PLACEMENTS, balance, make_placement
from mha_book.specialization.intervals import mean_interval
from tests.book.verdicts import decides
from tests.stored.files import result


@pytest.fixture(scope="module")
def found():
    return result("papers.json")


def rise(runs, way, whole="whole"):
    """How much higher the loss of each text is."""
    return np.array(runs[way]) - np.array(runs[whole])


def between(values, low, high):
    """Whether the interval of a mean over texts lies between two numbers."""
    middle, half = mean_interval(np.asarray(values, float))
    return low < middle - half and middle + half < high


def sure(values):
    """Whether every text says so."""
    return (np.asarray(values) > 0).all()


# Chapters' cells.


def test_p15_keys_are_rounded_by_feature():
    study = result("cache-bits.json")
    loss = {way: np.array(row["loss"]) for way, row in study["found"].items()}
    plain, by_feature = (
        loss[way] - loss["float32"] for way in ("4 bits", "4 bits, keys by feature")
    )
    assert len(plain) == 12
    assert sure(plain - by_feature)
    assert between(plain, 0.05, 0.2)
    assert between(by_feature, 0.005, 0.05)
    decides("P15", "confirmed")


def test_p16_a_larger_base_beats_interpolation():
    losses = result("positions.json")["losses"]
    assert len(losses["ntk"]) == 3
    for ntk, divided, plain in zip(
        *(losses[way] for way in ("ntk", "interpolation", "plain")), strict=True
    ):
        ntk, divided, plain = map(np.array, (ntk, divided, plain))
        assert sure(divided - ntk - 0.5), "at every position, within the trained length too"
        beyond = slice(12, None)  # pieces of 1024 positions: from half as far again
        assert sure(plain[beyond] - ntk[beyond])
    decides("P16", "confirmed")


def test_p17_a_latent_is_as_large_as_a_few_groups():
    models = result("models.json")["models"]
    (sizes,) = (model["latent"] for model in models if model["name"] == "DeepSeek-V3")
    kept = sizes["latent_dim"] + sizes["rotary_dim"]
    assert kept / (sizes["head_dim"] + sizes["value_dim"]) == 2.25
    decides("P17", "confirmed")


def test_p19_degree_three_is_not_seen_in_bfloat16():
    f = np.linspace(0, 1, 4097)
    points = (1 - np.cos(np.pi * (np.arange(64) + 0.5) / 64)) / 2
    errors = {
        degree: np.abs(
            np.polynomial.Chebyshev.fit(points, 2.0**points, degree)(f) / 2.0**f - 1
        ).max()
        for degree in (2, 3)
    }
    half_a_unit = 2.0**-9  # bfloat16 keeps eight digits of two
    assert errors[3] < half_a_unit / 10
    assert errors[2] > half_a_unit / 2
    decides("P19", "confirmed")


def test_p20_a_maximum_may_lag_behind():
    rng = np.random.default_rng(3)
    scores, values = 3 * rng.normal(size=(64, 1024)), rng.normal(size=(64, 1024))
    replaced = {0.0: 0, 8.0: 0}
    for row, value in zip(scores, values, strict=True):
        exact = 2.0**row @ value / (2.0**row).sum()
        for threshold in replaced:
            m, total, output = row[:128].max(), 0.0, 0.0
            for block in range(0, 1024, 128):
                part, top = row[block : block + 128], row[block : block + 128].max()
                if top > m + threshold:
                    shrink = 2.0 ** (m - top)
                    total, output, m = total * shrink, output * shrink, top
                    replaced[threshold] += 1
                total += (2.0 ** (part - m)).sum()
                output += 2.0 ** (part - m) @ value[block : block + 128]
                assert part.max() - m <= threshold
            assert abs(output / total - exact) < 1e-12
    assert replaced[0.0] > 50 > 10 * replaced[8.0]
    decides("P20", "confirmed")


def test_p22_induction_heads_copy():
    closed = result("heads-in-use.json")["closed"]
    assert len(closed["zero controls"]) == 6
    for way in ("zero", "mean"):
        whole = np.array(closed["whole"]["copied"])
        others = [np.mean(c["copied"] - whole) for c in closed[f"{way} controls"]]
        copied = closed[way]["copied"] - whole
        assert sure(copied - 2 * max(others) - 2)
        assert abs(np.mean(closed[way]["text"]) - np.mean(closed["whole"]["text"])) < 0.05
    decides("P22", "holds if")


def test_p23_striped_positions_are_nearly_even():
    of = {name: balance(make_placement(name, 1024, 8), upper=0) for name in PLACEMENTS}
    assert 1.8 < of["contiguous"].device_ratio < 2 - 1 / 8
    assert of["striped"].step_ratio < 1.01
    decides("P23", "confirmed")


def test_p24_the_mean_is_the_better_start():
    study = result("sharing.json")["conversion"]
    for count in ("4", "2", "1"):
        mean, pick, redraw = (
            np.array(study[count][way])[:, -1] for way in ("mean", "pick", "redraw")
        )
        assert len(mean) == 5
        assert sure(pick - mean)
        assert sure(redraw - pick)
    decides("P24", "confirmed", sure(redraw - pick) and sure(pick - mean))


# Small measurements, book/data/papers.json. The first text of each is computed again by
# tests/stored; here is what the numbers decide.


def test_p3_heads_chosen_by_token(found):
    runs = found["heads of a token"]
    assert len(runs["whole"]) == 6
    assert between(rise(runs, "chosen 7"), -0.01, 0.1)  # 78% of the heads: next to nothing
    assert between(rise(runs, "chosen 5"), 0.1, 0.4)  # 56%: something
    assert between(rise(runs, "chosen 3"), 1.0, 3.0)
    for keep in (7, 5, 3):
        chosen, fixed, drawn = (rise(runs, f"{w} {keep}") for w in ("chosen", "fixed", "random"))
        assert sure(fixed - chosen)
        assert between(drawn - fixed, 0.0, 5.0)
    decides("P3", "undecided")


def test_p9_virtual_heads_are_not_there_without_training(found):
    held = {kind: np.mean(of["6"]) for kind, of in found["of minilm"]["held"].items()}
    assert held["untrained"] < held["trained"] < held["untrained"] + 0.1
    assert held["trained"] + 0.05 < held["aligned"] < 0.75
    cosines = {way: np.array(c) for way, c in found["of minilm"]["cosines"].items()}
    assert len(cosines["virtual 6"]) == 24
    assert between(cosines["virtual 6"], 0.4, 0.7)
    assert between(cosines["plain 6"] - cosines["virtual 6"], 0.02, 0.3)
    assert between(cosines["aligned, virtual 6"], 0.75, 0.92)
    assert between(cosines["features 6"], 0.92, 1.0)
    decides("P9", "undecided")


def test_p4_few_keys_chosen_by_a_group(found):
    runs = found["keys of a query"]
    ways = {way: number for number, way in enumerate(runs["losses"])}
    assert [*ways] == ["own", "group", "layer", "nearest", "random"]
    middle = found["config"]["keys"].index(32)
    held, rest = (
        np.array(runs[name]).mean((1, 4))[:, :, middle]  # texts, ways
        for name in ("recalled", "recalled of the rest")
    )
    assert held.shape == (6, 5)
    for shares, least in ((held, 0.85), (rest, 0.8)):
        assert sure(shares[:, ways["group"]] - least)
        assert sure(shares[:, ways["own"]] - shares[:, ways["group"]])
        assert sure(0.05 - (shares[:, ways["own"]] - shares[:, ways["group"]]))
        for way in ("nearest", "random"):
            assert sure(shares[:, ways["group"]] - shares[:, ways[way]] - 0.15)
    agreement = np.array(runs["agreement"])
    group = np.arange(9) // 3
    in_group = (group[:, None] == group) & ~np.eye(9, dtype=bool)
    same, other = agreement[..., in_group], agreement[..., group[:, None] != group]
    assert between(same.mean((1, 2)) - other.mean((1, 2)), 0.08, 0.12)
    loss = {way: np.array(x) - np.array(runs["loss"]) for way, x in runs["losses"].items()}
    assert between(loss["group"], 0.0, 0.12)
    assert sure(loss["nearest"] - loss["group"])
    assert sure(loss["random"] - 2)
    decides("P4", "confirmed")


def test_p5_one_choice_for_a_layer(found):
    runs = found["keys of a query"]
    loss = {way: np.array(x) - np.array(runs["loss"]) for way, x in runs["losses"].items()}
    assert between(loss["layer"] - loss["own"], -0.07, 0.07)
    assert between(loss["layer"], 0.0, 0.15)
    assert between(loss["nearest"] - loss["layer"], 0.0, 0.3)
    assert sure(loss["random"] - loss["layer"] - 1.5)
    held = np.array(runs["recalled of the rest"]).mean((1, 4))[:, :, 1]
    assert sure(held[:, 2] - 0.75)
    assert sure(0.1 - (held[:, 0] - held[:, 2]))
    decides("P5", "undecided")


def test_p6_largest_scores(found):
    smollm2, minilm = (
        np.array(found[part]["largest"]) for part in ("keys of a query", "of minilm")
    )
    assert smollm2.shape == (6, 30, 9)
    assert minilm.shape == (24, 6, 12)
    assert 10 < smollm2.max() < 30 < minilm.max() < 50
    assert np.median(smollm2.max(0)) < 15
    assert np.median(minilm.max(0)) < 15
    decides("P6", "confirmed")


def test_p10_keys_before_rotation_use_few_directions(found):
    runs = found["keys of a query"]
    trained, drawn = (
        {name: np.array(x) for name, x in runs[key].items()}
        for key in ("directions", "directions, untrained")
    )
    assert len(trained["key"]) == 30
    assert sure(30 - trained["key"])
    assert sure(trained["rotated"] - trained["key"])
    assert sure(trained["value"] - trained["key"])
    assert sure(drawn["key"] - 80)
    assert sure(trained["half of both"] - 0.98)
    assert np.median(trained["half of both"]) > np.median(drawn["half of both"]) + 0.04
    decides("P10", "confirmed")


def test_p8_aligned_averages_keep_more(found):
    runs = found["merged"]
    assert len(runs["whole"]) == 6
    np.testing.assert_allclose(rise(runs, "aligned, not merged"), 0, atol=1e-3)
    gain = rise(runs, "plain", "aligned")
    assert between(gain, 1.3, 2.5)
    assert sure(gain - 1)
    assert sure(rise(runs, "turned at random") - rise(runs, "aligned") - 1)
    assert sure(rise(runs, "aligned") - 2), "of no use without training"
    cosines = {way: np.array(c) for way, c in found["of minilm"]["cosines"].items()}
    np.testing.assert_allclose(cosines["aligned, not merged"], 1, atol=1e-3)
    for heads in (6, 3):
        more = cosines[f"aligned {heads}"] - cosines[f"plain {heads}"]
        assert more.shape == (24,)
        assert sure(more)
        assert between(more, 0.1, 0.3)
        assert between(cosines[f"aligned {heads}"] - cosines[f"turned at random {heads}"], 0.1, 0.4)
    decides("P8", "confirmed")


def test_p13_few_heads_retrieve(found):
    runs = found["retrieving"]
    score, again = np.array(runs["score"]), np.array(runs["score on the others"])
    assert score.shape == (30, 9)
    assert 0.02 < (score > 0.1).mean() < 0.05
    assert 0.02 < (again > 0.1).mean() < 0.06
    assert score.max() > 0.9
    assert (score < 0.02).mean() > 0.8
    assert np.corrcoef(score.ravel(), again.ravel())[0, 1] > 0.9
    decides("P13", "confirmed")


def test_p14_without_retrieving_heads(found):
    runs = found["retrieving"]
    right = {name: np.array(x) for name, x in runs["right"].items()}
    assert len(runs["heads"]) == 13
    assert sure(right["none"] - 0.8)
    assert sure(0.5 - right["retrieving"])
    assert between(right["retrieving"], 0.0, 0.3)
    others = [right[name] for name in right if name.startswith("others")]
    assert len(others) == 3
    assert sure(np.stack(others) - 0.8)
    plain = {name: rise(runs["plain"], name, "none") for name in runs["plain"]}
    assert between(plain["retrieving"], 0.0, 0.15)
    assert sure(plain["others 0"] - plain["retrieving"])
    decides("P14", "confirmed")


def test_p12_importance_with_entropy(found):
    runs = found["entropy orders"]
    for share in ("0.1", "0.3"):
        low, high = (
            rise(runs, f"keeps {which} entropy {share}", f"importance {share}")
            for which in ("low", "high")
        )
        assert low.shape == (12,)
        assert sure(low)
        assert between(high, -0.02, 0.1) if share == "0.1" else sure(high)
    # The order by importance is the one of the chapter, on every second of its passages.
    curve = result("pruning-alike.json")["smollm2"]["curves"]["gate gradient, 24 windows"]
    for share, heads in (("0.1", 27), ("0.3", 81)):
        losses = np.array(curve["scores"])[curve["heads"].index(heads), 0, ::2]
        np.testing.assert_allclose(runs[f"importance {share}"], losses, rtol=5e-3)
    decides("P12", "undecided")
