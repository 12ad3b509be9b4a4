"""Settings and sizes as named tuples, written as their usual values."""

from collections import namedtuple
from typing import Any

__all__ = ["fields"]


def fields(required: str = "", **usual: Any) -> Any:
    """Make a named tuple of fields that must be given, by name, and of others with their values."""
    return namedtuple("Fields", [*required.split(), *usual], defaults=usual.values())
