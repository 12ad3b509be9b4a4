"""Checks of the exercises of the chapter on the matrices of a head."""

import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Attempt, Check
from mha_book.multihead.layer import multi_head_attention
from mha_book.multihead.parameters import MultiHeadParams

__all__ = ["CHECKS"]


def _effective_rank(attempt: Attempt) -> str | None:
    for values in ([2.0, 2.0, 2.0, 0.0], [3.0, 1.0], [5.0, 0.0, 0.0]):
        sigma = np.array(values)
        got, want = float(attempt(sigma)), (sigma**2).sum() ** 2 / (sigma**4).sum()
        if np.isclose(got, want):
            continue
        shown = ", ".join(f"{value:g}" for value in values)
        hint = ""
        if np.isclose(got, sigma.sum() ** 2 / (sigma**2).sum()):
            hint = "; the sums are those of the squares and of the fourth powers"
        elif np.isclose(got, np.count_nonzero(sigma)):
            hint = "; that is the rank, which counts weak directions in full"
        return f"the effective rank of {shown} is {want:.2f}; got {got:.2f}{hint}"
    return None


def _form(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(0)
    width = 2
    for num_heads, num_kv_heads in ((3, 3), (6, 2)):
        w_q = rng.normal(size=(5, num_heads, width))
        w_k = rng.normal(size=(5, num_kv_heads, width))
        group = num_heads // num_kv_heads
        for h in range(num_heads):
            got, want = np.asarray(attempt(w_q, w_k, h)), w_q[:, h] @ w_k[:, h // group].T
            if got.shape != want.shape:
                return f"expected shape {want.shape}, (D, D); got {got.shape}"
            if np.allclose(got, want):
                continue
            if np.allclose(got, want.T):
                return "this is the transpose: queries belong to the rows, keys to the columns"
            if np.allclose(got * np.sqrt(width), want):
                return "the factor of the scores is no part of this form"
            if np.allclose(got, w_q[:, h] @ w_k[:, h % num_kv_heads].T):
                return (
                    f"with {num_heads} query and {num_kv_heads} key heads, head {h} uses key head "
                    f"{h // group}, not {h % num_kv_heads}"
                )
            return f"the shape is right, the entries of head {h} are not"
    return None


def _double(attempt: Attempt) -> str | None:
    rng = np.random.default_rng(0)
    into = [rng.normal(size=(6, 3, 5)) for _ in range(3)]
    arrays = [*into, rng.normal(size=(3, 5, 6))]
    params = MultiHeadParams(*(jnp.asarray(w, jnp.float32) for w in arrays))
    got, h = attempt(params, 1), 1
    if not isinstance(got, MultiHeadParams):
        return f"expected MultiHeadParams; got {type(got).__name__}"
    if got.w_o.shape[0] != 4 or any(w.shape[1] != 4 for w in got[:3]):
        shapes = [tuple(w.shape) for w in got[:4]]
        return f"expected 4 heads, one more than the 3 given; got the shapes {shapes}"
    for name, mine, theirs in zip(("w_q", "w_k", "w_v"), got[:3], params[:3], strict=True):
        if not np.array_equal(mine[:, 3], theirs[:, h]):
            return f"{name}: the last head should have the projection of head {h}"
    idle = [n for n in (h, 3) if not np.any(np.asarray(got.w_o[n]))]
    if idle:
        return f"head {idle[0]} is idle: its rows of w_o are 0"
    x = jnp.asarray(rng.normal(size=(4, 6)), jnp.float32)
    before, after = (np.asarray(multi_head_attention(p, x)) for p in (params, got))
    if np.allclose(before, after, atol=1e-4 * np.abs(before).max()):
        return None
    hint = ""
    if np.allclose(got.w_o[3], params.w_o[h]) and np.allclose(got.w_o[h], params.w_o[h]):
        hint = f": head {h} is counted twice, since its double adds the same once more"
    return f"the layer computes something else{hint}"


CHECKS: dict[str, Check] = {"effective-rank": _effective_rank, "form": _form, "double": _double}
"""The checks of the chapter, by the name of the exercise."""
