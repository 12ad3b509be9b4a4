"""The evidence for the claims of the chapter on removing heads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mha_book import MultiHeadParams, multi_head_attention
from mha_book.pruning.importance import ablation
from mha_book.pruning.order import removal_order
from mha_book.specialization.intervals import bootstrap_interval
from tests.book.verdicts import decides
from tests.stored.files import result

D, N, H, C, T = 11, 5, 3, 2, 7


@pytest.fixture(scope="module")
def stored():
    return result("pruning.json")["smollm2"]


@pytest.fixture(scope="module")
def long():
    """All orders on passages of 129 tokens."""
    return result("pruning-alike.json")["smollm2"]


@pytest.fixture(scope="module")
def rises():
    return np.array(result("heads.json")["importance"]["ablation"])


def interval(values):
    """The mean over texts, and where 95% of the means lie when texts are drawn anew."""
    values = np.asarray(values)
    return values.mean(), *bootstrap_interval(values, np.random.default_rng(1))


def changes(found, name, kind=0):
    """The change at 30% removed, text by text: of the loss (0), of the accuracy (1)."""
    line = found["curves"][name]
    return np.array(line["scores"])[line["heads"].index(81), kind] - np.array(found["whole"])[kind]


def as_printed(importances):
    """The printed selection: what follows the first 70% of the sorted pairs."""
    ranked = sorted(enumerate(importances), key=lambda pair: pair[1], reverse=True)
    return ranked[int(0.7 * len(ranked)) :]


def test_c24_the_difference_has_the_other_sign():
    rng = np.random.default_rng(3)
    shapes = ((D, N, H), (D, N, H), (D, N, C), (N, C, D))
    params = MultiHeadParams(*(jnp.asarray(rng.normal(size=s) / 3, jnp.float32) for s in shapes))
    x = jnp.asarray(rng.normal(size=(T, D)), jnp.float32)
    run = jax.jit(multi_head_attention)
    target = run(params, x)  # of the whole layer: every head helps

    def loss(params, gates, x):
        return jnp.mean((multi_head_attention(params, x, gates=gates[0]) - target) ** 2)

    rise = np.asarray(jax.jit(ablation, static_argnums=0)(loss, params, jnp.ones((1, N)), x))
    assert (rise > 0).all()
    for h in range(N):
        without = params._replace(w_o=params.w_o.at[h].set(0.0))
        printed = 0.0 - float(jnp.mean((run(without, x) - target) ** 2))
        assert printed == pytest.approx(-rise[0, h], rel=1e-4)  # a useful head is negative
        closed = run(params, x, gates=jnp.ones(N).at[h].set(0.0))
        np.testing.assert_allclose(run(without, x), closed, atol=1e-5)  # the method itself is right
    decides("C24", "corrected", (rise > 0).all())


def test_c50_the_printed_code_removes_what_is_needed_most(stored, long, rises):
    chosen = as_printed((-rises).ravel())  # original minus without
    assert len(chosen) == 81
    # No head that it keeps is missed as much as any that it removes.
    gone = np.zeros(270, bool)
    gone[[number for number, _ in chosen]] = True
    assert rises.ravel()[gone].min() >= rises.ravel()[~gone].max()
    # Its pairs are no numbers of heads.
    with pytest.raises(IndexError):
        np.ones(270)[chosen[0]] = 0
    # What was scored: the heads that it removes, and those that it would with the sign put right.
    for sign in (-1, 1):
        scored = {tuple(head) for head in removal_order(sign * rises)[:81].tolist()}
        assert {divmod(number, 9) for number, _ in as_printed(sign * rises.ravel())} == scored
    # Nats on held-out passages of both lengths: more than random heads cost in any draw.
    for found in (stored, long):
        wrong = interval(changes(found, "sign of the loss without it"))
        right = interval(changes(found, "ablation"))
        draws = [interval(changes(found, f"random {seed}")) for seed in range(5)]
        assert wrong[1] > max(draw[2] for draw in draws)
        assert right[2] < wrong[1]
    decides("C50", "corrected")


def removable(line, base, threshold):
    """The share of heads, in percent, at which the rise first passes a threshold."""
    rises = np.array([0, *((np.array(line["scores"])[:, 0] - base).mean(1) / base.mean())])
    gone = np.array([0, *line["heads"]])
    n = int(np.flatnonzero(rises > threshold)[0])
    part = (threshold - rises[n - 1]) / (rises[n] - rises[n - 1])
    return 100 * (gone[n - 1] + part * (gone[n] - gone[n - 1])) / 270


def test_c23_bert_is_not_here_and_shares_depend_on_threshold_and_model(stored, long, rises):
    alone = rises / stored["random together"]["loss"]
    bases = {33: np.array(stored["whole"])[0], 129: np.array(long["whole"])[0]}
    lines = {
        33: stored["curves"]["gate gradient"],
        129: long["curves"]["gate gradient, 24 windows"],
    }  # one order, scored on passages of two lengths
    matter, gone = {}, {}
    for threshold in (0.005, 0.01, 0.05):
        matter[threshold] = 100 * (alone > threshold).mean()
        for length, line in lines.items():
            gone[length, threshold] = removable(line, bases[length], threshold)
    assert max(matter.values()) < 20  # nowhere do 30% matter
    assert (
        19 < gone[33, 0.01] < 31
    )  # a fifth, or somewhat more, can go within 1% of short passages,
    assert gone[129, 0.01] < gone[33, 0.01] - 5  # and clearly less of long ones
    chance = [
        (np.array(long["curves"][f"random {i}"]["scores"])[0, 0] - bases[129]).mean()
        for i in range(5)
    ]
    assert min(chance) / bases[129].mean() > 0.01  # of random heads not even a tenth
    decides("C23", "not tested")
