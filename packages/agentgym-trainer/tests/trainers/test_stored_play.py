"""Tests of episodes that are stored as they end, and of what a resumed run plays again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agentgym_envs import Episode, EpisodeSpec
from agentgym_eval.storage.store import Store
from agentgym_trainer.trainers.stored_play import StoredPlay

WORLD: Any = SimpleNamespace(name="w")


def episode(sample: int, stop: str) -> Episode:
    success = None if stop == "failed" else True
    return Episode("w", "w/train/0", "train", "c", 1, "p", sample, "", (), "", stop, success and 1.0, success)  # type: ignore[arg-type]


def store(folder: Path, *episodes: Episode) -> None:
    with Store(folder, {}) as opened:
        for each in episodes:
            opened.append(each)


@pytest.mark.parametrize("process", [0, 1])
def test_failed_episodes_are_played_again_by_any_process(tmp_path: Path, process: int) -> None:
    specs = [EpisodeSpec("w/train/0", sample, 7) for sample in range(3)]
    play = StoredPlay([(WORLD, specs)], tmp_path)
    assert play.missing() == [(WORLD, specs)]
    store(tmp_path / "1", episode(0, "terminated"), episode(1, "failed"))
    assert play.missing() == [(WORLD, specs[1:])]
    store(tmp_path / str(process), episode(1, "terminated"), episode(2, "failed"))
    assert play.missing() == [(WORLD, specs[2:])]
    assert [(each.sample, each.stop) for each in play.episodes()] == [
        (0, "terminated"),
        (1, "terminated"),
        (2, "failed"),
    ]


def test_half_a_line_of_a_killed_process_is_played_again(tmp_path: Path) -> None:
    specs = [EpisodeSpec("w/train/0", sample, 7) for sample in range(2)]
    play = StoredPlay([(WORLD, specs)], tmp_path)
    store(tmp_path / "0", episode(0, "terminated"), episode(1, "terminated"))
    file = tmp_path / "0" / "episodes.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert play.missing() == [(WORLD, specs[1:])]
    store(tmp_path / "0", episode(1, "terminated"))
    assert play.missing() == []
    assert [each.sample for each in play.episodes()] == [0, 1]
