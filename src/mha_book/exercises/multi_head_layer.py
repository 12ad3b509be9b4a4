"""Checks of the exercises of the chapter on the multi-head layer."""

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np

from mha_book.exercises import Attempt, exercise
from mha_book.multihead.parameters import FusedMultiHeadParams, MultiHeadParams, fuse


def _params(d_model: int, num_heads: int, width: int) -> MultiHeadParams:
    """Parameters without a pattern."""
    rng = np.random.default_rng(0)
    into = [rng.normal(size=(d_model, num_heads, width)) for _ in range(3)]
    arrays = [*into, rng.normal(size=(num_heads, width, d_model))]
    return MultiHeadParams(*(jnp.asarray(w, jnp.float32) for w in arrays))


@exercise("best-one-head")
def _best_one_head(attempt: Attempt) -> Iterator[str | None]:
    matrix = np.asarray(attempt(), np.float64)
    if matrix.shape != (2, 2):
        yield f"expected a matrix of shape (2, 2); got shape {matrix.shape}"
    outputs = np.stack([matrix[0], matrix[1], matrix.mean(axis=0)])
    errors = np.abs(outputs - np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])).max(axis=1)
    worst = int(errors.argmax())
    if errors[worst] <= 0.26:
        return
    name = ("pp", "qq", "pq")[worst]
    hint = (
        "; the row of p is what pp returns, the row of q what qq returns, their mean what pq does"
    )
    yield f"the error for {name} is {errors[worst]:.2f}, more than 0.26{hint}"


@exercise("reorder")
def _reorder(attempt: Attempt) -> Iterator[str | None]:
    params, order = _params(d_model=6, num_heads=3, width=5), [2, 0, 1]
    got = attempt(params, order)
    if not isinstance(got, MultiHeadParams):
        yield f"expected MultiHeadParams; got {type(got).__name__}"
    for name, axis in (("w_q", 1), ("w_k", 1), ("w_v", 1), ("w_o", 0)):
        mine, theirs = np.asarray(getattr(got, name)), np.asarray(getattr(params, name))
        want = np.take(theirs, order, axis=axis)
        if mine.shape != want.shape:
            yield f"{name}: expected shape {want.shape}; got {mine.shape}"
        if np.array_equal(mine, theirs):
            yield f"{name} is still in the old order; its heads lie on axis {axis}"
        if np.array_equal(mine, np.take(theirs, np.argsort(order), axis=axis)):
            yield f"{name}: head order[n] is where head n should be; it is the other way round"
        if not np.array_equal(mine, want):
            yield f"{name}: its head 0 should be head {order[0]} of the given one"


@exercise("from-gpt2")
def _from_gpt2(attempt: Attempt) -> Iterator[str | None]:
    num_heads, d_model = 3, 6
    params = _params(d_model, num_heads, d_model // num_heads)
    flat = [jnp.reshape(w, (d_model, d_model)) for w in params[:3]]
    c_attn, c_proj = jnp.concatenate(flat, axis=1), jnp.reshape(params.w_o, (d_model, d_model))
    want, got = fuse(params), attempt(c_attn, c_proj, num_heads)
    if not isinstance(got, FusedMultiHeadParams):
        yield f"expected FusedMultiHeadParams; got {type(got).__name__}"
    for name in ("w_qkv", "w_o"):
        mine, theirs = np.asarray(getattr(got, name)), np.asarray(getattr(want, name))
        if mine.shape != theirs.shape:
            yield f"{name}: expected shape {theirs.shape}; got {mine.shape}"
        if not np.array_equal(mine, theirs):
            yield f"{name}: the shape is right, the entries are not; a head is a run of features"
