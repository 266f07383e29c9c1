"""Write docs/viewer/*.png: screenshots of the viewer with runs from a folder.

    uv run train --out runs/first
    uv run evaluate --env textcraft --policy random --out runs/random
    uv run evaluate --env textcraft --policy oracle:0.3 --out runs/oracle
    uv run python scripts/make_viewer_pictures.py runs first random oracle

`run.png` and `replay.png` show the page of the training run, and one of the longest successful episodes of the trained
model after some turns. The galleries are sheets of all pages in light, and of the main pages in dark and on a phone.
Check them by eye.
"""

from __future__ import annotations

import argparse
import io
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from agentgym_envs.util.chromium import find_chromium
from PIL import Image, ImageDraw, ImageFont, ImageOps
from playwright.sync_api import Page, ViewportSize, sync_playwright

FOLDER = Path(__file__).parent.parent / "docs" / "viewer"
SIZE: ViewportSize = {"width": 1200, "height": 1040}
PHONE: ViewportSize = {"width": 390, "height": 1300}
COLOURS, REFINED = 256, 4  # of a palette: its size, and the iterations of k-means
TURN = 4
INDEXED_MS = 10_000  # enough for the viewer to index a run of some thousand episodes
DRAWN_MS = 500  # enough for a page's scripts
GAP, CAPTION = 16, 28  # pixels of a gallery
MAIN = ("runs", "training run", "curves", "compare", "episodes", "episode", "tokens", "game")
OPENED = {"tokens": "#tokens summary", "labels": ".annotation summary"}


def main() -> None:
    """Save the screenshots, with a reduced palette."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory", type=Path, help="a folder of runs")
    parser.add_argument("run", help="the training run in it that is shown")
    parser.add_argument("a", help="an evaluation")
    parser.add_argument("b", help="an evaluation of the same tasks, which is shown and compared with it")
    asked = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    with viewer(asked.directory) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium())
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(f"{address}run/{asked.run}")
        page.wait_for_timeout(INDEXED_MS)
        addresses = find_pages(page, address, asked.run, asked.a, asked.b)
        light = {name: shoot(page, name, url) for name, url in addresses.items()}
        keep(light["training run"], "run")
        keep(light["episode"], "replay")
        keep(sheet(light, columns=3, width=640), "gallery-light")
        page.emulate_media(color_scheme="dark")
        keep(sheet({name: shoot(page, name, addresses[name]) for name in MAIN}, columns=3, width=640), "gallery-dark")
        page.emulate_media(color_scheme="light")
        page.set_viewport_size(PHONE)
        keep(sheet({name: shoot(page, name, addresses[name]) for name in MAIN}, columns=4, width=390), "gallery-phone")
        browser.close()


def find_pages(page: Page, address: str, run: str, a: str, b: str) -> dict[str, str]:
    """Return the URL of each page of the viewer, by its caption."""

    def follow(start: str, link: str) -> str:
        page.goto(address + start)
        page.locator(link).first.click()
        page.wait_for_load_state("networkidle")
        return page.url

    found = {"runs": address, "training run": f"{address}run/{run}", "evaluation": f"{address}run/{b}"}
    page.goto(f"{address}?kind=train")
    for box in page.get_by_role("checkbox", name="Select ").all():
        box.check()
    page.get_by_role("button", name="Curves", exact=True).click()
    found["curves"] = page.url
    found["compare"] = f"{address}compare?a={a}&b={b}"
    found["several runs"] = f"{address}compare?run={a}&run={b}&run={run}&baseline={a}"
    found["side by side"] = follow(f"compare?a={a}&b={b}", "a[href^='/side-by-side']")
    found["episodes"] = f"{address}episodes?run={run}&decoding=greedy&sort=-step"
    page.goto(found["episodes"])
    last = page.locator("tbody tr").first.locator(".n").nth(1).inner_text()  # the step of the trained model
    episode = follow(f"episodes?run={run}&decoding=greedy&step={last}&success=yes&sort=-turns", "a[href^='/episode/']")
    found["episode"] = found["labels"] = episode
    found["messages"] = episode.partition("?")[0].replace("/episode/", "/messages/") + f"/{TURN}"
    found["tokens"] = follow(f"episodes?run={run}&tokens=kept&success=yes&sort=-turns", "a[href^='/episode/']")
    found |= {"name, note, trash": f"{address}run/{run}/edit", "trash": f"{address}trash", "play": f"{address}play"}
    found["game"] = follow("play", ".begin .primary")
    return found


def shoot(page: Page, name: str, url: str) -> Image.Image:
    """Return a screenshot of a page, with its section in `OPENED` open."""
    page.goto(url)
    if name in OPENED:
        page.locator(OPENED[name]).first.click()
        page.locator(OPENED[name]).first.evaluate("element => element.scrollIntoView()")
    if name == "training run":
        page.locator(".chart").first.scroll_into_view_if_needed()
    if name == "episode":
        for _ in range(TURN):
            page.keyboard.press("ArrowRight")
    page.wait_for_timeout(DRAWN_MS)
    print(f"{name}: {page.url}")
    return Image.open(io.BytesIO(page.screenshot())).convert("RGB")


def sheet(pictures: Mapping[str, Image.Image], columns: int, width: int) -> Image.Image:
    """Return all pictures in one, each `width` pixels wide, below its caption."""
    small = [(name, ImageOps.contain(each, (width, 10 * width))) for name, each in pictures.items()]
    across, down = width + GAP, small[0][1].height + CAPTION + GAP
    result = Image.new("RGB", (GAP + columns * across, GAP + -(-len(small) // columns) * down), "#8c8880")
    draw = ImageDraw.Draw(result)
    for number, (name, each) in enumerate(small):
        left, top = GAP + number % columns * across, GAP + number // columns * down
        draw.text((left, top), name.capitalize(), fill="white", font=ImageFont.load_default(20))
        result.paste(each, (left, top + CAPTION))
    return result


def keep(picture: Image.Image, name: str) -> None:
    """Save a picture with a reduced palette."""
    picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, REFINED).save(FOLDER / f"{name}.png", optimize=True)


@contextmanager
def viewer(directory: Path) -> Iterator[str]:
    """Start a viewer of the runs in a folder, and yield its address."""
    call = [Path(sys.executable).parent / "view", directory, "--no-open"]
    with subprocess.Popen(call, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found, "the viewer didn't start"
        try:
            yield found[0]
        finally:
            process.send_signal(signal.SIGINT)


if __name__ == "__main__":
    main()
