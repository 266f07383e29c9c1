"""Tests of the embedded tasks as BrowserGym's.

They need the extra `browsergym`: `uv sync --inexact --package agentgym-envs --extra browsergym`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from agentgym_envs import make, text_env
from agentgym_envs.worlds.webarena.sites import process

if find_spec("browsergym") is None:
    pytest.skip(
        "browsergym is missing: uv sync --inexact --package agentgym-envs --extra browsergym", allow_module_level=True
    )

from agentgym_envs.adapters.browsergym import browsergym_name
from agentgym_envs.worlds.webarena.external_episode import external_tasks
from browsergym.core.action.highlevel import HighLevelActionSet
from browsergym.utils.obs import flatten_axtree_to_str
from browsergym_settings import NO_DELAY

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("requires_browser")]
ANSWER, PAGE, DATABASE = "shop/cost-with-option", "shop/narrowed", "shop/cheapest-to-cart"
ACTIONS = HighLevelActionSet(["chat", "infeas", "bid", "nav", "tab", "coord"], strict=False, multiaction=True)
"""The actions of BrowserGym's agents on WebArena, and keys."""


class Player:
    """An episode of a task in BrowserGym's environment."""

    def __init__(self, task_id: str, **options: Any) -> None:
        self.task = external_tasks()[task_id]
        self.env = gymnasium.make(
            f"browsergym/{browsergym_name(task_id)}",
            **NO_DELAY,
            action_mapping=ACTIONS.to_python_code,
            **options,
        )
        self.observation, self.info = self.env.reset(seed=0)
        self.reward, self.terminated = 0.0, False

    def act(self, action: str) -> None:
        self.observation, self.reward, self.terminated, _, self.info = self.env.step(action)
        error = self.observation["last_action_error"]
        # BrowserGym waits half a second for what a click loads, which a busy machine may take longer for.
        assert not error or "performing click action" in error, (action, error)

    @property
    def text(self) -> str:
        return flatten_axtree_to_str(self.observation["axtree_object"])

    def bid(self, step: Mapping[str, Any]) -> str:
        """The id of the element of a plan's step."""
        found = re.findall(rf"^\t*\[(\w+)\] {step['role']} (['\"]){re.escape(step['name'])}\2", self.text, re.MULTILINE)
        assert len(found) > step["nth"], (step, self.text)
        return found[step["nth"]][0]

    def play(self, *, until_stop: bool = False) -> None:
        """Carry out the task's plan by BrowserGym's actions."""
        for step in self.task.payload["plan"]:
            match step["do"]:
                case "goto":
                    self.act(f"goto({step['url']!r})")
                case "click":
                    self.act(f"click({self.bid(step)!r})")
                case "type":
                    bid = self.bid(step)
                    enter = f"\npress({bid!r}, 'Enter')" if step["enter"] else ""
                    self.act(f"fill({bid!r}, {step['text']!r}){enter}")
                case "select":
                    self.act(f"select_option({self.bid(step)!r}, {step['option']!r})")
                case "stop" if until_stop:
                    return
                case "stop":
                    self.act(f"send_msg_to_user({step['answer'] or 'It is done.'!r})")
                case other:
                    raise AssertionError(f"no test plays {other}")


def first(template: str) -> str:
    return next(task.id for task in external_tasks().test if task.cluster == template)


@pytest.fixture
def player(request: pytest.FixtureRequest) -> Iterator[Player]:
    player = Player(first(request.param))
    yield player
    player.env.close()


@pytest.mark.parametrize(
    ("player", "kind"),
    [(ANSWER, "string_match"), (PAGE, "url_match"), (DATABASE, "database")],
    indirect=["player"],
)
def test_the_plan_of_a_task_scores_through_browsergym(player: Player, kind: str) -> None:
    assert player.observation["goal"] == player.task.payload["intent"]
    assert player.info["task_info"]["task_id"] == player.task.id
    player.play()
    assert (player.reward, player.terminated) == (1.0, True)
    assert player.info["task_info"]["parts"] == {kind: 1.0}


