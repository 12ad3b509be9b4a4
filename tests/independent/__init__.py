"""A second hand: headline measurements once more, in PyTorch and NumPy.

Written from the papers' definitions and from the models' own files. Nothing of the book's package
is imported here, and no JAX; what is shared with the book's experiments is which texts they read.

    python -m tests.independent [FILE]

measures everything (less than two minutes of one core) and writes
``book/data/independent.json``, which the page *status* shows next to the book's own numbers.
"""
