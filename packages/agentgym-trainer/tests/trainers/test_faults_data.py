"""Faults injected into runs that learn from data with TRL's trainers, as into those of reinforcement learning."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_trainer.trainers import trl_guard
from faulty_runs import SAVED, STEPS, Begun, copied, full_disk, goes_on, is_healthy, lines_of, resumed, words
from safetensors.torch import load_file

# Runs that learn from data.


def _bad_step(patch: pytest.MonkeyPatch, *steps: int) -> None:
    """The gradients of these optimizer steps of TRL's trainer aren't finite; of all, where none is named."""
    norm, calls = trl_guard.GuardedTrainer._get_grad_norm, iter(range(1, 1000))

    def poisoned(self: Any, model: Any, grad_norm: Any = None) -> Any:
        return norm(self, model, grad_norm * (math.nan if next(calls) in (steps or range(1000)) else 1.0))

    patch.setattr(trl_guard.GuardedTrainer, "_get_grad_norm", poisoned)


@pytest.mark.long
def test_a_sick_run_of_fine_tuning_ends_and_names_the_last_healthy_checkpoint(
    sft: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, begun = sft
    run = copied(begun, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        _bad_step(patch)
        assert resumed(run) == 1
    said = words(capfd)
    assert "error: 2 optimizer steps in a row were skipped (optimizer.max_skips), because there were values" in said
    assert (
        f"The last healthy checkpoint is {run.checkpoints}/step-{SAVED + 1:06d}, and nothing was saved since." in said
    )
    is_healthy(run, steps=SAVED + 1)
    shutil.rmtree(run.checkpoints / f"step-{SAVED + 1:06d}")  # that of the step that was skipped
    goes_on(run, whole)


@pytest.mark.long
def test_one_bad_step_of_fine_tuning_is_skipped_and_counted(
    sft: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, begun = sft
    run = copied(begun, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        _bad_step(patch, 1)
        assert resumed(run) == 0
    assert "Step 2 was skipped: values in the gradients weren't finite." in words(capfd)
    lines = lines_of(run)
    assert [line["skipped"] for line in lines] == [0, 1, 0]
    assert "loss" not in lines[1]
    assert lines[2]["loss"] > 0
    is_healthy(run, steps=STEPS)
    one, two = (load_file(run.checkpoints / f"step-{step:06d}" / "model.safetensors") for step in (SAVED, SAVED + 1))
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert lines_of(whole)[1]["skipped"] == 0


@pytest.mark.long
def test_what_fine_tuning_can_not_save_ends_in_a_sentence(
    sft: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole, begun = sft
    run, save = copied(begun, tmp_path), trl_guard.GuardedTrainer._save_checkpoint

    def poisoned(self: Any, model: Any, trial: Any) -> None:
        next(iter(model.parameters())).data.view(-1)[0] = math.inf
        save(self, model, trial)

    with full_disk("agentgym_trainer.trainers.trl_guard:GuardedTrainer._save_checkpoint"):
        assert resumed(run) == 1
    assert f"error: {run.checkpoints}/checkpoint-{SAVED + 1} can't be written: " in words(capfd)
    is_healthy(run)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trl_guard.GuardedTrainer, "_save_checkpoint", poisoned)
        assert resumed(run) == 1
    assert "weight tensors hold values that aren't finite. The last healthy checkpoint is" in words(capfd)
    is_healthy(run)
    assert not list(run.checkpoints.glob("checkpoint-*"))
    goes_on(run, whole)
