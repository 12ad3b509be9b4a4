"""Checks of the exercises of the chapter on what comes after pruning."""

import math

import numpy as np

from mha_book.exercises import Attempt, Check

__all__ = ["CHECKS"]


def _key_heads(attempt: Attempt) -> str | None:
    cases = (
        ("101010", 2, 2),
        ("110000000", 3, 1),
        ("100100100", 3, 3),
        ("000000000", 3, 0),
        ("0110", 4, 2),
        ("0001", 1, 1),
    )
    for bits, groups, want in cases:
        keep = np.array([bit == "1" for bit in bits])
        got = attempt(keep.copy(), groups)
        if got == want:
            continue
        where = f"for keep = {bits} and {groups} key heads"
        if got == groups:
            return f"{where} a key head that no query head reads can go"
        if got == int(keep.sum()):
            return f"{where} this counts query heads; those of a group share one key head"
        size = len(bits) // groups
        if got == int(keep.reshape(size, groups).any(axis=0).sum()):
            return f"{where} this deals the heads out in turn; heads of a group are neighbours"
        if got == int(keep.reshape(groups, size).all(axis=1).sum()):
            return f"{where} a group needs its key head as long as one query head is left"
        return f"{where} expected {want}; got {got}"
    return None


def _won_back(attempt: Attempt) -> str | None:
    for whole, pruned in (
        ((3.5, 3.1), (3.75, 3.3)),
        ((1.9, 1.8), (2.4, 1.9)),
        ((2.0, 2.0), (3.0, 2.5)),
    ):
        got = attempt(whole, pruned)
        before, after = pruned[0] - whole[0], pruned[1] - whole[1]
        where = f"for whole = {whole} and pruned = {pruned}"
        if abs(float(got) - (1 - after / before)) < 1e-6:
            continue
        for value, said in (
            ((pruned[0] - pruned[1]) / before, "this counts what the whole model gained as well"),
            (after / before, "this is the share that is still missing"),
            (before - after, "these are nats: divide by what the removal cost at first"),
            (after, "this is what is still missing, in nats"),
        ):
            if abs(float(got) - value) < 1e-6:
                return f"{where} {said}"
        return f"{where} expected {1 - after / before:.3f}; got {float(got):.3f}"
    return None


def _needed_share(attempt: Attempt) -> str | None:
    for attention, faster in ((0.5, 1.25), (0.75, 1.1), (0.7, 1.3), (0.9, 1.5)):
        got = attempt(attention, faster)
        share = (1 - 1 / faster) / (1 - attention)
        where = f"for attention = {attention} and faster = {faster}"
        if share > 1:
            if got is not None:
                return f"{where} no share up to 1 is enough: expected None, got {float(got):.3f}"
            continue
        if got is None:
            return f"{where} a share of {share:.3f} is enough; got None"
        if abs(float(got) - share) < 1e-6:
            continue
        if abs(float(got) - (faster - 1) / (1 - attention)) < 1e-6:
            return f"{where} a model 1.25 times as fast takes 1 / 1.25 of its time, not 0.75"
        if abs(float(got) - (1 - 1 / faster) / attention) < 1e-6:
            return f"{where} what is saved of the attention is 1 - attention"
        return f"{where} expected {share:.3f}; got {float(got):.3f}"
    return None


def _open_gate(attempt: Attempt) -> str | None:
    def sigmoid(x: float) -> float:
        return 1 / (1 + math.exp(-x))

    for log_alpha, beta, gamma, zeta in ((0.7, 2 / 3, -0.1, 1.1), (1.5, 0.5, -0.2, 1.4)):
        got = attempt(log_alpha, beta, gamma, zeta)
        if not isinstance(got, tuple) or len(got) != 2:
            return "expected two probabilities, of an open gate and of a gate of 1"
        is_open, is_full = (float(x) for x in got)
        shift, full_shift = math.log(-gamma / zeta), math.log((1 - gamma) / (zeta - 1))
        where = f"for log alpha = {log_alpha}, beta = {beta:.2f}, gamma = {gamma}, zeta = {zeta}"
        for value, said in (
            (sigmoid(log_alpha), "this is s without noise exceeding 1/2: the gate is stretched"),
            (
                sigmoid(log_alpha + beta * shift),
                "this is the probability of the other sign of the shift",
            ),
            (
                sigmoid(log_alpha - shift),
                "the noise is divided by beta: the threshold has the factor beta",
            ),
            (
                1 - sigmoid(log_alpha - beta * shift),
                "this is the probability that the gate is closed",
            ),
        ):
            if abs(is_open - value) < 1e-6:
                return f"{where} {said}"
        if not abs(is_open - sigmoid(log_alpha - beta * shift)) <= 1e-6:
            return f"{where} P(g > 0) is {sigmoid(log_alpha - beta * shift):.4f}; got {is_open:.4f}"
        full = sigmoid(log_alpha - beta * full_shift)
        if abs(is_full - (1 - full)) < 1e-6:
            return f"{where} the second is the probability that the gate is below 1"
        if not abs(is_full - full) <= 1e-6:
            return f"{where} P(g = 1) is {full:.4f}; got {is_full:.4f}"
    return None


CHECKS: dict[str, Check] = {
    "key-heads": _key_heads,
    "won-back": _won_back,
    "needed-share": _needed_share,
    "open-gate": _open_gate,
}
"""The checks of the chapter on what comes after pruning, by the name of the exercise."""
