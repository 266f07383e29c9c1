"""Tests of replaying episodes to render their scenes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from agentgym_envs import EnvFault, Episode, EpisodeSpec, Policy, Reply, TextEnv, TurnContext, make, play, text_env
from agentgym_envs.agents.agent import Agent
from agentgym_envs.core import registration
from agentgym_eval.runs import recorded_env
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.pages import scenes
from agentgym_eval.viewer.pages.scenes import SceneReplayer
from counting_world import Count

TASK = "textcraft/train/stick"


class RepliesInOrder(Policy):
    """Replies with the given texts in order."""

    name = "says"

    def __init__(self, *texts: str | Reply) -> None:
        self._texts = iter(texts)

    async def reply(self, context: TurnContext) -> Reply:
        text = next(self._texts)
        return text if isinstance(text, Reply) else Reply(text)


def play_episode(
    *texts: str | Reply, agent: str = "bare", task: str = TASK, horizon: int = 9, **options: Any
) -> Episode:
    env = Agent.parse(agent).wrap(make("agentgym/TextCraft-v0", **options))
    return play(env, RepliesInOrder(*texts), EpisodeSpec(task, seed=3, split="train"), horizon=horizon)


def run(settings: dict[str, Any] | None = None, **record: Any) -> Run:
    settings = {"env": "textcraft", "options": [], "seed": 3} if settings is None else settings
    return Run("r", "r", Path("r"), "evaluate", {"settings": settings, **record})


def inventories(result: scenes.Scenes) -> list[dict[str, int] | None]:
    return [scene and scene["inventory"] for scene in (*result.before, result.end)]


def test_each_turn_has_the_scene_at_its_start() -> None:
    episode = play_episode("get 2 bamboo", "what?", "two\nlines", "craft 1 stick using 2 bamboo")
    result = SceneReplayer().scenes(run(), episode)
    assert inventories(result) == [{}, *[{"bamboo": 2}] * 3, {"stick": 1}]
    assert result.note == ""
    assert result.at(3) == result.before[3]
    assert result.at(4) == result.end


def test_an_episode_of_a_harness_whose_actions_are_not_recorded_has_no_scenes_and_no_note() -> None:
    episode = play_episode("get 2 bamboo", "craft 1 stick using 2 bamboo")
    unseen = tuple(replace(turn, action=None, observation="Go on.") for turn in episode.turns)
    assert SceneReplayer().scenes(run(), replace(episode, agent="", turns=unseen)) == scenes.Scenes()
    assert SceneReplayer().scenes(run(), replace(episode, turns=unseen)).note


def test_replay_follows_trials_plans_and_reflections() -> None:
    texts = ["plan", "get 2 bamboo", "look back", "plan", "get 1 bamboo", "inventory"]
    episode = play_episode(*texts, agent="bare+plan+retry:1", horizon=1)
    kinds = [turn.kind for turn in episode.turns]
    assert kinds == ["plan", "act", "reflect", "plan", "act"]
    result = SceneReplayer().scenes(run(), episode)
    assert inventories(result) == [{}, {}, {"bamboo": 2}, {}, {}, {"bamboo": 1}]


def test_truncated_reply_is_not_replayed() -> None:
    episode = play_episode("get 2 bamboo", Reply("get 3 bam", finish="length"))
    assert episode.stop == "length"
    assert inventories(SceneReplayer().scenes(run(), episode)) == [{}, {"bamboo": 2}, {"bamboo": 2}]


def test_replay_needs_the_options_of_the_run() -> None:
    episode = play_episode("inventory", "craft 1 stick using 2 bamboo", "get 1 bamboo", horizon=3, distractors=1)
    matching_run = run({"env": "textcraft", "options": ["distractors=1"], "seed": 3})
    assert SceneReplayer().scenes(matching_run, episode).note == ""
    without_options = SceneReplayer().scenes(run(), episode)
    assert "no scenes from the beginning on" in without_options.note
    assert inventories(without_options) == [None] * 4


def test_scenes_end_where_observations_differ() -> None:
    episode = play_episode("get 2 bamboo", "inventory", "get 1 bamboo", horizon=3)
    changed = replace(episode.turns[2], observation="Inventory: gold")
    result = SceneReplayer().scenes(run(), replace(episode, turns=(*episode.turns[:2], changed)))
    assert inventories(result) == [{}, {"bamboo": 2}, None, None]
    assert "from turn 2 on" in result.note


def test_unknown_task_gives_a_note() -> None:
    episode = replace(play_episode("get 2 bamboo", horizon=1), task_id="textcraft/train/nothing")
    result = SceneReplayer().scenes(run(), episode)
    assert "no task 'textcraft/train/nothing'" in result.note
    assert inventories(result) == [None, None]


def test_environments_without_scenes_are_not_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Count, "__init__", lambda *_, **__: pytest.fail("the environment was created"))
    episode = replace(play_episode("get 2 bamboo", horizon=1), env="counting/Count-v0")
    assert SceneReplayer().scenes(run(), episode) == scenes.Scenes()
    assert SceneReplayer().scenes(run(), replace(episode, env="nobody/Knows-v0")) == scenes.Scenes()
    assert not SceneReplayer().is_slow(episode)


class Shelf(Count):
    """An environment with scenes, and an option that recorded settings must not set."""

    client_options = frozenset({"listed"})
    created_with: list[dict[str, Any]] = []  # noqa: RUF012

    def __init__(self, *, program: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.created_with.append({"program": program, **options})

    def scene(self) -> dict[str, Any]:
        return {"kind": "shelf"}


def test_recorded_environment_name_imports_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_world.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    episode = replace(play_episode("craft 1 stick", horizon=1), env="planted_world:planted/World-v0")
    assert SceneReplayer().scenes(run(), episode) == scenes.Scenes()


def test_env_fault_gives_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing_start(*_: Any, **__: Any) -> None:
        raise EnvFault("the lid jammed")

    episode, replayer = play_episode("get 2 bamboo", horizon=1), SceneReplayer()
    monkeypatch.setattr(type(text_env(make("agentgym/TextCraft-v0"))), "_start", failing_start)
    result = replayer.scenes(run(), episode)
    assert (inventories(result), result.note) == ([None, None], "The scenes can't be rendered: the lid jammed")


def test_options_that_clients_may_not_set_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    gymnasium.register("counting/Shelf-v0", f"{__name__}:Shelf")
    monkeypatch.setattr(recorded_env, "load_env_creator", lambda _: Shelf)
    episode = replace(play_episode("get 2 bamboo", horizon=1), env="counting/Shelf-v0", task_id="count/train/1")
    matching_run = run({"env": "counting/Shelf-v0", "options": ["program=rm", "listed=False"]})
    Shelf.created_with.clear()
    SceneReplayer().scenes(matching_run, episode)
    assert Shelf.created_with == [{"program": "", "listed": False}]
    gymnasium.registry.pop("counting/Shelf-v0")


def test_replay_is_cached_and_the_environment_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    replayer, episode = SceneReplayer(), play_episode("get 2 bamboo", "inventory", horizon=2)
    env_class = type(text_env(make("agentgym/TextCraft-v0")))
    resets = itertools.count()
    original_reset = TextEnv.reset
    monkeypatch.setattr(env_class, "reset", lambda self, **options: (next(resets), original_reset(self, **options))[1])
    first = replayer.scenes(run(), episode)
    assert replayer.scenes(run(), episode) is first
    replayer.scenes(run(), replace(episode, turns=episode.turns[:1], final_observation="Got 2 bamboo"))
    assert next(resets) == 2
    replayer.close()
    replayer.close()


@pytest.mark.parametrize(
    "record",
    [
        {"settings": {"env": "textcraft", "options": ["depth=(1,1)", "odd", 3]}},
        {"settings": {"env": "agentgym/Remote-v0", "options": ["env=agentgym/TextCraft-v0", "depth=(1,1)"]}},
        {"config": {"world": {"env": "agentgym/TextCraft-v0", "options": ["depth=(1,1)"]}, "extra_worlds": []}},
        {"config": {"world": {"env": "babyai"}, "extra_worlds": [{"env": "textcraft", "options": ["depth=(1,1)"]}]}},
    ],
)
def test_environment_options_are_found_in_all_kinds_of_records(record: dict[str, Any]) -> None:
    settings = Run("r", "r", Path("r"), "train", record).settings
    assert "depth=(1,1)" in recorded_env.raw_env_options(settings, "agentgym/TextCraft-v0")
    assert recorded_env.raw_env_options(settings, "agentgym/SciWorld-v0") == []


@pytest.mark.parametrize(
    ("settings", "prompt"),
    [
        ({"env": "textcraft", "prompt": "brief"}, "brief"),
        ({"world": {"env": "babyai", "prompt": "a"}, "extra_worlds": [{"env": "textcraft", "prompt": "b"}]}, "b"),
        ({"env": "babyai", "prompt": "brief"}, ""),
        ({"env": "textcraft", "prompt": ["brief"]}, ""),
        ({"env": "textcraft"}, ""),
    ],
)
def test_prompt_is_found_in_all_kinds_of_records(settings: dict[str, Any], prompt: str) -> None:
    assert recorded_env.recorded_prompt(settings, "agentgym/TextCraft-v0") == prompt


def test_recorded_ids_are_found_without_searching_the_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search takes about 7 ms, and the page of an episode looks for its environment three times."""
    searched: list[object] = []
    monkeypatch.setattr(registration, "entry_points", lambda **names: searched.append(names) or ())
    settings = {"env": "agentgym/TextCraft-v0", "options": ["depth=1"]}
    assert recorded_env.raw_env_options(settings, "agentgym/TextCraft-v0") == ["depth=1"]
    assert recorded_env.raw_env_options(settings, "agentgym/BabyAI-v0") == []
    assert recorded_env.raw_env_options({"env": "textcraft"}, "agentgym/TextCraft-v0") == []
    assert searched == []
