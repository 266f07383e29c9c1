from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.pages.site import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from viewer_browser import WatchedPage


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site with live links, of a folder without runs."""
    (tmp_path / "runs").mkdir()
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    yield Site(index, Links())
    index.close()


@pytest.fixture
def watched(chromium: Browser) -> Iterator[WatchedPage]:
    """A page in a browser context of its own."""
    from viewer_browser import WatchedPage

    with chromium.new_context() as context:
        yield WatchedPage(context.new_page())
