"""Kernels: attention written for the memory of an accelerator.

:mod:`~mha_book.kernels.flash` is the one to learn from. It is not among the implementations of
:func:`mha_book.dispatch.attend`.
"""
