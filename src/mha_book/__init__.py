"""The package behind the executable book on multi-head attention.

The operations most used are here; every idea has the module that bears its name.
"""

from mha_book.attention import attention_weights, scaled_dot_product_attention
from mha_book.dispatch import attend, choose, describe
from mha_book.heads import combine_heads, split_heads
from mha_book.initialisers import identity_params, init_multi_head
from mha_book.masks import Mask, causal, explicit, padding, sliding_window
from mha_book.multihead import multi_head_attention
from mha_book.parameters import FusedMultiHeadParams, MultiHeadParams, fuse, unfuse

__all__ = [
    "FusedMultiHeadParams",
    "Mask",
    "MultiHeadParams",
    "attend",
    "attention_weights",
    "causal",
    "choose",
    "combine_heads",
    "describe",
    "explicit",
    "fuse",
    "identity_params",
    "init_multi_head",
    "multi_head_attention",
    "padding",
    "scaled_dot_product_attention",
    "sliding_window",
    "split_heads",
    "unfuse",
]

__version__ = "0.1.0"
