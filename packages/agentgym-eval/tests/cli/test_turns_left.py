"""Tests of `evaluate` and `collect` with an agent that shows the number of turns left."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import pytest
from agentgym_envs import read_episodes
from agentgym_eval.cli.main import collect, evaluate
from counting_world import ENV

FLAGS = ["--env", ENV, "--policy", "oracle", "--tasks", "2", "--samples", "1", "--agent", "react+turns_left"]


def last_lines(path: Path) -> list[list[str]]:
    """Return the last line of each observation, by episode."""
    episodes = list(read_episodes(path))
    assert {episode.agent for episode in episodes} == {"react+turns_left"}
    return [[turn.observation.rpartition("\n")[2] for turn in episode.turns] for episode in episodes]


@pytest.mark.parametrize("horizon", [["--horizon", "9"], []])
def test_evaluate_and_collect_show_turns_left(tmp_path: Path, horizon: list[str]) -> None:
    assert evaluate([*FLAGS, *horizon, "--split", "train", "--out", str(tmp_path / "run")]) == 0
    assert collect([*FLAGS, *horizon, "--out", str(tmp_path / "data.jsonl")]) == 0
    limit = int(horizon[1]) if horizon else gymnasium.spec("counting/Count-v0").max_episode_steps
    assert limit is not None
    for path in (tmp_path / "run" / "episodes.jsonl", tmp_path / "data.jsonl"):
        for episode in last_lines(path):
            assert episode == [f"Turns left: {limit - k}." for k in range(len(episode))]
    agent = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["agent"]
    assert agent == "react+turns_left"


def test_environment_without_a_limit_needs_a_horizon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gymnasium.register("counting/Endless-v0", "counting_world:Count", disable_env_checker=True)
    try:
        flags = [*FLAGS[2:], "--env", "counting_world:counting/Endless-v0", "--out", str(tmp_path / "run")]
        assert evaluate(flags) == 2
        assert "Give a horizon" in capsys.readouterr().err
        assert evaluate([*flags, "--horizon", "5"]) == 0
    finally:
        del gymnasium.registry["counting/Endless-v0"]
