"""The contract suite: every implementation of attention against a loop in float64.

``cases`` says what is varied and draws combinations of it, ``suite`` runs one case, and
``test_contract`` hands the cases to pytest; ``python -m tests.attention.contract`` runs them with
jax, numpy and jaxtyping alone.
"""
