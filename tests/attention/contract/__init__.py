"""The contract suite: every implementation of attention against a loop in float64.

``cases`` says what is varied and combines it, ``suite`` runs one case, ``test_contract`` hands
the cases to pytest. By default every pair of levels of any two factors occurs in some case; the
full product runs by ``python -m tests.attention.contract --full``, with jax, numpy and jaxtyping
alone.
"""
