"""Tests of screenshots of `WebArena`: in `info`, with marks, and in a folder."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.util.screenshots import ScreenshotStore, element_boxes
from agentgym_envs.worlds.webarena.actions.marked import reachable_marks
from agentgym_envs.worlds.webarena.env import WebArena
from agentgym_envs.worlds.webarena.page.marks import colour, marked_nodes

Make = Callable[..., WebArena]
TASK: dict[str, Any] = {"eval": {"eval_types": ["string_match"], "reference_answers": {"exact_match": "42"}}}


def only_task(env: WebArena) -> dict[str, str]:
    return {"task": env.tasks.test.ids[0]}


def test_screenshots_are_returned_if_enabled(custom_env: Make) -> None:
    env = custom_env(TASK, screenshot=True, viewport=(640, 480), render_mode="rgb_array")
    _, info = env.reset(options=only_task(env))
    assert (info["screenshot"].shape, info["screenshot"].dtype) == ((480, 640, 3), np.uint8)
    assert np.array_equal(env.render(), info["screenshot"])
    *_, after = env.step("click [3]")
    assert not np.array_equal(after["screenshot"], info["screenshot"])
    env.step("stop []")
    assert env.render().shape == (480, 640, 3)


def test_screenshots_are_stored_with_observations(custom_env: Make, tmp_path: Path) -> None:
    env = custom_env(TASK, pictures=tmp_path / "pictures", viewport=(320, 240))
    store, task = ScreenshotStore(tmp_path / "pictures"), only_task(env)["task"]
    first, _ = env.reset(options={"task": task})
    shown = [first, env.step("dance")[0], env.step("click [3]")[0]]
    front, refused, more = (store.find(task, text) for text in shown)
    assert front is not None and refused is not None and more is not None
    places = element_boxes(front)
    assert places is not None and (places.width, places.height) == (320, 240)
    assert all(
        0 <= left < right <= 320 and 0 <= top < bottom <= 240 for left, top, right, bottom in places.boxes.values()
    )
    assert "3" in places.boxes
    assert front.read_bytes() == refused.read_bytes() != more.read_bytes()
    assert store.find(task, env.step("stop []")[0]) is None
    assert len(list(store.folder.glob("*.png"))) == len(shown)


def test_marks_are_drawn_on_screenshots(custom_env: Make) -> None:
    env, plain = custom_env(TASK, screenshot=True, marks=True), custom_env(TASK, screenshot=True)
    text, info = env.reset(options=only_task(env))
    assert "[3] link" in text
    left, top, right, bottom = map(int, info["element_boxes"]["3"])
    image, unmarked = info["screenshot"], plain.reset(options=only_task(plain))[1]["screenshot"]
    middle = (top + bottom) // 2, left - 1
    assert tuple(image[middle]) == colour(3) != tuple(unmarked[middle])
    inside = slice(top + 1, bottom - 1), slice(left + 1, (left + right) // 2)
    assert np.array_equal(image[inside], unmarked[inside])
    assert env.instructions.startswith(plain.instructions)
    assert "each element that you can act on has a box" in env.instructions
    assert "each element that you can act on has a box" not in plain.instructions
    assert (env.has_screenshots, custom_env(TASK).has_screenshots) == (True, False)


def test_marks_need_screenshots(custom_env: Make) -> None:
    with pytest.raises(ValueError, match="none are taken; add screenshot=True"):
        custom_env(TASK, marks=True)
    with pytest.raises(ValueError, match="marks must be true or false, not 'yes'"):
        custom_env(TASK, screenshot=True, marks="yes")


def test_unwritable_screenshots_are_a_fault(custom_env: Make, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    env = custom_env(TASK, pictures=tmp_path / "taken")
    with pytest.raises(EnvFault, match="Cannot write a screenshot"):
        env.reset(options=only_task(env))


@pytest.mark.long
def test_nothing_behind_the_cookie_bar_of_the_rough_skin_is_marked(requires_browser: None) -> None:
    with closing(WebArena(skin="rough", screenshot=True, marks=True)) as env:
        task = next(task.id for task in env.tasks.test if task.cluster.startswith("shop/"))
        _, info = env.reset(options={"task": task})
        episode, page = env._episode, env._seen.page
        assert episode is not None
        reached = {node.id for node in episode.run(reachable_marks(episode.session, page), 60)}
        covered = [node for node in marked_nodes(page) if node.id not in reached]
        assert len(covered) >= 5
        assert len(reached) >= 20
        height = info["screenshot"].shape[0]
        for node in covered:
            assert node.box is not None and node.box.bottom > height - 200, node
        for node in covered[:4]:
            text, *_ = env.step(f"click [{node.id}]")
            assert "can't be reached" in text, node
