"""Write docs/viewer/*.png: screenshots of the viewer with a training run and two evaluations from a folder of runs.

    uv run train --out runs/first
    uv run evaluate --env textcraft --policy random --tasks 24 --samples 2 --horizon 12 --out runs/random
    uv run evaluate --env textcraft --policy oracle:0.3 --tasks 24 --samples 2 --horizon 12 --out runs/noisy
    uv run python scripts/make_viewer_pictures.py runs first random noisy

They show the page of the training run, one of its longest successful episodes after some turns, and in overviews every
page: light, dark and on a phone. Check them by eye.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from agentgym_envs.util.chromium import find_chromium
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

FOLDER = Path(__file__).parent.parent / "docs" / "viewer"
SIZE = {"width": 1200, "height": 880}
PHONE = {"width": 390, "height": 844}
COLUMNS, THUMBNAIL, GAP = 4, 480, 12
"""Pictures in a row of an overview, the width of each in pixels, and the distance between them."""
COLOURS = 128
TURN = 4
INDEXED_MS = 10_000  # enough for the viewer to index a run of some thousand episodes


def main() -> None:
    """Save a screenshot of each page, with a reduced palette."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="a folder of runs")
    parser.add_argument("run", help="the training run in it that is shown")
    parser.add_argument("evaluated", nargs=2, help="the evaluations that are compared")
    asked = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    with viewer(asked.directory) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium())
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(address)
        page.get_by_role("link", name=asked.run, exact=True).first.click()
        page.wait_for_timeout(INDEXED_MS)
        run = page.url
        page.get_by_text("in training", exact=True).first.evaluate("found => found.scrollIntoView()")
        keep(page, "run")
        page.goto(f"{address}episodes?run={asked.run}&decoding=greedy&success=yes&sort=-turns")
        page.locator("a[href^='/episode/']").first.click()
        page.wait_for_load_state("networkidle")
        episode = page.url.partition("?")[0]
        for _ in range(TURN):
            page.keyboard.press("ArrowRight")
        keep(page, "replay")
        first, second = asked.evaluated
        pages = [
            *(address, run, f"{address}run/{first}", f"{address}curves?run={asked.run}"),
            *(f"{address}compare?run={first}&run={second}", f"{address}episodes", episode),
            *(episode.replace("/episode/", "/messages/") + "/1", f"{run}/edit", f"{address}trash", f"{address}play"),
        ]
        overview(browser, pages, "light", SIZE)
        overview(browser, pages, "dark", SIZE)
        overview(browser, pages, "phone", PHONE)
        browser.close()


def overview(browser: Browser, pages: list[str], name: str, size: dict[str, int]) -> None:
    """Save the pages side by side in one picture."""
    page = browser.new_page(viewport=size, color_scheme="dark" if name == "dark" else "light")
    height = size["height"] * THUMBNAIL // size["width"]
    rows = -(-len(pages) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * (THUMBNAIL + GAP) + GAP, rows * (height + GAP) + GAP), "gray")
    for at, url in enumerate(pages):
        page.goto(url)
        page.wait_for_load_state("networkidle")
        picture = Image.open(BytesIO(page.screenshot())).resize((THUMBNAIL, height))
        row, column = divmod(at, COLUMNS)
        sheet.paste(picture, (GAP + column * (THUMBNAIL + GAP), GAP + row * (height + GAP)))
    page.close()
    sheet.quantize(256).save(FOLDER / f"{name}.png", optimize=True)


def keep(page: Page, name: str) -> None:
    """Save a screenshot of the page."""
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(COLOURS).save(path, optimize=True)
    print(f"{name}: {page.url}")


@contextmanager
def viewer(directory: Path) -> Iterator[str]:
    """Start a viewer of the runs in a folder, and yield its address."""
    call = [Path(sys.executable).parent / "view", directory, "--no-open"]
    with subprocess.Popen(call, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found, "the viewer didn't start"
        yield found[0]
        process.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
