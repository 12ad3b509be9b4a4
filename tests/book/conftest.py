"""What the tests of the built pages share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mha_book.storage import read_result
from tests.book.browsing import ARGUMENTS, served
from tests.book.extensions import ROOT


@pytest.fixture(scope="module")
def address(built_book: Path) -> Iterator[str]:
    """Where the built book is served."""
    with served(built_book) as address:
        yield address


@pytest.fixture(scope="module")
def browser(needs_browser: str) -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=needs_browser, args=ARGUMENTS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="session")
def attentions(needs_models: None) -> dict[str, list[Any]]:
    """The attention parameters of all layers of both models, by name."""
    from mha_book.models.minilm import load_minilm
    from mha_book.models.smollm2 import load_smollm2

    models = {"SmolLM2": load_smollm2(), "MiniLM": load_minilm()}
    return {name: [x.attention for x in m.params.layers] for name, m in models.items()}


@pytest.fixture(scope="session")
def layer_peers() -> dict[str, Any]:
    """What is stored of the layers of torch and transformers."""
    return read_result(ROOT / "book" / "data" / "multi-head-layer.json")
