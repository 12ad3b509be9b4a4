"""Checks of the exercises of the chapter on one circuit."""

from collections.abc import Iterator

import numpy as np

from mha_book.exercises import Attempt, exercise, judge


@exercise("form")
def _form(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(0)
    width = 2
    for num_heads, num_kv_heads in ((3, 3), (6, 2)):
        w_q = rng.normal(size=(5, num_heads, width))
        w_k = rng.normal(size=(5, num_kv_heads, width))
        for h in range(num_heads):
            own, other = h * num_kv_heads // num_heads, h % num_kv_heads
            want, dealt = (w_q[:, h] @ w_k[:, k].T for k in (own, other))
            hints = {
                "this is the transpose: queries belong to the rows, keys to the columns": want.T,
                "the factor of the scores is no part of this form": want / np.sqrt(width),
                f"head {h} uses key head {own}, not {other}": dealt,
            }
            where = f"with {num_heads} query and {num_kv_heads} key heads, "
            yield judge(attempt(w_q, w_k, h), want, hints, where)


@exercise("copying")
def _copying(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(1)
    for tokens, width in ((7, 2), (11, 3)):
        embedding, w_v = rng.normal(size=(tokens, 5)), rng.normal(size=(5, width))
        w_o = rng.normal(size=(width, 5)) + w_v.T
        values = np.linalg.eigvals(embedding @ w_v @ w_o @ embedding.T)
        want = values.sum().real / np.abs(values).sum()
        hints = {"divide by the sum of the sizes": values.sum().real}
        where = f"with {tokens} tokens and a head of width {width}, "
        yield judge(attempt(embedding, w_v, w_o), want, hints, where)


@exercise("share")
def _share(attempt: Attempt) -> Iterator[str | None]:
    rng = np.random.default_rng(2)
    query, key = rng.normal(size=(2, 3, 5, 4))
    want = query[:, 4] @ key[:, 1].T
    hints = {"rows are the parts that ask, columns those that answer": want.T}
    yield judge(attempt(query, key, 4, 1), want, hints, "query 4 and key 1: ")
