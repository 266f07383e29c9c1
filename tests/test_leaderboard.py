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
    tested = {step: {"success": {"mean": mean}} for step, mean in (("0", 0.25), ("20", 0.75))}
    (folder / "summary.json").write_text(json.dumps({"evaluations": {"test": {"sampled": tested}}}))
    (folder / "took.json").write_text(json.dumps({"seconds": 1.0, "cpu_seconds": 60 * minutes, "resumed": False}))


def _write_runs(board: Any, runs: Path, shares: dict[str, float], *, other: float) -> list[Any]:
    """Write a finished evaluation of each cell and the models they play."""
    cells = board.cells_of((*board.WORLDS, *board.TASK_SETS), runs)
    for cell in cells:
        _write_run(cell.folder, cell.world.env, cell.samples, shares.get(cell.policy, other))
    for world in (*board.WORLDS, *board.TASK_SETS):
        for recipe in world.recipes:
            _write_model(runs / recipe, minutes=2)
    return cells


def test_the_page_has_all_policies_and_published_results(board: Any, tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    cells = _write_runs(board, runs, {"oracle": 1.0, "random": 0.1}, other=0.5)
    (tmp_path / "results").mkdir()
    outcome = {"world": "textcraft", "method": "recipe", "sft": 0.4, "rl": 0.5, "sft_greedy": 0.5, "rl_greedy": 0.7}
    learned = [outcome, {**outcome, "sft": 0.5, "rl": 0.7}, {**outcome, "method": "dagger", "rl": 0.0}]
    (tmp_path / "results/smollm2.json").write_text(json.dumps(learned))
    board.write(cells, runs, tmp_path / "results")
    page = (tmp_path / "results" / "leaderboard.md").read_text()
    rows = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1:] for line in page.splitlines()[10:30]}
    assert all(cell.startswith("100.0 (") for cell in rows["oracle"][1:])
    assert [cell.startswith("10.0 (") for cell in rows["random"][1:]] == [True, False, True, True, True]
    assert rows["ScalingInter-7B"] == ["published", "26", "38.25", "91", "96.67", "57 |"]
    assert {name for name, row in rows.items() if row[:1] == ["published"]} == set(
        importlib.import_module("leaderboard_page").PUBLISHED
    )
    assert "| policy | source | WebArena, rough skin | MiniWoB++ |" in page
    assert "| MiniWoB++, twelve pages | `miniwob` | 22 | as it is played | 25.0 → 75.0 | 2 |" in page
    assert "| `c` | 100.0 | 10.0 | 50.0 | 50.0 |" in page
    assert "| `smollm2-textcraft` | 2 | 45.0 | 60.0 | 50.0 | 70.0 |" in page
    assert "| 22 |" in page and "| 6 |" in page  # parameters, and minutes of TextCraft's three recipes
    assert (tmp_path / "results" / "leaderboard" / "turns.png").exists()
    measured = json.loads((tmp_path / "results" / "leaderboard.json").read_text())["measured"]
    assert len(measured) == len(cells) == 27
    rough = next(record for record in measured if record["name"] == "WebArena, rough skin")
    assert "--env agentgym/WebArena-v0" in rough["commands"][-1] and "--options skin=rough" in rough["commands"][-1]


def test_a_policy_without_a_run_keeps_its_record(board: Any, tmp_path: Path) -> None:
    runs, results = tmp_path / "runs", tmp_path / "results"
    board.write(_write_runs(board, runs, {}, other=0.5), runs, results)
    (again,) = (
        cell for cell in board.cells_of(board.TASK_SETS, tmp_path / "later") if cell.folder.name == "miniwob++-random"
    )
    _write_run(again.folder, again.world.env, again.samples, 0.8)
    picture = (results / "leaderboard" / "turns.png").read_bytes()
    before = (results / "leaderboard.md").read_text()
    board.write([again], tmp_path / "later", results)
    after = (results / "leaderboard.md").read_text()
    assert (results / "leaderboard" / "turns.png").read_bytes() == picture
    changed = [(old, new) for old, new in zip(before.splitlines(), after.splitlines(), strict=True) if old != new]
    assert [new.split(" (")[0] for _, new in changed[:1]] == ["| random | measured here | 50.0"]
    assert "80.0 (" in changed[0][1] and "MiniWoB++ | random" in changed[1][1]


def test_pictures_with_earlier_results_than_the_table_are_named(board: Any, tmp_path: Path) -> None:
    runs, results = tmp_path / "runs", tmp_path / "results"
    cells = _write_runs(board, runs, {}, other=0.5)
    board.write(cells, runs, results)
    assert "Earlier results" not in (results / "leaderboard.md").read_text()
    file = results / "leaderboard.json"
    record = json.loads(file.read_text())
    record["drawn"]["TextCraft, random"][0] = 0.25
    file.write_text(json.dumps(record))
    board.write(cells[:1], tmp_path / "later", results)
    page = (results / "leaderboard.md").read_text()
    assert "Earlier results than those of the table are drawn for TextCraft, random." in page


def test_missing_runs_are_named(board: Any, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="webarena-oracle has no report"):
        board.write(board.cells_of(board.WORLDS, tmp_path), tmp_path, tmp_path)
