"""Write docs/viewer/*.png: screenshots of the viewer with a training run from a folder of runs.

    uv run train --out runs/first
    uv run python scripts/make_viewer_pictures.py runs first

They show the page of the run, and one of its longest successful episodes after some turns. Check them by eye.
"""

from __future__ import annotations

import argparse
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentgym_envs.util.chromium import find_chromium
from PIL import Image
from playwright.sync_api import Page, sync_playwright

FOLDER = Path(__file__).parent.parent / "docs" / "viewer"
SIZE = {"width": 1200, "height": 880}
COLOURS = 128
TURN = 4
INDEXED_MS = 10_000  # enough for the viewer to index a run of some thousand episodes


def main() -> None:
    """Save a screenshot of each page, with a reduced palette."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="a folder of runs")
    parser.add_argument("run", help="the training run in it that is shown")
    asked = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    with viewer(asked.directory) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium())
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(address)
        page.get_by_role("link", name=asked.run, exact=True).first.click()
        page.wait_for_timeout(INDEXED_MS)
        keep(page, "run")
        page.goto(f"{address}episodes?run={asked.run}&decoding=greedy&success=yes&sort=-turns")
        page.locator("a[href^='/episode/']").first.click()
        page.wait_for_load_state("networkidle")
        for _ in range(TURN):
            page.keyboard.press("ArrowRight")
        keep(page, "replay")
        browser.close()


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
