"""The measures that the book takes of every head, by name: meaning, unit, range, pattern.

Shapes: ``B`` texts, ``T`` tokens.
"""

from typing import NamedTuple

from jaxtyping import Array, Bool, Int

from mha_book.specialization.patterns import Pattern, distance
from mha_book.specialization.targets import (
    at_offset,
    in_window,
    on_first,
    on_flagged,
    on_same_token,
    on_successor,
)

__all__ = ["MEASURES", "Measure", "text_patterns"]


class Measure(NamedTuple):
    """What a measure is.

    Args:
        meaning: in words.
        unit: of its values.
        lowest: the least value.
        highest: the greatest, as text where it depends on the length.
    """

    meaning: str
    unit: str
    lowest: float
    highest: float | str


MEASURES = {
    "previous": Measure("attention on the token before", "share", 0.0, 1.0),
    "self": Measure("attention on the token itself", "share", 0.0, 1.0),
    "next": Measure("attention on the token after", "share", 0.0, 1.0),
    "first": Measure("attention on the first token", "share", 0.0, 1.0),
    "special": Measure("attention on flagged tokens", "share", 0.0, 1.0),
    "local": Measure("attention within the window", "share", 0.0, 1.0),
    "same token": Measure("attention on the same token elsewhere", "share", 0.0, 1.0),
    "induction": Measure("attention on what followed the same token", "share", 0.0, 1.0),
    "distance": Measure("mean distance attended over", "tokens", 0.0, "length - 1"),
    "entropy": Measure("entropy over the greatest possible", "share", 0.0, 1.0),
}
"""The measures of :func:`text_patterns` and the entropy, by name."""


def text_patterns(
    visible: Bool[Array, "B T T"],
    token_ids: Int[Array, "B T"],
    special: Bool[Array, "B T"] | None = None,
    window: int = 4,
) -> dict[str, Pattern]:
    """Return the patterns of :data:`MEASURES` for texts; entropy is measured beside them.

    Args:
        visible: ``(B, T, T)``, see :func:`~mha_book.specialization.patterns.visible_pairs`.
        token_ids: ``(B, T)``.
        special: ``(B, T)``, the tokens that "special" is about; None to leave it out.
        window: how far the local window reaches, in tokens.

    Returns:
        Patterns by name. For a causal model no row counts for "next".

    Example:
        >>> import jax.numpy as jnp
        >>> pairs = jnp.ones((1, 3, 3), bool)
        >>> sorted(text_patterns(pairs, jnp.array([[1, 2, 3]])))[:3]
        ['distance', 'first', 'induction']
    """
    patterns = {
        "previous": at_offset(visible, -1),
        "self": at_offset(visible, 0),
        "next": at_offset(visible, 1),
        "first": on_first(visible),
        "local": in_window(visible, window),
        "same token": on_same_token(visible, token_ids),
        "induction": on_successor(visible, token_ids),
        "distance": distance(visible),
    }
    return patterns if special is None else {**patterns, "special": on_flagged(visible, special)}
