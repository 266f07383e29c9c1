"""Tests of the selection of explored episodes that AgentEvol trains on."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from agentgym_envs import Episode
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import (
    AgentEvolConfig,
    Exploration,
    WorldConfig,
)
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers.agent_evol import Evolution, distinct, select_training_episodes, train
from agentgym_trainer.trainers.training_data import thresholds_by_id
from coin_world import OTHER
from rich.console import Console
from toy_learner import episode_with_samples


def _episode_with(score: float, *, stop: str = "terminated", text: str = "said") -> Episode:
    ended = episode_with_samples([None], [score], stop=stop)
    turns = tuple(replace(turn, reply=replace(turn.reply, text=text)) for turn in ended.turns)
    return replace(ended, turns=turns, success=None if ended.failed else score == 1)


def test_selection_requires_success_or_score_and_excludes_cut_episodes() -> None:
    sampled = [
        _episode_with(1.0),
        _episode_with(0.6),
        _episode_with(0.2),
        _episode_with(1.0, stop="length"),
        _episode_with(0.0, stop="failed"),
    ]
    assert select_training_episodes(sampled, Exploration(most=0)) == sampled[:1]
    assert select_training_episodes(sampled, Exploration(keep="all", most=0)) == sampled[:3]
    assert select_training_episodes(sampled, Exploration(keep="all", min_score=0.5, most=0)) == sampled[:2]


def test_selection_keeps_the_best_episodes_of_each_task() -> None:
    sampled = [_episode_with(0.2), _episode_with(0.6), _episode_with(1.0), _episode_with(1.0, text="again")]
    other_task = [replace(e, task_id="coin/train/2") for e in sampled[:2]]
    other_env = [replace(e, env=OTHER) for e in sampled[:1]]
    episodes = [*sampled, *other_task, *other_env]
    assert select_training_episodes(episodes, Exploration(keep="all")) == [sampled[2], other_task[1], other_env[0]]
    assert select_training_episodes(episodes, Exploration(keep="all", most=2)) == [
        *sampled[2:],
        *other_task[::-1],
        *other_env,
    ]


def test_environments_can_have_their_own_score_thresholds() -> None:
    episodes = [_episode_with(1.0), _episode_with(0.6), _episode_with(0.2), _episode_with(0.0, stop="failed")]
    other_env = [replace(e, env=OTHER) for e in episodes]
    settings = Exploration(thresholds=(f"{OTHER}=0.2",), most=0)
    assert select_training_episodes([*episodes, *other_env], settings) == [episodes[0], *other_env[:2]]


def test_thresholds_are_those_of_the_environments_that_are_played(tmp_path: Path) -> None:
    assert thresholds_by_id(Exploration(thresholds=("sciworld=0.5",))) == {"agentgym/SciWorld-v0": 0.5}
    exploration = Exploration(thresholds=("agentgym/SciWrld-v0=0.5",))
    config = AgentEvolConfig(world=WorldConfig("textcraft"), exploration=exploration, device="cpu")
    with pytest.raises(UsageError, match="names agentgym/SciWrld-v0, and this run plays agentgym/TextCraft-v0"):
        train(config, RunFolder(tmp_path / "run"), RunConsole(Console(quiet=True)), Stopping())


@pytest.mark.parametrize("threshold", ["0.5", "=0.5", "coin/Coin-v0", "coin/Coin-v0=one", "coin/Coin-v0=1", "x=-0.1"])
def test_invalid_thresholds_are_rejected(threshold: str) -> None:
    with pytest.raises(ValueError, match=f"ENV=SCORE with a score from 0 to below 1, not {threshold}"):
        Exploration(thresholds=(threshold,))


def test_the_first_of_duplicate_episodes_is_kept() -> None:
    first, duplicate = _episode_with(1.0), replace(_episode_with(1.0), policy="another", sample=3)
    other_text, other_task = _episode_with(1.0, text="other"), replace(first, task_id="coin/train/2")
    assert distinct([first, other_text, duplicate, other_task]) == [first, other_text, other_task]


@pytest.mark.parametrize("settings", [{"iterations": 0}, {"base": 1.5}, {"base": math.nan}])
def test_invalid_settings_are_rejected(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        replace(AgentEvolConfig(), **settings)


@pytest.mark.parametrize(("memory", "numbers"), [("all", [1, 2, 3]), ("last", [3])])
def test_memory_selects_kept_episodes_of_all_or_the_last_iteration(
    tmp_path: Path, memory: Literal["all", "last"], numbers: list[int]
) -> None:
    evolution = Evolution(
        replace(AgentEvolConfig(), memory=memory), RunFolder(tmp_path), RunConsole(Console()), Stopping()
    )
    assert evolution.sources(3) == [evolution.iteration(number).kept for number in numbers]
    assert evolution.sources(0) == []
