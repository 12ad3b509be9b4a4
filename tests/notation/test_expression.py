"""What the nodes of expressions share: names of arrays, and renaming of indices."""

from mha_book.notation.expression import Delta, Product, Sum, Tensor, free_indices, key, rename


def test_keys():
    names = [r"\widetilde{X}", "X'", "W_Q'", r"\text{score}_{ij}", r"\lambda", "dL/dW_Q"]
    keys = ["X_widetilde", "X_prime", "W_Q_prime", "score_ij", "lambda_", "dL_dW_Q"]
    assert [key(name) for name in names] == keys


def test_renaming_keeps_bound_indices_apart():
    inner = Sum(("j",), Product((Tensor("A", ("i", "j")), Delta("j", "k"))), True)
    renamed = rename(inner, {"i": "j", "k": "i"})
    assert free_indices(renamed) == ("j", "i")
    assert renamed == Sum(("j'",), Product((Tensor("A", ("j", "j'")), Delta("j'", "i"))), True)
