"""Checks of what every model is given: tokens, lengths and gates."""

from typing import Any

from mha_book._checks import check, check_floating, check_integers

__all__ = ["check_gates", "check_lengths", "check_tokens"]


def check_tokens(token_ids: Any, lengths: Any, longest: int) -> None:
    """Raise unless ``token_ids`` are ``(B, T)``, ``T <= longest``, and ``lengths`` fit."""
    check_integers(token_ids, "token_ids")
    shape = tuple(token_ids.shape)
    check(len(shape) == 2, "token_ids", "axes (B, T), that is rank 2", f"shape {shape}")
    check(shape[1] <= longest, "token_ids", f"at most {longest} tokens, axis T", f"shape {shape}")
    if lengths is not None:
        check_lengths(lengths, token_ids, "token_ids")


def check_lengths(lengths: Any, like: Any, like_name: str) -> None:
    """Raise unless there is one length for each row of ``like``."""
    check_integers(lengths, "lengths")
    expected = (like.shape[0],)
    what = f"one length for each row of {like_name}, axes (B,) = {expected}"
    check(tuple(lengths.shape) == expected, "lengths", what, f"shape {tuple(lengths.shape)}")


def check_gates(gates: Any, num_layers: int, num_heads: int) -> None:
    """Raise unless ``gates`` are None or have one number for each head of each layer."""
    if gates is not None:
        check_floating(gates, "gates")
        expected = (num_layers, num_heads)
        what = f"one number for each head of each layer, axes (L, N) = {expected}"
        check(tuple(gates.shape) == expected, "gates", what, f"shape {tuple(gates.shape)}")
