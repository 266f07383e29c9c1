"""Test of set-of-marks from WebArena's browser to the request of an endpoint, the episode and the viewer."""

from __future__ import annotations

import base64
import re
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs.util.images import pixels
from agentgym_envs.util.screenshots import ScreenshotStore, element_boxes
from agentgym_eval.cli.main import evaluate
from agentgym_eval.viewer.index.index import Index
from agentgym_eval.viewer.index.links import Links
from agentgym_eval.viewer.pages.site import Site
from agentgym_eval.viewer.server.app import make_app
from fake_endpoint import Answer, completion_answer, read_run, serve_endpoint
from starlette.testclient import TestClient

pytestmark = pytest.mark.long
_MARKED = re.compile(r"^\s*\[(\d+)\] (?:link|button|searchbox) ", re.MULTILINE)


def test_marked_page_reaches_the_endpoint_and_the_viewer(tmp_path: Path, requires_browser: None) -> None:
    from agentgym_envs.worlds.webarena.page.marks import colour

    script = iter(["click [2]", "click [640 300]", "stop []"])

    def answer(_: dict[str, Any]) -> Answer:
        return completion_answer(f"Thought: I look.\nAction: {next(script)}")

    out = tmp_path / "runs" / "web"
    flags = ["--env", "webarena", "--tasks", "1", "--pictures", "1", "--options", "marks=True", "--out", str(out)]
    with serve_endpoint(answer) as fake:
        assert evaluate([*flags, *fake.flags]) == 0
    (episode,) = read_run(out)
    assert [(turn.action, turn.valid) for turn in episode.turns[:2]] == [("click [2]", True), ("click [640 300]", True)]
    store = ScreenshotStore(out / "pictures")
    for turn, request in zip(episode.turns, fake.requests, strict=True):
        text, image = request["messages"][-1]["content"]
        png = base64.b64decode(image["image_url"]["url"].removeprefix("data:image/png;base64,"), validate=True)
        path = store.get(turn.picture)
        assert path is not None
        assert path.read_bytes() == png
        sent, places = pixels(png), element_boxes(path)
        assert sent.shape == (720, 1280, 3)
        assert places is not None
        marked = _MARKED.findall(text["text"])
        assert len(marked) > 5
        drawn = [number for number in marked if outlined(sent, places.boxes[number], colour(int(number)))]
        assert len(drawn) > 0.8 * len(marked)  # a label or another box may hide a side
    index = Index(tmp_path / "runs", tmp_path / "index.sqlite")
    index.refresh()
    page = TestClient(make_app(Site(index, Links())), "http://127.0.0.1:8000").get("/episode/web/episodes/0").text
    index.close()
    assert len(re.findall(r'<img class="picture"', page)) == len(episode.turns) + 1
    assert len(re.findall(r'class="marks-on".*?<rect ', page)) == 1
    assert '<circle cx="640" cy="300"' in page


def outlined(image: Any, box: tuple[float, float, float, float], color: tuple[int, int, int]) -> bool:
    """Whether the upper line of the box has the color, at its middle."""
    left, top, right, _ = map(int, box)
    return any(tuple(image[max(top - distance, 0), (left + right) // 2]) == color for distance in (0, 1, 2))
