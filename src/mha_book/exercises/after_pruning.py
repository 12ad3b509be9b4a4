"""Checks of the exercises of the chapter on what comes after pruning."""

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
            "a KV head that no query head reads can go": groups,
            "this counts query heads; those of a group share one KV head": int(keep.sum()),
            "this deals the heads out in turn; heads of a group are neighbours": dealt,
            "a group needs its KV head as long as one query head is left": whole,
        }
        where = f"for keep = {bits} and {groups} KV heads "
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
