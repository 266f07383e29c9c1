"""Tests of complete SFT runs in the coin environment: their files, and resuming after interruptions."""

from __future__ import annotations

import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from agentgym_envs import Episode
from agentgym_trainer.config import SFTConfig
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.run.manifest import find_damage
from forked_processes import is_loaded, train_with_signals
from metric_lines import without_measured
from safetensors.torch import load_file
from toy_learner import SignalPoint, StopAfterCalls, sft_flags, train_cli

pytestmark = pytest.mark.long

STEPS = 24


def weights(folder: RunFolder) -> bytes:
    return (folder.model / "model.safetensors").read_bytes()


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    """Return the metrics without timings."""
    return without_measured(folder.read_metrics())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """An uninterrupted run."""
    folder = RunFolder(tmp_path_factory.mktemp("uninterrupted") / "run")
    assert train_cli(sft_flags(folder.path)) == 0
    return folder


def test_sft_runs_write_metrics_evaluations_and_checkpoints(uninterrupted: RunFolder) -> None:
    _, config, recipe = RunFolder.open(uninterrupted.path)
    assert isinstance(config, SFTConfig)
    assert recipe == "sft-textcraft"
    assert json.loads(uninterrupted.settings.read_text())["kind"] == "sft"
    metrics = lines(uninterrupted)
    assert [line["step"] for line in metrics] == list(range(1, STEPS + 1))
    assert metrics[-1]["loss"] < 0.7 * metrics[0]["loss"]
    assert [line["step"] for line in metrics if "dev" in line] == [9, 18, 24]
    assert uninterrupted.evaluated_steps("sampled") == uninterrupted.evaluated_steps("greedy") == [0, 9, 18, 24]
    summary = json.loads(uninterrupted.summary.read_text())
    assert summary["steps"] == STEPS
    assert summary["evaluations"]["dev"]["greedy"].keys() == {"0", "9", "18", "24"}
    assert summary["evaluations"]["test"]["greedy"].keys() == {"0", "24"}
    assert uninterrupted.curve.stat().st_size > 10_000
    assert len(uninterrupted.read_data()) == 64
    for kept in ("step-000018", "step-000024"):
        assert find_damage(uninterrupted.checkpoints / kept) is None
    last = load_file(uninterrupted.checkpoints / "step-000024" / "model.safetensors")
    for name, weight in load_file(uninterrupted.model / "model.safetensors").items():
        assert torch.equal(weight, last[name])


def test_the_model_learns_to_reply_with_valid_actions(uninterrupted: RunFolder) -> None:
    """The coins are unpredictable, so the model can only learn to say nothing but heads or tails."""
    before, after = (uninterrupted.read_evaluation(step, "greedy") or [] for step in (0, STEPS))

    def valid(episodes: Sequence[Episode]) -> float:
        turns = [turn for episode in episodes for turn in episode.turns]
        return sum(turn.valid for turn in turns) / len(turns)

    assert valid(before) < 0.2
    assert valid(after) > 0.9


def test_resuming_a_finished_run_changes_nothing(uninterrupted: RunFolder) -> None:
    before = weights(uninterrupted), lines(uninterrupted)
    assert train_cli(["--resume", str(uninterrupted.path)]) == 0
    assert (weights(uninterrupted), lines(uninterrupted)) == before


