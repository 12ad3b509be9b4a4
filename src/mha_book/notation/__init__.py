r"""Executable index notation: the equation on the page is the program that runs.

``Equation(r"Q^{hia} = X^{ib} W_Q^{hba}")`` reads LaTeX, and is called with arrays. What an index
means is said in :mod:`mha_book.notation.rules`.
"""

from mha_book.notation.equation import Equation, parse_equations, run_loops
from mha_book.notation.page import page_equations
from mha_book.notation.system import System, multi_head_layer

__all__ = [
    "Equation",
    "System",
    "multi_head_layer",
    "page_equations",
    "parse_equations",
    "run_loops",
]
