"""The multi-head layer: its parameters, its forward and backward pass, and its variants."""

from mha_book.multihead.layer import (
    Intermediates,
    multi_head_attention,
    multi_head_attention_with_intermediates,
    project_heads,
)
from mha_book.multihead.parameters import (
    FusedMultiHeadParams,
    MultiHeadParams,
    fuse,
    identity_params,
    init_multi_head,
    unfuse,
)

__all__ = [
    "FusedMultiHeadParams",
    "Intermediates",
    "MultiHeadParams",
    "fuse",
    "identity_params",
    "init_multi_head",
    "multi_head_attention",
    "multi_head_attention_with_intermediates",
    "project_heads",
    "unfuse",
]