def test_stopped_runs_save_and_resume_identically(
    uninterrupted: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr("agentgym_trainer.trainers.sft.train", _train_with_stop_after(13))
        assert train_cli(sft_flags(folder.path)) == 130
    assert f"Saved after step 13; resume with: uv run train --resume {folder.path}" in " ".join(
        capfd.readouterr().err.split()
    )
    assert train_cli(["--resume", str(folder.path)]) == 0
    assert weights(folder) == weights(uninterrupted)
    assert lines(folder) == lines(uninterrupted)


def _train_with_stop_after(steps: int) -> Any:
    """Return a `train` that is stopped after a number of steps."""
    from agentgym_trainer.trainers.sft import train

    return lambda config, folder, tracker, _: train(config, folder, tracker, StopAfterCalls(steps))


@pytest.mark.parametrize(
    ("point", "more"),
    [
        (
            SignalPoint("agentgym_trainer.trainers.trl_run:TRLRunCallback", "on_step_end", 16),
            ("--lora.rank", "2", "--lora.dropout", "0.1"),
        ),
        (SignalPoint("agentgym_trainer.trainers.sft:Imitator", "save_model", 3), ()),
        (SignalPoint("agentgym_trainer.run.folder:RunFolder", "save_evaluation", 5), ()),
    ],
)
def test_killed_runs_resume_with_identical_weights(
    point: SignalPoint, more: tuple[str, ...], uninterrupted: RunFolder, tmp_path: Path
) -> None:
    expected, killed = RunFolder(tmp_path / "uninterrupted") if more else uninterrupted, RunFolder(tmp_path / "killed")
    if more:
        assert train_cli(sft_flags(expected.path, *more)) == 0
    log = tmp_path / "log"
    assert train_with_signals(point, sft_flags(killed.path, *more), log) == -signal.SIGKILL, log.read_text()
    assert train_cli(["--resume", str(killed.path)]) == 0
    assert weights(killed) == weights(expected)
    assert lines(killed) == lines(expected)
    assert not list(killed.checkpoints.glob("checkpoint-*"))


def test_signals_end_runs_immediately_and_they_resume_identically(uninterrupted: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    evaluation, logging = (
        ("agentgym_trainer.trainers.evaluation:Evaluator", "_group_specs"),
        ("agentgym_trainer.trainers.trl_run:TRLRunCallback", "on_log"),
    )
    seed = int(np.random.default_rng(0).integers(1, 8))
    arguments = sft_flags(folder.path)
    for point, step in (
        # Two evaluations before training and two after step 9; the second of these is interrupted.
        (SignalPoint(*evaluation, 4, signal.SIGTERM), 9),
        (SignalPoint(*evaluation, 1, signal.SIGUSR1), 9),
        (SignalPoint(*logging, seed, signal.SIGTERM), 9 + seed + 1),
        # Two evaluations after step 18, then those of the last step.
        (SignalPoint(*evaluation, 3, signal.SIGUSR1), STEPS),
    ):
        code = train_with_signals(point, arguments, tmp_path / "log")
        stderr = (tmp_path / "log").read_text()
        assert code == 128 + point.signal, stderr
        assert f"resume with: uv run train --resume {folder.path}\n" in stderr
        assert "Traceback" not in stderr
        assert find_damage(folder.checkpoints / f"step-{step:06d}") is None
        assert lines(folder)[-1]["step"] == step
        assert not folder.model.exists()
        arguments = ["--resume", str(folder.path)]
    assert train_cli(arguments) == 0
    assert weights(folder) == weights(uninterrupted)
    assert lines(folder) == lines(uninterrupted)
    assert folder.evaluated_steps("greedy") == [0, 9, 18, 24]
    assert folder.checkpoints.joinpath("best").readlink() == uninterrupted.checkpoints.joinpath("best").readlink()


def test_the_best_step_may_have_an_interrupted_evaluation(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    interrupt = SignalPoint("agentgym_trainer.trainers.evaluation:Evaluator", "_group_specs", 3, signal.SIGTERM)
    flags = sft_flags(folder.path, "--epochs", "1", "--evaluation.every", "0")
    assert train_with_signals(interrupt, flags, tmp_path / "log") == 143, (tmp_path / "log").read_text()
    assert not folder.checkpoints.joinpath("best").exists()
    # Completes the evaluation, and is killed before the metrics line has it.
    kill = SignalPoint("agentgym_trainer.run.folder:RunFolder", "save_evaluation", 2)
    assert train_with_signals(kill, ["--resume", str(folder.path)], tmp_path / "log") == -signal.SIGKILL
    assert train_cli(["--resume", str(folder.path)]) == 0
    assert folder.checkpoints.joinpath("best").readlink() == Path("step-000008")
    assert lines(folder)[-1]["dev"].keys() == {"sampled", "greedy"}


def test_checkpoints_are_written_by_elapsed_time(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    flags = ("--epochs", "1", "--save-every", "100", "--save-minutes", "1e-9", "--keep-checkpoints", "9")
    assert train_cli(sft_flags(folder.path, *flags)) == 0
    assert sorted(path.name for path in folder.checkpoints.glob("step-*")) == [f"step-00000{n}" for n in range(1, 9)]


def test_training_imports_trl_but_not_vllm() -> None:
    assert is_loaded("trl")
    assert not is_loaded("vllm")
