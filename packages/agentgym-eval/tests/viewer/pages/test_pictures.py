"""Tests of screenshots on the page of an episode: those of an environment, and those that the policy saw."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from agentgym_envs import Reply, Turn
from agentgym_envs.util.screenshots import ElementBoxes, Picture, ScreenshotStore
from viewer_runs import GetPage, episode, write_evaluation_run

PNG = b"\x89PNG made up"


def test_recorded_screenshots_are_shown(get_page: GetPage, tmp_path: Path) -> None:
    recorded = episode()
    folder = write_evaluation_run(tmp_path / "runs" / "a", [recorded])
    ScreenshotStore(folder / "pictures").put(recorded.task_id, recorded.final_observation, PNG)
    page = get_page("/episode/a/episodes/0")
    assert re.findall(r'<img class="picture" src="([^"]+)"', page) == ["/picture/a/episodes/0/2.png"]
    assert get_page("/picture/a/episodes/0/2.png") == PNG.decode(errors="replace")
    for turn in ("0", "3", "99"):
        assert "No picture" in get_page(f"/picture/a/episodes/0/{turn}.png", 404)


BOX = (10.0, 20.0, 110.0, 45.5)
BOXES = {"1": (0.0, 0.0, 1280.0, 720.0), "4": BOX, "link 'A'": (11.0, *BOX[1:]), "link 'A' #2": (12.0, *BOX[1:])}
BY_ID = "Tab 0: 'T'\n\n[1] RootWebArea 'T'\n\t[4] link 'A <b>'\n\t[40] link 'B'\n\nOBJECTIVE: click [4]"
BY_NAME = "Tab 0: 'T'\n\nRootWebArea 'T'\n\tlink 'A' #2 focused: True\n\tlink 'A'\n\nOBJECTIVE: click"


@pytest.mark.parametrize(
    ("tree", "action", "element", "marked"),
    [
        (BY_ID, "click [4]", "4", "\t[4] link &#39;A &lt;b&gt;&#39;"),
        (BY_ID, "TYPE [ 4 ] [two words] [0]", "4", "\t[4] link &#39;A &lt;b&gt;&#39;"),
        (BY_ID, "tab_focus [4]", None, None),
        (BY_ID, "stop [click [4]]", None, None),
        (BY_ID, "click [44]", None, None),
        (BY_NAME, "click [link 'A']", "link 'A'", "\tlink &#39;A&#39;"),
        (BY_NAME, "type [link 'A' #2] [two words] [0]", "link 'A' #2", "\tlink &#39;A&#39; #2 focused: True"),
        (BY_NAME, "click [link 'B']", None, None),
        (BY_NAME, "stop [click [link 'A']]", None, None),
    ],
)
def test_target_element_of_an_action_is_highlighted(
    get_page: GetPage, tmp_path: Path, tree: str, action: str, element: str | None, marked: str | None
) -> None:
    turn = Turn(tree, Reply(action), action, valid=True, reward=0.0, state_key="s")
    recorded = replace(episode(), turns=(turn,), final_observation=tree)
    folder = write_evaluation_run(tmp_path / "runs" / "a", [recorded])
    ScreenshotStore(folder / "pictures").put(recorded.task_id, tree, PNG, ElementBoxes(1280, 720, BOXES))
    page = get_page("/episode/a/episodes/0")
    assert re.findall(r'<mark class="target"[^>]*>(.*?)</mark>', page) == ([marked] if marked else [])
    left = re.findall(r'viewBox="0 0 1280 720".*?<rect x="([^"]+)" y="20.0" width="[^"]+" height="25.5"/>', page)
    assert left == ([str(BOXES[element][0])] if element else [])


@pytest.mark.parametrize(
    ("action", "shapes"),
    [
        ("click [4]", ['rect x="10.0" y="20.0" width="100.0" height="25.5"']),
        ("click [120,45]", ['circle cx="120" cy="45" r="14"', 'path d="M98 45h44M120 23v44"']),
        ("type [120 45] [words]", ['circle cx="120" cy="45" r="14"', 'path d="M98 45h44M120 23v44"']),
        (
            "drag [4] [120,45]",
            [
                'rect x="10.0" y="20.0" width="100.0" height="25.5"',
                'circle cx="120" cy="45" r="14"',
                'path d="M98 45h44M120 23v44"',
            ],
        ),
        (
            "drag [120,45] to [link 'A' #2]",
            [
                'circle cx="120" cy="45" r="14"',
                'path d="M98 45h44M120 23v44"',
                'rect x="10.0" y="20.0" width="100.0" height="25.5"',
            ],
        ),
        ("drag [link 'A' #2] [link 'A' #2]", ['rect x="10.0" y="20.0" width="100.0" height="25.5"'] * 2),
        ("press [Enter]", []),
    ],
)
def test_picture_that_the_policy_saw_is_shown_with_the_target(
    get_page: GetPage, tmp_path: Path, action: str, shapes: list[str]
) -> None:
    picture = Picture("0123456789abcdef" * 2, PNG, ElementBoxes(1280, 720, {"4": BOX, "link 'A' #2": BOX}))
    turn = Turn("text", Reply(action), action, valid=True, reward=0.0, state_key="s", picture=picture.digest)
    other = replace(turn, picture="f" * 32)
    recorded = replace(episode(), turns=(turn, other), final_observation="text", final_picture=None)
    folder = write_evaluation_run(tmp_path / "runs" / "a", [recorded])
    ScreenshotStore(folder / "pictures").add(picture)
    page = get_page("/episode/a/episodes/0")
    assert re.findall(r'<img class="picture" src="([^"]+)"', page) == ["/picture/a/episodes/0/0.png"]
    drawn = page.partition('viewBox="0 0 1280 720"')[2].partition("</svg>")[0]
    assert re.findall(r"<([^/][^>]+)/>", drawn) == shapes
    assert get_page("/picture/a/episodes/0/0.png") == PNG.decode(errors="replace")
    assert "No picture" in get_page("/picture/a/episodes/0/1.png", 404)
