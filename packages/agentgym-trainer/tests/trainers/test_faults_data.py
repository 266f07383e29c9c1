"""Tests of faults of runs from data: weights that would be sharded, non-finite values and a full disk."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.trainers import agent_evol, trl_guard, trl_run
from faulty_runs import (
    SAVED,
    STEPS,
    CompleteAndPartialRun,
    assert_checkpoints_intact,
    assert_resumes_identically,
    copy_run,
    full_disk,
    no_space_for,
    read_metrics,
    resume,
    stderr_text,
)
from safetensors.torch import load_file
from toy_learner import train_cli
from transformers import Trainer


def _poison_steps(patch: pytest.MonkeyPatch, *steps: int) -> None:
    """Make the gradient norms of the given optimizer steps of TRL's trainer NaN, or all if none are given."""
    norm, calls = trl_guard.GuardedTrainer._get_grad_norm, iter(range(1, 1000))

    def poisoned(self: Any, model: Any, grad_norm: Any = None) -> Any:
        return norm(self, model, grad_norm * (math.nan if next(calls) in (steps or range(1000)) else 1.0))

    patch.setattr(trl_guard.GuardedTrainer, "_get_grad_norm", poisoned)


@pytest.mark.parametrize("recipe", ["sft-textcraft", "dpo-textcraft", "evol-textcraft"])
def test_weights_cant_be_sharded_in_runs_from_data(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for module in (trl_run, agent_evol):
        monkeypatch.setattr(module, "is_sharded", lambda _: True)
        monkeypatch.setattr(module, "open_environments", lambda _: pytest.fail("environments were opened"))
    assert train_cli([recipe, "--model", str(tmp_path), "--out", str(tmp_path / "run")]) == 2
    assert "Only reinforcement learning can shard its weights" in stderr_text(capfd)


@pytest.mark.long
def test_non_finite_gradients_end_sft_naming_the_last_checkpoint(
    sft: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    complete, partial = sft
    run = copy_run(partial, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        _poison_steps(patch)
        assert resume(run) == 1
    stderr = stderr_text(capfd)
    assert "error: 2 optimizer steps in a row were skipped (optimizer.max_skips), because there were values" in stderr
    assert (
        f"The last healthy checkpoint is {run.checkpoints}/step-{SAVED + 1:06d}, and nothing was saved since." in stderr
    )
    assert_checkpoints_intact(run, steps=SAVED + 1)
    shutil.rmtree(run.checkpoints / f"step-{SAVED + 1:06d}")  # the checkpoint of a skipped step
    assert_resumes_identically(run, complete)


@pytest.mark.long
def test_one_non_finite_step_of_sft_is_skipped_and_counted(
    sft: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    complete, partial = sft
    run = copy_run(partial, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        _poison_steps(patch, 1)
        assert resume(run) == 0
    assert "Step 2 was skipped: values in the gradients weren't finite." in stderr_text(capfd)
    lines = read_metrics(run)
    assert [line["skipped"] for line in lines] == [0, 1, 0]
    assert "loss" not in lines[1]
    assert lines[2]["loss"] > 0
    assert_checkpoints_intact(run, steps=STEPS)
    before, after = (
        load_file(run.checkpoints / f"step-{step:06d}" / "model.safetensors") for step in (SAVED, SAVED + 1)
    )
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert read_metrics(complete)[1]["skipped"] == 0


@pytest.mark.long
def test_failed_saves_end_sft_with_a_message(
    sft: CompleteAndPartialRun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    complete, partial = sft
    run, save = copy_run(partial, tmp_path), trl_guard.GuardedTrainer._save_checkpoint
    with no_space_for("checkpoints", "mkdir"):
        assert resume(run) == 1
    assert f"error: {run.checkpoints} can't be written: [Errno 28] No space left on device" in stderr_text(capfd)

    def poisoned(self: Any, model: Any, trial: Any) -> None:
        next(iter(model.parameters())).data.view(-1)[0] = math.inf
        save(self, model, trial)

    with full_disk("agentgym_trainer.trainers.trl_guard:GuardedTrainer._save_checkpoint"):
        assert resume(run) == 1
    assert f"error: {run.checkpoints}/checkpoint-{SAVED + 1} can't be written: " in stderr_text(capfd)
    assert_checkpoints_intact(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trl_guard.GuardedTrainer, "_save_checkpoint", poisoned)
        assert resume(run) == 1
    assert "weight tensors hold values that aren't finite. The last healthy checkpoint is" in stderr_text(capfd)
    assert_checkpoints_intact(run)
    assert not list(run.checkpoints.glob("checkpoint-*"))
    assert_resumes_identically(run, complete)


def test_the_engine_sleeps_while_a_resumed_run_trains(
    sft: CompleteAndPartialRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, partial = sft
    events: list[str] = []
    put_to_sleep, train = RolloutRunner.sleep, Trainer.train
    monkeypatch.setattr(RolloutRunner, "sleep", lambda self: events.append("sleep") or put_to_sleep(self))
    monkeypatch.setattr(Trainer, "train", lambda self, **given: events.append("train") or train(self, **given))
    assert resume(copy_run(partial, tmp_path)) == 0
    assert events[:2] == ["sleep", "train"]
