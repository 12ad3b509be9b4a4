"""Real trained models whose layers are the functions of this package."""

__all__: list[str] = []
