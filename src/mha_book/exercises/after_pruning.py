"""Checks of the exercises of the chapter on what comes after pruning."""

import math
from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("key-heads")
def _key_heads(attempt: Attempt) -> Iterator[str | None]:
    for bits, groups, want in (
        ("101010", 2, 2), ("110000000", 3, 1), ("100100100", 3, 3), ("000000000", 3, 0),
        ("0110", 4, 2), ("0001", 1, 1),
    ):  # fmt: skip
        keep = np.array([bit == "1" for bit in bits])
        dealt = int(keep.reshape(len(bits) // groups, groups).any(axis=0).sum())
        whole = int(keep.reshape(groups, -1).all(axis=1).sum())
        hints = {
            "a key head that no query head reads can go": groups,
            "this counts query heads; those of a group share one key head": int(keep.sum()),
            "this deals the heads out in turn; heads of a group are neighbours": dealt,
            "a group needs its key head as long as one query head is left": whole,
        }
        where = f"for keep = {bits} and {groups} key heads "
        yield judge(attempt(keep.copy(), groups), want, hints, where)


@exercise("won-back")
def _won_back(attempt: Attempt) -> Iterator[str | None]:
    for whole, pruned in (
        ((3.5, 3.1), (3.75, 3.3)),
        ((1.9, 1.8), (2.4, 1.9)),
        ((2.0, 2.0), (3.0, 2.5)),
    ):
        before, after = pruned[0] - whole[0], pruned[1] - whole[1]
        gained = (pruned[0] - pruned[1]) / before
        hints = {
            "this counts what the whole model gained as well": gained,
            "this is the share that is still missing": after / before,
            "these are nats: divide by what the removal cost at first": before - after,
            "this is what is still missing, in nats": after,
        }
        where = f"for whole = {whole} and pruned = {pruned} "
        yield judge(attempt(whole, pruned), 1 - after / before, hints, where)


@exercise("needed-share")
def _needed_share(attempt: Attempt) -> Iterator[str | None]:
    for attention, faster in ((0.5, 1.25), (0.75, 1.1), (0.7, 1.3), (0.9, 1.5)):
        share, got = (1 - 1 / faster) / (1 - attention), attempt(attention, faster)
        where = f"for attention = {attention} and faster = {faster} "
        if share > 1 or got is None:
            enough = f"no share up to 1 is enough: expected None, got {got}"
            if (got is None) != (share > 1):
                yield where + (f"a share of {share:.3f} is enough" if got is None else enough)
            continue
        less = (faster - 1) / (1 - attention)
        hints = {
            "a model 1.25 times as fast takes 1 / 1.25 of its time, not 0.75": less,
            "what is saved of the attention is 1 - attention": (1 - 1 / faster) / attention,
        }
        yield judge(got, share, hints, where)


@exercise("open-gate")
def _open_gate(attempt: Attempt) -> Iterator[str | None]:
    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    for log_alpha, beta, gamma, zeta in ((0.7, 2 / 3, -0.1, 1.1), (1.5, 0.5, -0.2, 1.4)):
        got = attempt(log_alpha, beta, gamma, zeta)
        if not isinstance(got, tuple) or len(got) != 2:
            yield "expected two probabilities, of an open gate and of a gate of 1"
        shift, full_shift = math.log(-gamma / zeta), math.log((1 - gamma) / (zeta - 1))
        is_open, below = (sigmoid(log_alpha - beta * x) for x in (shift, full_shift))
        where = f"for log alpha = {log_alpha}, beta = {beta:.2f}, gamma = {gamma}, zeta = {zeta} "
        factor = "the noise is divided by beta: the threshold has the factor beta"
        other = "this is the probability of the other sign of the shift"
        hints = {
            "this is s without noise exceeding 1/2: the gate is stretched": sigmoid(log_alpha),
            other: sigmoid(log_alpha + beta * shift),
            factor: sigmoid(log_alpha - shift),
            "this is the probability that the gate is closed": 1 - is_open,
        }
        yield judge(got[0], is_open, hints, f"{where}P(g > 0) is the first: ")
        hints = {"the second is the probability that the gate is below 1": 1 - below}
        yield judge(got[1], below, hints, f"{where}P(g = 1) is the second: ")
