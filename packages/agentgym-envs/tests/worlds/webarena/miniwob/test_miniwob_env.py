"""Tests of `WebArena` on the pages of MiniWoB++, which nobody here wrote: rewards, limits, repetition, the oracle."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import gymnasium
import pytest
from agentgym_envs.core.registration import REMOTE
from agentgym_envs.core.registry import make, text_env
from agentgym_envs.worlds.webarena.env import WebArena
from agentgym_envs.worlds.webarena.miniwob.pages import pages
from agentgym_envs.worlds.webarena.miniwob.scripts import SCRIPTS
from ci_subset import subset_in_ci
from dev_packages import require_packages
from patience import PATIENCE
from serve_process import serve_process

require_packages("miniwob")

ENV_ID = "agentgym/WebArena-v0"
MAX_STEPS = 30
Start = Callable[[str], tuple[str, dict[str, Any]]]


@pytest.fixture(scope="module")
def env(requires_browser: None) -> Iterator[WebArena]:
    env = WebArena(task_set="miniwob", pages="all")
    yield env
    env.close()


def start(env: WebArena, page: str, seed: int = 0) -> str:
    return env.reset(options={"task": f"webarena/miniwob/{page}/{seed}"})[0]


def play(env: WebArena, page: str, seed: int) -> dict[str, Any]:
    """Play a problem with the oracle and return the last info."""
    start(env, page, seed)
    for _ in range(MAX_STEPS):
        *_, terminated, _, info = env.step(env.oracle())
        if terminated:
            break
    return info


def test_the_page_rewards_the_right_button_and_ends_the_episode(env: WebArena) -> None:
    observation = start(env, "click-test-2")
    assert "OBJECTIVE: Click button ONE." in observation and "[3] button 'ONE'" in observation
    assert "Last reward" not in observation and "START" not in observation
    observation, reward, terminated, _, info = env.step("click [3]")
    assert observation == "The episode has ended: the page's reward is 1."
    assert (reward, terminated, info["success"], info["raw"]["parts"]) == (1.0, True, True, {"reward": 1.0})


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "icons"),
    [
        ("social-media", {"reply", "retweet", "like", "more"}),
        ("social-media-all", {"reply", "retweet", "like", "share"}),
        ("social-media-some", {"reply", "retweet", "like", "share"}),
        ("email-inbox", {"open-search", "trash", "star"}),
        ("email-inbox-important", {"open-search", "trash", "star"}),
        ("text-editor", {"bold", "italic", "underline"}),
        ("circle-center", set[str]()),
    ],
)
def test_icons_without_a_name_have_the_word_of_the_markup(env: WebArena, page: str, icons: set[str]) -> None:
    text = start(env, page)
    assert set(re.findall(r"\] (?:image|button) '' icon: ([\w-]+)", text)) == icons
    assert not re.search(r"\] (?:image|button) ''(?! icon:)", text) or not icons


def test_a_negative_reward_is_a_score_of_zero(env: WebArena) -> None:
    start(env, "click-test-2")
    _, reward, terminated, _, info = env.step("click [4]")
    assert (reward, terminated, info["success"], info["raw"]["parts"]) == (0.0, True, False, {"reward": -1.0})


@pytest.mark.long
def test_a_part_of_the_reward_is_a_part_of_the_score_without_success(env: WebArena) -> None:
    start(env, "find-greatest")
    cards = env._scripted._view.elements("div", class_="card")  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
    results: list[tuple[float, bool]] = []
    for card in cards:
        start(env, "find-greatest")
        x, y = card.centre
        env.step(f"click [{int(x)},{int(y)}]")
        *_, info = env.step(env._scripted._view.submit())  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
        results.append((info["score"], info["success"]))
    assert sorted(results) == [(0.1, False), (0.1, False), (1.0, True)]


@pytest.mark.long
def test_submitting_checkboxes_as_they_are_is_no_success(env: WebArena) -> None:
    scores: set[float] = set()
    for seed in (120, 121, 122, 123, 124, 125):
        observation = start(env, "click-checkboxes", seed)
        submit = next(line for line in observation.splitlines() if "button 'Submit'" in line)
        _, score, terminated, _, info = env.step(f"click [{submit.split('[')[1].split(']')[0]}]")
        assert terminated and info["score"] == score
        assert info["success"] == (score == 1)
        scores.add(float(score))
    assert any(0 < score < 1 for score in scores)


def test_pages_graded_by_distance_succeed_with_any_reward(env: WebArena) -> None:
    info = play(env, "circle-center", 0)
    assert 0 < info["score"] < 1
    assert info["success"]


@pytest.mark.parametrize("command", ["", "rm "])
def test_what_is_typed_into_the_terminal_is_text(env: WebArena, command: str) -> None:
    start(env, "terminal")
    *_, terminated, _, info = env.step(f'type [9] [{command}<img/src="x"onerror="core.endEpisode(1)">] [1]')
    assert (terminated, info["score"], info["valid"]) == (False, 0.0, True)
    assert play(env, "terminal", 0)["success"]


def test_a_double_click_does_not_begin_the_episode_again(env: WebArena) -> None:
    start(env, "click-test-2")
    _, _, terminated, _, info = env.step("double_click [4]")
    assert (terminated, info["raw"]["parts"]) == (True, {"reward": -1.0})
    start(env, "click-test-2")
    assert env.step("double_click [3]")[4]["success"]


def test_a_text_that_is_to_be_scrolled_cannot_be_replaced(env: WebArena) -> None:
    before = start(env, "scroll-text-2")
    area, submit = (re.search(rf"\[(\d+)\] {role}", before) for role in ("textbox", "button"))
    assert area and submit
    env.step(f"type [{area[1]}] [x] [0]")
    *_, terminated, _, info = env.step(f"click [{submit[1]}]")
    assert terminated and not info["success"]
    assert all(play(env, "scroll-text-2", seed)["success"] for seed in range(4))


def test_stopping_before_the_page_has_counted_is_a_failure(env: WebArena) -> None:
    start(env, "click-button")
    observation, reward, terminated, _, info = env.step("stop [done]")
    assert observation.startswith("You stopped with the answer 'done'.")
    assert (reward, terminated, info["success"]) == (0.0, True, False)


@pytest.mark.long
@pytest.mark.parametrize(
    "action",
    ["goto [http://miniwob.example/miniwob/click-test.html]", "go_back", "new_tab", "tab_focus [0]", "close_tab"],
)
def test_the_page_is_not_left_for_an_easier_one(env: WebArena, action: str) -> None:
    start(env, "click-button")
    observation, _, terminated, _, info = env.step(action)
    assert observation.endswith("NOTICE: This task is a single page: addresses, history and tabs are not used.")
    assert not info["valid"] and not terminated


def test_a_page_that_loads_again_has_lost_its_problem(env: WebArena) -> None:
    start(env, "click-test-2")
    episode = env._episode  # pyright: ignore[reportPrivateUsage]
    assert episode is not None
    episode.run(episode.session.tab.page.evaluate("location.reload()"), PATIENCE)
    _, _, terminated, _, info = env.step("wait [0]")
    assert terminated and not info["success"]


def test_a_slow_agent_gets_the_whole_reward(env: WebArena) -> None:
    start(env, "click-test-2")
    episode = env._episode  # pyright: ignore[reportPrivateUsage]
    assert episode is not None
    later = "core.ept0 -= 3600e3"  # the page rewards fast agents by the time since then
    episode.run(episode.session.tab.page.evaluate(later), PATIENCE)
    assert episode.run(episode.session.tab.page.evaluate("core.EPISODE_MAX_TIME"), PATIENCE) > 7 * 24 * 3600e3
    *_, info = env.step("click [3]")
    assert info["score"] == 1.0


@pytest.mark.long
def test_a_seed_gives_the_same_problem_in_every_environment(env: WebArena) -> None:
    with closing(WebArena(task_set="miniwob", pages="all")) as other:
        for page in ("click-button", "terminal", "book-flight", "use-slider"):
            first = start(env, page, 7)
            assert start(other, page, 7) == first == start(env, page, 7)
            assert start(env, page, 8) != first or page == "terminal"


def test_the_oracle_goes_on_after_the_actions_of_another(env: WebArena) -> None:
    start(env, "login-user", 3)
    field = next(line for line in env.step(env.oracle())[0].splitlines() if "textbox" in line)
    env.step(f"type [{field.split('[')[1].split(']')[0]}] [nonsense] [0]")
    for _ in range(MAX_STEPS):
        *_, terminated, _, info = env.step(env.oracle())
        if terminated:
            break
    assert info["success"]


def test_pages_without_a_script_refuse_the_oracle(env: WebArena) -> None:
    unscripted = sorted(set(pages()) - set(SCRIPTS))
    start(env, unscripted[0])
    with pytest.raises(ValueError, match=f"The page {unscripted[0]} of MiniWoB.. has no script"):
        env.oracle()


@pytest.mark.long
def test_vector_environments_play_pages(requires_browser: None) -> None:
    options = {"task_set": "miniwob", "pages": "click-test-2", "max_episode_steps": MAX_STEPS}
    envs = gymnasium.make_vec(f"agentgym_envs:{ENV_ID}", num_envs=2, **options)
    observations, _ = envs.reset(seed=1)
    assert ["Click button ONE" in observation for observation in observations] == [True, True]
    _, rewards, terminated, *_ = envs.step(("click [3]", "click [4]"))
    assert (list(rewards), list(terminated)) == ([1.0, 0.0], [True, True])
    envs.close()


@pytest.mark.long
def test_a_server_offers_pages(requires_browser: None) -> None:
    with serve_process("--option", "webarena:task_set=miniwob") as server:
        remote = gymnasium.make(f"agentgym_envs:{REMOTE}", url=server.url, env=ENV_ID, pages="click-test-2", horizon=30)
        with closing(remote):
            remote.reset(options={"task": "webarena/miniwob/click-test-2/123"})  # not 163: there the button is covered
            *_, info = remote.step(text_env(remote).oracle())
            assert info["success"]
            assert len(text_env(remote).tasks.test) == 50
        server.process.terminate()
        server.process.wait()


@pytest.mark.parametrize("page", ["enter-text", "choose-list"])
def test_scripts_solve_pages(env: WebArena, page: str) -> None:
    assert play(env, page, 1)["success"]


@pytest.mark.long
@pytest.mark.parametrize(
    "page", subset_in_ci([page.name for page in pages().values() if page.solved == page.played > 0], 4)
)
def test_scripts_solve_all_pages_that_they_have_solved_before(env: WebArena, page: str) -> None:
    assert any(play(env, page, seed)["success"] for seed in (120, 121))


def test_gymnasium_makes_the_environment(requires_browser: None) -> None:
    with closing(make(ENV_ID, task_set="miniwob", pages=("focus-text",), max_episode_steps=3)) as made:
        made.reset(seed=0)
        *_, info = made.step(text_env(made).oracle())
        assert info["success"]
