"""Attention, checked: what is wrong with anybody's attention, in a sentence.

``python -m mha_book.conformance my_module:attention`` prints a table of properties, the conventions
that the implementation follows, and a diagnosis. The same from Python is
:func:`~mha_book.conformance.check.check_attention`, and in a test
:func:`~mha_book.conformance.check.assert_attention`. A model from tokens to logits is tried as a
black box by :func:`~mha_book.conformance.model.check_model`.
"""

from mha_book.conformance.check import assert_attention, check_attention
from mha_book.conformance.model import assert_model, check_model
from mha_book.conformance.mutants import Mutant, mutant
from mha_book.conformance.report import Property, Report

__all__ = [
    "Mutant",
    "Property",
    "Report",
    "assert_attention",
    "assert_model",
    "check_attention",
    "check_model",
    "mutant",
]
