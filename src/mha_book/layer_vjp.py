r"""The backward pass of each piece of the layer around attention, written out by hand.

A gradient is called ``d_`` and the name of what it belongs to; each function takes the gradient of
a result and gives those of what went in. Letters: ``T`` positions, ``D`` width of the model, ``N``
heads, ``H`` and ``C`` their widths. Dropout needs no function: it multiplies by factors, and so
does its gradient.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from mha_book.heads import combine_heads, split_heads
from mha_book.rope import rotate

__all__ = ["combine_outputs_vjp", "gates_vjp", "over_heads", "project_heads_vjp", "rotate_vjp"]


def project_heads_vjp(
    x: Float[Array, "*batch T D"],
    weight: Float[Array, "D N H"],
    d_heads: Float[Array, "*batch N T H"],
) -> tuple[Array, Array, Array]:
    r"""Return the gradients of input, weight and bias, from $Q^{hia} = X^{ib} W^{bha} + b^{ha}$.

    $dX^{ib} = dQ^{hia} W^{bha}$, $dW^{bha} = X^{ib} dQ^{hia}$, $db^{ha} = \sum_i dQ^{hia}$; for one
    head $dX = dQ^h W^{h\top}$, summed over the heads, and $dW^h = X^\top dQ^h$. Batch entries are
    summed like positions.

    Args:
        x: ``(…, T, D)``.
        weight: ``(D, N, H)``.
        d_heads: ``(…, N, T, H)``.

    Returns:
        ``(…, T, D)``, ``(D, N, H)`` and ``(N, H)``.

    Example:
        >>> x, weight, d_heads = jnp.ones((5, 4)), jnp.ones((4, 2, 3)), jnp.ones((2, 5, 3))
        >>> [d.shape for d in project_heads_vjp(x, weight, d_heads)]
        [(5, 4), (4, 2, 3), (2, 3)]
    """
    flat = combine_heads(d_heads)  # (…, T, N·H)
    d_x = jnp.matmul(flat, jnp.reshape(weight, (weight.shape[0], -1)).T)
    d_weight = jnp.einsum("tf,td->fd", _rows(flat), _rows(x)).T  # the small result is turned
    d_bias = jnp.sum(_rows(flat), axis=0)
    return d_x, jnp.reshape(d_weight, weight.shape), jnp.reshape(d_bias, weight.shape[1:])


def combine_outputs_vjp(
    heads: Float[Array, "*batch N T C"],
    w_o: Float[Array, "N C D"],
    d_output: Float[Array, "*batch T D"],
) -> tuple[Array, Array, Array]:
    r"""Return the gradients of heads, weight and bias, from $Y^{id} = O^{hic} W_O^{hcd} + b^{d}$.

    $dO^{hic} = dY^{id} W_O^{hcd}$, $dW_O^{hcd} = O^{hic} dY^{id}$, $db^{d} = \sum_i dY^{id}$.

    Args:
        heads: ``(…, N, T, C)``, after dropout and gates.
        w_o: ``(N, C, D)``.
        d_output: ``(…, T, D)``.

    Returns:
        ``(…, N, T, C)``, ``(N, C, D)`` and ``(D,)``.

    Example:
        >>> heads, w_o, d_output = jnp.ones((2, 5, 3)), jnp.ones((2, 3, 4)), jnp.ones((5, 4))
        >>> [d.shape for d in combine_outputs_vjp(heads, w_o, d_output)]
        [(2, 5, 3), (2, 3, 4), (4,)]
    """
    flat = jnp.reshape(w_o, (-1, w_o.shape[-1]))  # (N·C, D)
    d_heads = split_heads(jnp.matmul(d_output, flat.T), w_o.shape[0])
    d_weight = jnp.einsum("tf,td->fd", _rows(combine_heads(heads)), _rows(d_output))
    return d_heads, jnp.reshape(d_weight, w_o.shape), jnp.sum(_rows(d_output), axis=0)


def gates_vjp(
    heads: Float[Array, "*batch N T C"],
    gates: Float[Array, " N"],
    d_gated: Float[Array, "*batch N T C"],
) -> tuple[Array, Array]:
    r"""Return the gradients of heads and gates, from $\tilde O^{hic} = g^h O^{hic}$.

    $dO^{hic} = g^h\, d\tilde O^{hic}$ and $dg^h = \sum_{ic} O^{hic}\, d\tilde O^{hic}$: how much
    the loss would change with a little more of head $h$.

    Args:
        heads: ``(…, N, T, C)``.
        gates: ``(N,)``.
        d_gated: ``(…, N, T, C)``.

    Returns:
        ``(…, N, T, C)`` and ``(N,)``.

    Example:
        >>> d_heads, d_gates = gates_vjp(jnp.ones((2, 5, 3)), jnp.ones(2), jnp.ones((2, 5, 3)))
        >>> d_gates.tolist()
        [15.0, 15.0]
    """
    head_axis = heads.ndim - 3
    others = tuple(axis for axis in range(heads.ndim) if axis != head_axis)
    return d_gated * over_heads(gates, heads.ndim), jnp.sum(heads * d_gated, axis=others)


def rotate_vjp(
    angles: Float[Array, "*angle_batch T pairs"], d_rotated: Float[Array, "*batch T H"]
) -> Float[Array, "*batch T H"]:
    r"""Return the gradient before a rotation: turn the gradient back by the same angles.

    A rotation is linear, $y = R x$, so that $dx = R^\top dy$, and $R^\top = R^{-1}$.

    Args:
        angles: ``(T, H/2)``, as :func:`~mha_book.rope.rotate` takes them.
        d_rotated: ``(…, T, H)``.

    Returns:
        ``(…, T, H)``.

    Example:
        >>> quarter_turn = jnp.array([[jnp.pi / 2]])
        >>> rotate_vjp(quarter_turn, jnp.array([[0.0, 1.0]])).round(3).tolist()
        [[1.0, -0.0]]
    """
    return rotate(d_rotated, -angles)


def over_heads(gates: Float[Array, " N"], rank: int) -> Float[Array, "..."]:
    """Give one number for each head the axes of an array ``(…, N, T, C)``.

    Args:
        gates: ``(N,)``.
        rank: rank of the array.

    Returns:
        ``(…, N, 1, 1)`` with leading axes 1.

    Example:
        >>> over_heads(jnp.ones(2), 4).shape
        (1, 2, 1, 1)
    """
    return jnp.reshape(gates, (1,) * (rank - 3) + (-1, 1, 1))


def _rows(x: Array) -> Array:
    """Fold all axes but the last: ``(B·T, X)``."""
    return jnp.reshape(x, (-1, x.shape[-1]))
