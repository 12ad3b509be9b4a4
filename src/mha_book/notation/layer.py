r"""The multi-head layer as a system of equations, in the book's notation."""

from typing import Any

import jax.numpy as jnp
from jax import Array

from mha_book._checks import check, check_flag, check_rank
from mha_book.notation.system import System

__all__ = ["GROUPED_LAYER", "LAYER", "LAYER_WITH_BIASES", "layer_arrays", "multi_head_layer"]

LAYER = r"""
Q^{hia} = X^{ib} W_Q^{hba} \\
K^{hja} = X^{jb} W_K^{hba} \\
V^{hjc} = X^{jb} W_V^{hbc} \\
S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} K^{hja} \\
A^{hij} = \frac{\exp(S^{hij})}{\sum_{j'} \exp(S^{hij'})} \\
O^{hic} = A^{hij} V^{hjc} \\
Y^{id} = O^{hic} W_O^{hcd}
"""
"""The layer: self-attention with as many key/value heads as query heads."""

LAYER_WITH_BIASES = r"""
Q^{hia} = X^{ib} W_Q^{hba} + b_Q^{ha} \\
K^{hja} = X^{jb} W_K^{hba} + b_K^{ha} \\
V^{hjc} = X^{jb} W_V^{hbc} + b_V^{hc} \\
S^{hij} = \frac{1}{\sqrt{d_k}} Q^{hia} K^{hja} \\
A^{hij} = \frac{\exp(S^{hij})}{\sum_{j'} \exp(S^{hij'})} \\
O^{hic} = A^{hij} V^{hjc} \\
Y^{id} = O^{hic} W_O^{hcd} + b_O^{d}
"""
"""The layer with a bias for each projection."""

GROUPED_LAYER = r"""
Q^{kgia} = X^{ib} W_Q^{kgba} \\
K^{kja} = X^{jb} W_K^{kba} \\
V^{kjc} = X^{jb} W_V^{kbc} \\
S^{kgij} = \frac{1}{\sqrt{d_k}} Q^{kgia} K^{kja} \\
A^{kgij} = \frac{\exp(S^{kgij})}{\sum_{j'} \exp(S^{kgij'})} \\
O^{kgic} = A^{kgij} V^{kjc} \\
Y^{id} = O^{kgic} W_O^{kgcd}
"""
"""The layer with query heads in groups: k counts the key/value heads, g the queries of each."""


def multi_head_layer(
    *, use_bias: bool = False, grouped: bool = False, additive_mask: bool = False
) -> System:
    r"""Return the layer as a system: Q, K, V, S, A, O, Y from X and the weights.

    Args:
        use_bias: whether the projections have biases.
        grouped: whether key/value heads are shared, without biases.
        additive_mask: whether :math:`M^{ij}` is added to the scores of every head.

    Returns:
        The system, in which ``d_k`` is the size of ``a``.

    Raises:
        ValueError: ``grouped`` together with ``use_bias``.

    Example:
        >>> layer = multi_head_layer()
        >>> layer.inputs
        ('X', 'W_Q', 'W_K', 'W_V', 'W_O')
        >>> weights = ["W_Q", "W_K", "W_V", "W_O"]
        >>> sum(layer.parameters(weights, h=8, a=64, b=512, c=64, d=512).values())
        1048576
    """
    flags = {"use_bias": use_bias, "grouped": grouped, "additive_mask": additive_mask}
    for name, flag in flags.items():
        check_flag(flag, name)
    if grouped and use_bias:
        raise ValueError("grouped, use_bias: expected one of them, got both")
    latex = GROUPED_LAYER if grouped else LAYER_WITH_BIASES if use_bias else LAYER
    if additive_mask:
        heads = "kg" if grouped else "h"
        scores = rf"Q^{{{heads}ia}} K^{{{heads[0]}ja}}"
        latex = latex.replace(scores, f"{scores} + M^{{ij}}")
    broadcast = ("i", "j", "h", "k", "g") if use_bias or additive_mask else ()
    return System.parse(latex, broadcast=broadcast)


def layer_arrays(params: Any, x: Array) -> dict[str, Array]:
    r"""Return the operands of :func:`multi_head_layer` from the package's parameters.

    The package holds :math:`W_Q` as ``(D, N, H)``; the equations have the head first. With fewer
    key/value heads than query heads the operands are those of the grouped layer.

    Args:
        params: separate parameters, a :class:`~mha_book.multihead.parameters.MultiHeadParams`.
        x: ``(T, D)``.

    Returns:
        The arrays by their names in the system.
    """
    is_separate = all(hasattr(params, name) for name in ("w_q", "w_k", "w_v", "w_o"))
    check(is_separate, "params", "a MultiHeadParams", type(params).__name__)
    check_rank(x, "x", "(T, D)", 2)
    heads, kv_heads = params.w_q.shape[1], params.w_k.shape[1]

    def first(w: Array) -> Array:
        return jnp.moveaxis(w, 1, 0)

    arrays = {"X": x, "W_Q": first(params.w_q), "W_K": first(params.w_k), "W_V": first(params.w_v)}
    arrays["W_O"] = params.w_o
    if kv_heads != heads:
        for name in ("W_Q", "W_O"):
            arrays[name] = arrays[name].reshape(kv_heads, -1, *arrays[name].shape[1:])
    biases = {"b_Q": params.b_q, "b_K": params.b_k, "b_V": params.b_v, "b_O": params.b_o}
    return arrays | {name: bias for name, bias in biases.items() if bias is not None}
