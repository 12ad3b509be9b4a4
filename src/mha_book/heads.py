"""Splitting the feature axis into heads and putting the heads back together.

Shapes: ``T`` positions, ``N`` heads, ``H`` features a head; heads stand before positions.
"""

import jax.numpy as jnp
from jaxtyping import Array, Shaped

from mha_book._checks import check, check_rank, check_size

__all__ = ["LAYOUTS", "combine_heads", "heads_first", "split_heads"]

LAYOUTS = ("NTH", "TNH")
"""The two orders of heads and positions; the last axis is the width."""


def split_heads(
    x: Shaped[Array, "*batch T features"], num_heads: int
) -> Shaped[Array, "*batch N T H"]:
    r"""Cut the last axis into ``num_heads`` equal parts and bring the head axis forward.

    $X'^{hia} = X^{i(hH+a)}$: head $h$ takes the features from $hH$ to $hH + H - 1$ of every
    position $i$. The reshape cuts, the transpose orders; a reshape straight to the final shape
    has the right shape and the wrong entries.

    Args:
        x: array of shape ``(…, T, N·H)``, any dtype.
        num_heads: ``N``, the number of heads; it must divide the last axis.

    Returns:
        Array of shape ``(…, N, T, H)``.

    Example:
        >>> x = jnp.arange(8).reshape(2, 4)
        >>> split_heads(x, 2).tolist()
        [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]
    """
    check_rank(x, "x", "(…, T, N·H)", 2)
    *batch, length, features = x.shape
    what = f"a positive integer that divides the last axis of x, {features}"
    check_size(num_heads, "num_heads", 1, what)
    check(features % num_heads == 0, "num_heads", what, num_heads)
    cut = jnp.reshape(x, (*batch, length, num_heads, features // num_heads))  # (…, T, N, H)
    return jnp.swapaxes(cut, -3, -2)  # (…, N, T, H)


def combine_heads(x: Shaped[Array, "*batch N T H"]) -> Shaped[Array, "*batch T features"]:
    r"""Lay the heads of each position side by side: the inverse of :func:`split_heads`.

    $X^{i(hH+a)} = X'^{hia}$.

    Args:
        x: array of shape ``(…, N, T, H)``, any dtype.

    Returns:
        Array of shape ``(…, T, N·H)``.

    Example:
        >>> x = jnp.arange(8).reshape(2, 4)
        >>> bool((combine_heads(split_heads(x, 2)) == x).all())
        True
    """
    check_rank(x, "x", "(…, N, T, H)", 3)
    *batch, num_heads, length, width = x.shape
    return jnp.reshape(jnp.swapaxes(x, -3, -2), (*batch, length, num_heads * width))


def heads_first(x: Shaped[Array, "*batch first second H"], layout: str) -> Shaped[Array, "..."]:
    """Bring an array from ``layout`` to heads before positions; the same call brings it back.

    Args:
        x: ``(…, N, T, H)`` for layout "NTH", ``(…, T, N, H)`` for layout "TNH".
        layout: one of :data:`LAYOUTS`.

    Returns:
        ``x`` itself, or ``x`` with the two axes exchanged.

    Example:
        >>> heads_first(jnp.ones((5, 2, 3)), "TNH").shape
        (2, 5, 3)
    """
    check(layout in LAYOUTS, "layout", f"one of {', '.join(LAYOUTS)}", repr(layout))
    if layout == "NTH":
        return x
    check_rank(x, "x", "(…, T, N, H)", 3)
    return jnp.swapaxes(x, -3, -2)
