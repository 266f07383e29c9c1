"""Tests of the leaderboard page, generated from the episodes of runs."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from agentgym_envs import Episode, Reply, Turn
from safetensors.numpy import save_file

pytestmark = pytest.mark.long


@pytest.fixture
def board(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
    return importlib.import_module("leaderboard")


def _write_run(folder: Path, env: str, samples: int, share: float) -> None:
    """Write a run of ten tasks with a given number of successes."""
    folder.mkdir(parents=True)
    turn = Turn("see", Reply("do"), "do", valid=True, reward=0.0, state_key="s")
    episodes = [
        Episode(
            env=env, task_id=f"t/{task}", split="test", category="c", difficulty=1, policy="p", sample=sample,
            instructions="", turns=(turn, turn), final_observation="", stop="terminated",
            score=float(task < 10 * share), success=task < 10 * share,
        )
        for task in range(10) for sample in range(samples)
    ]  # fmt: skip
    (folder / "episodes.jsonl").write_text("".join(episode.to_json() + "\n" for episode in episodes))
    (folder / "report.json").write_text("{}")


def _write_model(folder: Path, *, minutes: float) -> None:
    (folder / "model").mkdir(parents=True)
    save_file({"a": np.zeros((3, 5)), "b": np.zeros(7)}, folder / "model" / "model.safetensors")
    (folder / "took.json").write_text(json.dumps({"seconds": 1.0, "cpu_seconds": 60 * minutes, "resumed": False}))


def test_the_page_has_all_policies_and_published_results(board: Any, tmp_path: Path) -> None:
    runs, shares = tmp_path / "runs", {"oracle": 1.0, "random": 0.1}
    cells = board.cells_of(board.WORLDS, runs)
    for cell in cells:
        _write_run(cell.folder, cell.world.env, cell.samples, shares.get(cell.policy, 0.5))
    for world in board.WORLDS:
        for recipe in world.recipes:
            _write_model(runs / recipe, minutes=2)
    board.write(cells, board.WORLDS, runs, tmp_path / "results")
    page = (tmp_path / "results" / "leaderboard.md").read_text()
    rows = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1:] for line in page.splitlines()[10:30]}
    assert all(cell.startswith("100.0 (") for cell in rows["oracle"][1:])
    assert [cell.startswith("10.0 (") for cell in rows["random"][1:]] == [True, False, True, True, True]
    assert rows["ScalingInter-7B"] == ["published", "26", "38.25", "91", "96.67", "57 |"]
    assert {name for name, row in rows.items() if row[:1] == ["published"]} == set(
        importlib.import_module("leaderboard_page").PUBLISHED
    )
    assert "| 22 |" in page and "| 4 |" in page  # parameters, and minutes of TextCraft's two recipes
    assert (tmp_path / "results" / "leaderboard" / "turns.png").exists()
    measured = json.loads((tmp_path / "results" / "leaderboard.json").read_text())["measured"]
    assert len(measured) == len(cells) == 19


def test_missing_runs_are_named(board: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="webarena-oracle has no report"):
        board.write(board.cells_of(board.WORLDS, tmp_path), board.WORLDS, tmp_path, tmp_path)
