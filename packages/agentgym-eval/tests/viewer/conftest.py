from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from starlette.testclient import TestClient
from viewer_runs import GetPage

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
def get_page(site: Site) -> GetPage:
    """`get_page(path, status=200)` indexes the runs and returns a page of the site."""
    browser = TestClient(make_app(site), "http://127.0.0.1:8000")

    def page(path: str, status: int = 200) -> str:
        site.index.refresh()
        response = browser.get(path)
        assert response.status_code == status, response.text
        return response.text

    return page


@pytest.fixture
def watched(chromium: Browser) -> Iterator[WatchedPage]:
    """A page in a browser context of its own."""
    from viewer_browser import WatchedPage

    with chromium.new_context() as context:
        yield WatchedPage(context.new_page())
