from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

sys.path.insert(0, str(Path(__file__).parent))  # makes `counting_world:...` importable, in child processes too

from fake_endpoint import KEY


@pytest.fixture(scope="module")
def chromium(requires_browser: None) -> Iterator[Browser]:
    """A Chromium browser, shared by the tests of one module."""
    from agentgym_envs.util.chromium import find_chromium
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium())
        yield browser
        browser.close()


@pytest.fixture
def api_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the endpoint's API key, and unset any base URL of the user."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
