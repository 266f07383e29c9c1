"""Tests of runs in environments of other libraries, which have seeds as tasks and no expert."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from agentgym_envs import read_episodes
from agentgym_eval.cli.main import evaluate

LAKE = ["--env", "gymnasium:FrozenLake-v1", "--options", "actions=('left', 'down', 'right', 'up')", "test=20"]


def run(out: Path, *flags: str) -> int:
    return evaluate([*LAKE, "settings={'is_slippery': False}", "--out", str(out), *flags])


def test_a_run_is_played_reported_and_resumed_like_any_other(tmp_path: Path) -> None:
    assert run(tmp_path, "--policy", "random", "--tasks", "6") == 0
    assert run(tmp_path, "--policy", "random", "--tasks", "6", "--samples", "2") == 0
    episodes = list(read_episodes(tmp_path / "episodes.jsonl"))
    assert len({(episode.task_id, episode.sample) for episode in episodes}) == len(episodes) == 12
    assert {episode.env for episode in episodes} == {"gymnasium:FrozenLake-v1"}
    assert {episode.stop for episode in episodes} == {"terminated"}  # in a hole or at the goal
    assert all(task.startswith("FrozenLake-v1/test/") for task in {episode.task_id for episode in episodes})
    assert json.loads((tmp_path / "report.json").read_text())["overall"]["episodes"] == 12


def test_a_script_walks_to_the_goal(tmp_path: Path) -> None:
    way = tmp_path / "way.txt"
    way.write_text("down\ndown\nright\nright\ndown\nright\n")
    assert run(tmp_path / "run", "--policy", f"scripted:{way}", "--tasks", "2", "--agent", "bare") == 0
    assert [episode.success for episode in read_episodes(tmp_path / "run/episodes.jsonl")] == [True, True]


def test_the_expert_that_is_not_there_is_refused_with_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--policy", "oracle", "--tasks", "2") == 2
    assert "gymnasium:FrozenLake-v1 has no expert" in capsys.readouterr().err
    assert not (tmp_path / "episodes.jsonl").exists()


def test_an_unknown_environment_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate(["--env", "gymnasium:FrozenLace-v1", "--policy", "random", "--out", str(tmp_path / "run")]) == 2
    assert "FrozenLake" in capsys.readouterr().err
