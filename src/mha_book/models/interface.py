"""What every model takes and gives: checked tokens, lengths and gates; records; losses of tokens.

Shapes: ``B`` sequences, ``T`` tokens, ``L`` layers, ``N`` heads, ``H`` width of a head, ``D`` width
of the model, ``V`` tokens in the vocabulary.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mha_book._checks import check, check_floating, check_integers
from mha_book.multihead.layer import Intermediates

__all__ = ["LayerRecord", "check_gates", "check_lengths", "check_tokens", "next_token_losses"]


class LayerRecord(NamedTuple):
    """What one layer saw, and what happened inside its attention.

    Args:
        inputs: ``(B, T, D)``, the hidden states before the layer; SmolLM2 normalises them first.
        intermediates: its queries, keys, values, weights ``(B, N, T, T)`` and per-head outputs
            ``(B, N, T, H)``.
    """

    inputs: Array
    intermediates: Intermediates


def check_tokens(token_ids: Any, lengths: Any, longest: int) -> None:
    """Raise unless ``token_ids`` are ``(B, T)``, ``T <= longest``, and ``lengths`` fit."""
    check_integers(token_ids, "token_ids")
    shape = tuple(token_ids.shape)
    check(len(shape) == 2, "token_ids", "axes (B, T), that is rank 2", f"shape {shape}")
    check(shape[1] <= longest, "token_ids", f"at most {longest} tokens, axis T", f"shape {shape}")
    if lengths is not None:
        check_lengths(lengths, token_ids, "token_ids")


def check_lengths(lengths: Any, like: Any, like_name: str) -> None:
    """Raise unless there is one length for each row of ``like``."""
    check_integers(lengths, "lengths")
    expected = (like.shape[0],)
    what = f"one length for each row of {like_name}, axes (B,) = {expected}"
    check(tuple(lengths.shape) == expected, "lengths", what, f"shape {tuple(lengths.shape)}")


def check_gates(gates: Any, num_layers: int, num_heads: int) -> None:
    """Raise unless ``gates`` are None or have one number for each head of each layer."""
    if gates is not None:
        check_floating(gates, "gates")
        expected = (num_layers, num_heads)
        what = f"one number for each head of each layer, axes (L, N) = {expected}"
        check(tuple(gates.shape) == expected, "gates", what, f"shape {tuple(gates.shape)}")


def next_token_losses(
    logits: Float[Array, "B predicted V"], token_ids: Int[Array, "B T"]
) -> Float[Array, "B predicted"]:
    """Return the negative log-likelihood of each token but the first, in nats.

    Args:
        logits: ``(B, T - 1, V)``, those of the last token left out: nothing follows it.
        token_ids: ``(B, T)``.

    Returns:
        ``(B, T - 1)``.

    Example:
        >>> next_token_losses(jnp.zeros((1, 2, 4)), jnp.array([[3, 0, 2]])).tolist() == [
        ...     [float(jnp.log(4))] * 2
        ... ]
        True
    """
    log_probabilities = jax.nn.log_softmax(logits, axis=-1)
    return -jnp.take_along_axis(log_probabilities, token_ids[:, 1:, None], axis=-1)[..., 0]
