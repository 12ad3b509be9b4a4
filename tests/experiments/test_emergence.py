"""The experiment on how heads come to their roles: its parts, its short form, what is stored."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import emergence, head_rank
from mha_book.multihead.parameters import init_multi_head

STORED = Path(__file__).parents[2] / "book" / "data" / "emergence.json"
pytestmark = pytest.mark.unoptimized


def test_what_is_foretold():
    rng = np.random.default_rng(0)
    scores, others = rng.random((2, 500, 4, 2))
    same, chance = emergence.foretold(scores, scores), emergence.foretold(scores, others)
    for name in ("place", "content", "difference"):
        assert same[name]["rank correlation"] == (1.0, 1.0, 1.0)
        assert same[name]["same leader"][0] == 1.0
        assert abs(chance[name]["rank correlation"][0]) < 0.1
        assert abs(chance[name]["same leader"][0] - 0.25) < 0.07


def test_the_rank_of_scores():
    params = init_multi_head(jax.random.key(0), 11, 4, num_kv_heads=2, head_dim=5)
    gain = np.linspace(0.5, 2.0, 11)
    found = head_rank.spectrum(params, gain)
    w_q, w_k = (gain[:, None, None] * np.asarray(w) for w in (params.w_q, params.w_k))
    for n in range(4):
        direct = np.linalg.svd(w_q[:, n] @ w_k[:, n // 2].T, compute_uv=False)
        np.testing.assert_allclose(found[n], direct[:5], rtol=1e-5)
        assert (direct[5:] < 1e-6).all()
    counted = head_rank.widths_of(np.array([[1.0, 1, 1, 1], [3.0, 0, 0, 0]]))
    assert [x.tolist() for x in counted.values()] == [[4.0, 1.0], [4, 1], [4, 1]]


def test_the_nearest_scores_of_a_rank():
    rng = np.random.default_rng(1)
    mix = rng.normal(size=(2, 6, 6))
    q, k = rng.normal(size=(400, 6)) @ mix[0], rng.normal(size=(300, 6)) @ mix[1] + 5.0
    one = jnp.ones((1, 400), bool)
    queries, keys = (jnp.asarray(x, jnp.float32)[None, None] for x in (q, k))
    found = head_rank.moments(queries, queries, one)._replace(
        keys=np.asarray(head_rank.moments(keys, keys, one[:, :300]).keys) * 400 / 300,
        key=k.sum(0)[None] * 400 / 300,
    )
    centred = k - k.mean(0)
    scores = q @ centred.T
    singular = np.linalg.svd(scores, compute_uv=False)
    for rank in (1, 3, 6):
        changed = q @ head_rank.cut(found, rank)[0] @ centred.T
        assert np.linalg.matrix_rank(changed, tol=1e-3) == rank
        left = np.linalg.norm(scores - changed)  # Eckart and Young: no nearer one of this rank
        assert left == pytest.approx(np.linalg.norm(singular[rank:]), rel=1e-2, abs=0.5)
        projection = head_rank.random_cut((6, 6), rank, 0)
        assert left <= np.linalg.norm(scores - q @ projection @ centred.T) + 1e-6


def complete(document, sizes, ranks):
    """What holds of the short form and of the long."""
    assert document["config"] == json.loads(json.dumps(sizes._asdict()))
    seeds = document["seeds"]
    roles = np.array(seeds["roles"])
    assert roles.shape == (sizes.seeds, len(seeds["steps"]), sizes.num_heads, 2)
    assert ((roles >= 0) & (roles.sum(-1, keepdims=True) < 1 + 1e-3)).all()
    runs = seeds["runs"]
    for found in runs.values():
        assert np.shape(found["last roles"]) == (sizes.seeds, sizes.num_heads, 2)
        assert np.isfinite(found["last loss"]).all()
    # The same start has the same scores, whatever data come.
    first = np.array(runs["base"]["first roles"])
    same = {"rtol": 0, "atol": 2e-4}
    np.testing.assert_allclose(runs["other data"]["first roles"], first, **same)
    for settings in sizes.widths:
        colors, d_model, num_heads, widths = settings
        row = document["widths"][f"{colors} colours, width {d_model}, {num_heads} heads"]
        assert np.shape(row["loss"]) == (len(widths), sizes.width_seeds)
    for name, heads, measure in (
        ("SmolLM2", (ranks.layers, 9, 64), "loss"), ("MiniLM", (6, 12, 32), "cosine"),
    ):  # fmt: skip
        found = document["ranks"][name]
        for kind in ("weights", "weights, untrained", "text", "text, untrained"):
            widths = {part: np.array(found[kind][part]) for part in found[kind]}
            assert all(each.shape == heads[:2] for each in widths.values())
            assert (widths["90%"] <= widths["99%"]).all()
            assert (widths["99%"] <= heads[2]).all()
            assert (widths["participation"] <= heads[2] + 1e-3).all()
        whole = np.array(found["loss"]["whole"]) if measure == "loss" else 1.0
        for way in ("fitted", "random"):  # a rank that cuts nothing changes nothing
            np.testing.assert_allclose(found[measure][way][str(heads[2])], whole, rtol=2e-3)


def test_heads_exchanged_exchange_their_roles(tmp_path):
    study = emergence.SeedStudy(emergence.QUICK._replace(steps=3), tmp_path)
    names = ("w_q", "w_k", "w_v", "w_o")
    zeros, ones = jnp.zeros(2, int), jnp.ones(2, int)
    exchanged = study.change_heads(
        lambda *given: emergence.swap(*given, names), study.start, zeros, ones
    )
    base, other = (
        study.run(name, start).evaluations["roles"]
        for name, start in (("base", study.start), ("exchanged", exchanged))
    )
    np.testing.assert_allclose(other[:, :, [1, 0, 2, 3]], base, atol=1e-5)
    assert abs(base[-1] - base[0]).max() > 1e-3  # they moved
    assert abs(base[:, :, 0] - base[:, :, 1]).max() > 1e-3
    # A nudge along the gradient raises the score of the role, and of the head that was nudged.
    for role in (0, 1):
        moved = study.run(f"nudge {role}", study.nudged(role, 0.2)).evaluations["roles"][0]
        assert (moved[:, 0, role] > base[0][:, 0, role] + 0.01).all()
        np.testing.assert_allclose(moved[:, 1:], base[0][:, 1:], atol=1e-6)
    same = study.run("alike", study.alike(0.0)).evaluations["roles"]
    np.testing.assert_allclose(same, same[:, :, :1].repeat(4, 2), atol=1e-5)


@pytest.mark.usefixtures("world")
@pytest.mark.slow
def test_the_short_form(tmp_path, capsys):
    path = emergence.main(["--quick", "--work", str(tmp_path)])
    document = json.loads(path.read_text())
    complete(document, emergence.QUICK, head_rank.QUICK_RANKS)
    assert document["provenance"]["command"].endswith("--quick")
    assert "MiniLM, rank 4, fitted" in capsys.readouterr().out


def test_the_stored_result():
    document = json.loads(STORED.read_text())
    complete(document, emergence.Sizes(), head_rank.Ranks())
    seeds = document["seeds"]
    roles = np.array(seeds["roles"])
    for i in (0, len(roles[0]) // 2):
        again = json.loads(json.dumps(emergence.foretold(roles[:, i], roles[:, -1])))
        stored = seeds["foretold"][str(seeds["steps"][i])]
        for name, found in again.items():  # from scores of four digits: two may change places
            np.testing.assert_allclose(
                stored[name]["rank correlation"], found["rank correlation"], atol=0.03
            )
