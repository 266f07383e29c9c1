from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from agentgym_envs import EnvFault, Episode, EpisodeSpec, Policy, Reply, TextEnv, TurnContext, make, play, text_env
from agentgym_envs.agents.agent import Agent
from agentgym_eval.viewer.index.runs import Run
from agentgym_eval.viewer.pages import scenes
from agentgym_eval.viewer.pages.scenes import SceneReplayer
from counting_world import Count

TASK = "textcraft/train/stick"


class Says(Policy):
    """Replies with the given texts in order."""

    name = "says"

    def __init__(self, *texts: str | Reply) -> None:
        self._texts = iter(texts)

    async def reply(self, context: TurnContext) -> Reply:
        text = next(self._texts)
        return text if isinstance(text, Reply) else Reply(text)


def played(*texts: str | Reply, agent: str = "bare", task: str = TASK, horizon: int = 9, **options: Any) -> Episode:
    env = Agent.parse(agent).wrap(make("agentgym/TextCraft-v0", **options))
    return play(env, Says(*texts), EpisodeSpec(task, seed=3, split="train"), horizon=horizon)


def run(settings: dict[str, Any] | None = None, **record: Any) -> Run:
    settings = {"env": "textcraft", "options": [], "seed": 3} if settings is None else settings
    return Run("r", "r", Path("r"), "evaluate", {"settings": settings, **record})


def inventories(found: scenes.Scenes) -> list[dict[str, int] | None]:
    return [scene and scene["inventory"] for scene in (*found.before, found.end)]


def test_each_turn_has_the_scene_it_began_with() -> None:
    episode = played("get 2 bamboo", "what?", "two\nlines", "craft 1 stick using 2 bamboo")
    found = SceneReplayer().scenes(run(), episode)
    assert inventories(found) == [{}, *[{"bamboo": 2}] * 3, {"stick": 1}]
    assert found.note == ""
    assert found.at(3) == found.before[3]
    assert found.at(4) == found.end


def test_trials_plans_and_looks_back_are_followed() -> None:
    texts = ["plan", "get 2 bamboo", "look back", "plan", "get 1 bamboo", "inventory"]
    episode = played(*texts, agent="bare+plan+retry:1", horizon=1)
    kinds = [turn.kind for turn in episode.turns]
    assert kinds == ["plan", "act", "reflect", "plan", "act"]
    found = SceneReplayer().scenes(run(), episode)
    assert inventories(found) == [{}, {}, {"bamboo": 2}, {}, {}, {"bamboo": 1}]


def test_a_reply_that_was_cut_is_not_played() -> None:
    episode = played("get 2 bamboo", Reply("get 3 bam", finish="length"))
    assert episode.stop == "length"
    assert inventories(SceneReplayer().scenes(run(), episode)) == [{}, {"bamboo": 2}, {"bamboo": 2}]


def test_the_options_of_the_run_count_and_where_they_are_unknown_it_says_so() -> None:
    episode = played("inventory", "craft 1 stick using 2 bamboo", "get 1 bamboo", horizon=3, distractors=1)
    told = run({"env": "textcraft", "options": ["distractors=1"], "seed": 3})
    assert SceneReplayer().scenes(told, episode).note == ""
    lost = SceneReplayer().scenes(run(), episode)
    assert "no scenes from the beginning on" in lost.note
    assert inventories(lost) == [None] * 4


def test_what_is_drawn_ends_where_the_world_answers_otherwise() -> None:
    episode = played("get 2 bamboo", "inventory", "get 1 bamboo", horizon=3)
    changed = replace(episode.turns[2], observation="Inventory: gold")
    found = SceneReplayer().scenes(run(), replace(episode, turns=(*episode.turns[:2], changed)))
    assert inventories(found) == [{}, {"bamboo": 2}, None, None]
    assert "from turn 2 on" in found.note


def test_an_unknown_task_is_a_note() -> None:
    episode = replace(played("get 2 bamboo", horizon=1), task_id="textcraft/train/nothing")
    found = SceneReplayer().scenes(run(), episode)
    assert "no task 'textcraft/train/nothing'" in found.note
    assert inventories(found) == [None, None]


def test_worlds_that_draw_nothing_are_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Count, "__init__", lambda *_, **__: pytest.fail("the world was made"))
    episode = replace(played("get 2 bamboo", horizon=1), env="counting/Count-v0")
    assert SceneReplayer().scenes(run(), episode) == scenes.Scenes()
    assert SceneReplayer().scenes(run(), replace(episode, env="nobody/Knows-v0")) == scenes.Scenes()
    assert not SceneReplayer().is_slow(episode)


class Shelf(Count):
    """Draws; and has an option that a folder from elsewhere must not set."""

    client_options = frozenset({"listed"})
    made: list[dict[str, Any]] = []  # noqa: RUF012

    def __init__(self, *, program: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.made.append({"program": program, **options})

    def scene(self) -> dict[str, Any]:
        return {"kind": "shelf"}


def test_a_recorded_name_never_imports_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_world.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    episode = replace(played("craft 1 stick", horizon=1), env="planted_world:planted/World-v0")
    assert SceneReplayer().scenes(run(), episode) == scenes.Scenes()


def test_a_world_that_breaks_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def jammed(*_: Any, **__: Any) -> None:
        raise EnvFault("the lid jammed")

    episode, replayer = played("get 2 bamboo", horizon=1), SceneReplayer()
    monkeypatch.setattr(type(text_env(make("agentgym/TextCraft-v0"))), "_start", jammed)
    found = replayer.scenes(run(), episode)
    assert (inventories(found), found.note) == ([None, None], "The scenes can't be rendered: the lid jammed")


def test_options_that_a_client_may_not_set_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gymnasium.register("counting/Shelf-v0", f"{__name__}:Shelf")
    monkeypatch.setattr(scenes, "load_env_creator", lambda _: Shelf)
    episode = replace(played("get 2 bamboo", horizon=1), env="counting/Shelf-v0", task_id="count/train/1")
    told = run({"env": "counting/Shelf-v0", "options": ["program=rm", "listed=False"]})
    Shelf.made.clear()
    SceneReplayer().scenes(told, episode)
    assert Shelf.made == [{"program": "", "listed": False}]
    gymnasium.registry.pop("counting/Shelf-v0")


def test_a_world_is_played_once_and_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    replayer, episode = SceneReplayer(), played("get 2 bamboo", "inventory", horizon=2)
    kind = type(text_env(make("agentgym/TextCraft-v0")))
    resets = itertools.count()
    whole = TextEnv.reset
    monkeypatch.setattr(kind, "reset", lambda self, **given: (next(resets), whole(self, **given))[1])
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
        {"config": {"world": {"env": "agentgym/TextCraft-v0", "options": ["depth=(1,1)"]}, "others": []}},
        {"config": {"world": {"env": "babyai"}, "others": [{"env": "textcraft", "options": ["depth=(1,1)"]}]}},
    ],
)
def test_a_world_is_found_in_whatever_a_run_says(record: dict[str, Any]) -> None:
    assert scenes.env_options(Run("r", "r", Path("r"), "train", record), "agentgym/TextCraft-v0")["depth"] == (1, 1)
    assert scenes.env_options(Run("r", "r", Path("r"), "train", record), "agentgym/SciWorld-v0") == {}
