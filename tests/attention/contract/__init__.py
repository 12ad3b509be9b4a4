"""The contract suite: every implementation of attention against a loop in float64.

``cases`` says what is varied and combines it, ``suite`` runs one case, ``test_contract`` hands
the cases to pytest, and ``python -m tests.attention.contract`` runs them with jax, numpy and
jaxtyping alone. By default every pair of levels of any two factors occurs in some case; the full
product runs by ``pytest -m exhaustive tests/attention/contract`` or by
``python -m tests.attention.contract --full``.
"""
