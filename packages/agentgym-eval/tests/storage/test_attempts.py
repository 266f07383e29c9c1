"""Tests of reading the attempts in a file of episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from agentgym_eval.storage.attempts import read_attempts
from viewer_runs import episode, write_episodes


def test_last_line_of_an_attempt_counts(tmp_path: Path) -> None:
    lost, won, other = (episode("t/0", 0, success) for success in (False, True, True))
    lines = [lost, episode("t/0", 1), replace(other, env="w"), replace(other, policy="q"), won]
    path = write_episodes(tmp_path / "episodes.jsonl", lines)
    found = read_attempts(path)
    assert found.episodes == [won, *lines[1:4]]
    assert found.left_out == [f"{path}, line 1: t/0, sample 0, is in line 5 again, which counts instead."]


@pytest.mark.parametrize("name", ["rollouts/step-000001.jsonl", "data.jsonl", "sampled.jsonl"])
def test_every_line_of_training_data_counts(tmp_path: Path, name: str) -> None:
    path = write_episodes(tmp_path / name, [episode(), episode()])
    assert len(read_attempts(path).episodes) == 2
    assert read_attempts(path).left_out == []
