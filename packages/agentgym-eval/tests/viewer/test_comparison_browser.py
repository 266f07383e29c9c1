"""Tests of the table of several runs in a real browser: the choice of evaluations, and the table in exports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.server.export import export
from playwright.sync_api import Locator, Page, expect
from viewer_browser import PHONE, WatchedPage, serve_index, width_of
from viewer_runs import episode, write_evaluation_run, write_training_run

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    folder = tmp_path_factory.mktemp("viewer")
    write_evaluation_run(folder / "runs" / "base", [episode(f"t/{n}", 0, n < 2) for n in range(4)])
    write_training_run(folder / "runs" / "long", split="dev", with_test=True)
    write_training_run(folder / "runs" / "short", 2, split="dev")
    index = Index(folder / "runs", folder / "index.sqlite")
    index.refresh()
    yield index
    index.close()


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, watched: WatchedPage) -> Iterator[Page]:
    """A page on a phone; after the test, its width and console messages are checked."""
    watched.page.emulate_media(color_scheme=request.param)
    watched.page.set_viewport_size(PHONE)
    yield watched.page
    assert width_of(watched.page) <= PHONE["width"]
    assert watched.messages == []


def row(page: Page, name: str) -> Locator:
    results = page.get_by_role("region", name="Results")
    return results.locator("tbody tr", has=page.get_by_role("link", name=name, exact=True))


def test_evaluation_is_chosen_in_the_form_and_kept_in_the_address(page: Page, index: Index) -> None:
    with serve_index(index) as live:
        page.goto(f"{live}/compare?run=base&run=long&run=short")
        expect(row(page, "long")).to_contain_text("evaluations/test-000004-sampled")
        expect(row(page, "short")).to_contain_text("evaluations/step-000002-sampled")
        row(page, "short").get_by_role("link", name="Make baseline").click()
        page.get_by_label("Split").select_option("dev")
        page.get_by_label("Step").select_option("first")
        page.get_by_role("button", name="Compare").click()
        for name in ("long", "short"):
            expect(row(page, name)).to_contain_text("evaluations/step-000000-sampled")
        expect(row(page, "short")).to_contain_text("baseline")
        chosen = {"baseline": "short", "split": "dev", "step": "first"}
        assert chosen.items() <= dict(parse_qsl(urlsplit(page.url).query)).items()
        row(page, "long").get_by_role("link", name="Make baseline").click()
        expect(row(page, "long")).to_contain_text("long baseline")
        assert dict(parse_qsl(urlsplit(page.url).query)) == {**chosen, "run": "short", "baseline": "long"}
        page.get_by_label("Step").select_option("4")
        page.get_by_role("button", name="Compare").click()
        expect(page.get_by_role("status")).to_contain_text("short has no evaluation on dev tasks at step 4")
        assert width_of(page) <= PHONE["width"]
        row(page, "base").get_by_role("link", name="4", exact=True).click()
        expect(page.get_by_text("A is long evaluations/step-000004-sampled")).to_be_visible()
        page.get_by_role("link", name="By category").click()
        expect(row(page, "long")).to_contain_text("evaluations/step-000004-sampled")


def test_exported_table_opens_from_disk_with_each_run_as_the_baseline(
    page: Page, watched: WatchedPage, index: Index, tmp_path: Path
) -> None:
    export(index, tmp_path / "pages", 1000)
    page.goto((tmp_path / "pages" / "index.html").as_uri())
    page.get_by_role("navigation").get_by_role("link", name="Compare").click()
    page.get_by_role("link", name="2 runs in one table").click()
    expect(page.get_by_role("heading", name="Compare runs")).to_be_visible()
    expect(row(page, "base")).to_contain_text("base baseline")
    row(page, "short").get_by_role("link", name="Make baseline").click()
    expect(row(page, "short")).to_contain_text("short baseline")
    expect(row(page, "base")).to_contain_text("-25.0")
    row(page, "base").get_by_role("link", name="4", exact=True).click()
    expect(page.get_by_text("Success of B minus A: -25.0 points")).to_be_visible()
    page.get_by_role("link", name="By category").click()
    expect(row(page, "short")).to_contain_text("short baseline")
    page.get_by_role("link", name="75.0%").first.click()
    expect(page.locator(".status")).to_have_text("4 episodes")
    assert [url for url in watched.requests if not url.startswith(tmp_path.as_uri())] == []
