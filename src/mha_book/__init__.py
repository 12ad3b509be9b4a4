"""The package behind the executable book on multi-head attention.

The operations most used are here; every idea has the module that bears its name. An argument of
another type, rank, dtype or size than a function takes raises ``ValueError``, which names it and
says what was expected and what came; docstrings list only what else is raised, and when.
"""

from mha_book.attention.dispatch import attend, attend_with_lse, attention_spec, select
from mha_book.attention.reference import attention_weights, scaled_dot_product_attention
from mha_book.heads import combine_heads, split_heads
from mha_book.masks import Mask, array_mask, causal, padding, segments, sliding_window
from mha_book.multihead.layer import multi_head_attention, multi_head_attention_with_intermediates
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
    "Mask",
    "MultiHeadParams",
    "attend",
    "attend_with_lse",
    "attention_spec",
    "attention_weights",
    "causal",
    "combine_heads",
    "array_mask",
    "fuse",
    "identity_params",
    "init_multi_head",
    "multi_head_attention",
    "multi_head_attention_with_intermediates",
    "padding",
    "scaled_dot_product_attention",
    "select",
    "segments",
    "sliding_window",
    "split_heads",
    "unfuse",
]

__version__ = "0.2.0"
