"""Tests of reading the attempts in a file of episodes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from agentgym_eval.storage.attempts import read_attempts
from agentgym_eval.viewer.index.index import Index
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


@pytest.mark.parametrize("score", [-0.1, 17])
@pytest.mark.parametrize("name", ["episodes.jsonl", "data.jsonl"])
def test_a_score_outside_of_0_to_1_is_an_error(tmp_path: Path, name: str, score: float) -> None:
    path = write_episodes(tmp_path / name, [episode(), replace(episode("t/2"), score=score)])
    with pytest.raises(ValueError, match=rf"{name}, line 2: `score` is {score}, and not in \[0, 1\]"):
        read_attempts(path)
    index = Index(tmp_path, tmp_path / "index.sqlite")
    index.refresh()
    assert [metrics.damaged for metrics in index.run_metrics().values()] == [1]
    index.close()
