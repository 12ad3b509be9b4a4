"""What the tests of the built pages share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.book.browsing import ARGUMENTS, served


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
