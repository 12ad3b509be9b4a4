"""What the models say of each of their layers when asked for intermediates."""

from typing import NamedTuple

from jaxtyping import Array

from mha_book.multihead.layer import Intermediates

__all__ = ["LayerRecord"]


class LayerRecord(NamedTuple):
    """What one layer saw, and what happened inside its attention.

    Args:
        inputs: ``(B, T, D)``, the hidden states before the layer; SmolLM2 normalises them first.
        intermediates: its queries, keys, values, weights ``(B, N, T, T)`` and per-head outputs
            ``(B, N, T, H)``.
    """

    inputs: Array
    intermediates: Intermediates
