"""Softmax, recognised where a page writes it as a quotient."""

from mha_book.notation.expression import (
    Expression,
    Function,
    Quotient,
    Softmax,
    Sum,
    free_indices,
    rebuild,
    rename,
)

__all__ = ["recognise_softmax"]


def recognise_softmax(node: Expression) -> Expression:
    r"""Return the expression with each quotient that is a softmax as a node of its own.

    :math:`\exp E^j / \sum_{j'} \exp E^{j'}` is one if both arguments are the same up to j and j'.
    """
    node = rebuild(node, recognise_softmax)
    match node:
        case Quotient(Function("exp", argument), Sum((bound,), Function("exp", other))):
            ours, theirs = free_indices(argument), free_indices(other)
            lost = [index for index in ours if index not in theirs]
            fits = len(lost) == 1 and bound not in ours and bound in theirs
            if fits and rename(argument, {lost[0]: bound}) == other:
                return Softmax(argument, lost[0], bound, node.span)
    return node
