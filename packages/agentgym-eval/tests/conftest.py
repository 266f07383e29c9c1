from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

sys.path.insert(0, str(Path(__file__).parent))  # so that worlds are found as `counting_world:...`, here and in children


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A real browser for the tests of one module."""
    from agentgym_envs.worlds.webarena.chromium import INSTALL, on_path
    from playwright.sync_api import Error, sync_playwright

    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=on_path())
        except Error as missing:
            (pytest.fail if os.environ.get("CI") else pytest.skip)(f"{INSTALL} ({missing})")
        yield browser
        browser.close()