@pytest.mark.parametrize("player", [ANSWER, PAGE, DATABASE], indirect=True)
def test_an_answer_at_the_start_scores_nothing(player: Player) -> None:
    player.act("send_msg_to_user('It is done.')")
    assert (player.reward, player.terminated) == (0.0, True)


@pytest.mark.parametrize("player", [ANSWER, PAGE], indirect=True)
def test_nothing_is_paid_before_the_message_nor_twice(player: Player) -> None:
    player.play(until_stop=True)
    assert (player.reward, player.terminated) == (0.0, False)
    stop = player.task.payload["plan"][-1]
    player.act(f"send_msg_to_user({stop['answer']!r})")
    assert (player.reward, player.terminated) == (1.0, True)
    player.act("noop(1)")
    assert (player.reward, player.terminated) == (0.0, True)


@pytest.mark.parametrize("player", [ANSWER], indirect=True)
def test_a_report_that_the_task_is_infeasible_is_an_answer(player: Player) -> None:
    stop = player.task.payload["plan"][-1]
    player.act(f"report_infeasible({stop['answer']!r})")
    assert (player.reward, player.terminated) == (0.0, True)
    assert player.info["task_info"]["answer"] == "N/A"


@pytest.mark.parametrize("player", [DATABASE], indirect=True)
def test_each_episode_has_fresh_sites(player: Player) -> None:
    player.play()
    assert player.reward == 1.0
    player.observation, _ = player.env.reset(seed=0)
    player.act("send_msg_to_user('It is done.')")
    assert player.reward == 0.0
    player.observation, _ = player.env.reset(seed=0)
    player.play()
    assert player.reward == 1.0


@pytest.mark.parametrize("player", [ANSWER], indirect=True)
def test_the_browser_reaches_the_sites_only(player: Player, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("The answer is 42.")
    player.act("goto('http://wiki.example/search?query=Oak%20%26%20Ash#top')")
    assert "Oak & Ash" in player.text
    player.act("goto('http://admin.shop.example/')")  # none of the task's sites: not signed in
    assert "Sign in" in player.observation["open_pages_titles"][0]
    for url in ("http://example.org/", f"{player.env.unwrapped._sites.proxy}/", "http://localhost/"):  # pyright: ignore[reportAttributeAccessIssue]
        player.act(f"goto({url!r})")
        assert "There is no such site." in player.text
    for url in (f"file://{secret}", f"view-source:file://{secret}", "https://example.org/"):
        player.observation = player.env.step(f"goto({url!r})")[0]
        assert "net::ERR" in player.observation["last_action_error"]
        assert "42" not in player.text


def test_the_rough_skin() -> None:
    player = Player(first(PAGE), task_kwargs={"skin": "rough"})
    assert "You may also like" in player.text
    player.env.close()
    with pytest.raises(ValueError, match="skin must be 'plain' or 'rough', not 'soft'"):
        Player(first(PAGE), task_kwargs={"skin": "soft"})
    assert not process._servers  # pyright: ignore[reportPrivateUsage]


def test_environments_of_one_thread_do_not_touch_each_other() -> None:
    one, other = Player(first(DATABASE)), Player(first(DATABASE))
    one.play()
    other.act("send_msg_to_user('It is done.')")
    assert (one.reward, other.reward) == (1.0, 0.0)
    one.env.close()
    one.env.close()
    other.observation, _ = other.env.reset(seed=0)
    other.play()
    assert other.reward == 1.0
    other.env.close()
    assert not process._servers  # pyright: ignore[reportPrivateUsage]


def test_a_round_trip_as_an_environment_of_ours() -> None:
    name = browsergym_name(first(ANSWER))
    plan = external_tasks()[first(ANSWER)].payload["plan"]

    def play() -> tuple[float, bool]:
        env = make(f"browsergym:agentgym_envs.adapters.browsergym:{name}", settings=NO_DELAY)
        text, _ = env.reset(options={"task": text_env(env).tasks.test.ids[0]})
        assert "Larkspur" in text
        _, reward, terminated, _, _ = env.step(f"send_msg_to_user({plan[-1]['answer']!r})")
        env.close()
        return float(reward), terminated

    with ThreadPoolExecutor(1) as thread:  # which has a Playwright of its own
        assert thread.submit(play).result() == (1.0, True)
