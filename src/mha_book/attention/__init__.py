"""One operation, attention, and every way in which the book computes it.

:func:`attend` chooses among the implementations; :mod:`~mha_book.attention.reference` is the one
to read, and the one that all others are held to.
"""

from mha_book.attention.dispatch import attend, attend_with_lse, attention_spec, select
from mha_book.attention.platform import target_platform
from mha_book.attention.reference import attention_weights, scaled_dot_product_attention

__all__ = [
    "attend",
    "attend_with_lse",
    "attention_spec",
    "attention_weights",
    "scaled_dot_product_attention",
    "select",
    "target_platform",
]
