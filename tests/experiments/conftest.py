"""What the quick forms of the experiments run on: small models and made-up speeches."""

from types import ModuleType

import numpy as np
import pytest

from experiments import heads, shared
from mha_book.models import minilm, smollm2
from mha_book.models.text import SPLITS, Speech
from tests.models.small import small_minilm, small_smollm2


@pytest.fixture
def small_world(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put small models and made-up speeches in place of what an experiment loads."""

    def use(module: ModuleType, name: str, value: object) -> None:
        monkeypatch.setattr(module, name, lambda *given: value)

    # As many heads a layer as the trained model: stored results have a number for each of its.
    sizes = {"num_layers": 2, "num_heads": 9, "num_kv_heads": 3, "head_dim": 64}
    use(smollm2, "load_smollm2", small_smollm2(**sizes, vocab_size=41_000, d_model=12))
    use(minilm, "load_minilm", small_minilm())
    for module in (shared, heads):
        monkeypatch.setattr(module, "load_speeches", speeches)


def speeches(split: str) -> tuple[Speech, ...]:
    """Eight speeches of made-up sentences, 60 to 240 characters each."""
    rng = np.random.default_rng(SPLITS.index(split))

    def word() -> str:
        return "".join(rng.choice(list("abcdefghij"), rng.integers(2, 9)))

    def text() -> str:
        return " ".join(" ".join(word() for _ in range(24)) + "." for _ in range(24))

    return tuple(Speech(1800 + number, "Nobody", 1, text()) for number in range(8))
