"""Tests of updates and whole runs on a device that isn't the CPU, against the same on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from agentgym_trainer.run.folder import RunFolder
from emulated_device import check_rules, train_on_device, update_cases
from forked_processes import run_process
from safetensors.torch import load_file
from toy_learner import coin_flags, sft_flags, train_cli
from two_processes import CASES, train

THREE_STEPS = ("--steps", "3", "--epochs", "1", "--save-every", "2", "--evaluation.every", "2")
RL_RUNS = {
    "ppo with a critic": ("--algorithm", "ppo", "--critic.where", "head", "--optimizer.offload"),
    "an adapter and labels": (
        *("--lora.rank", "4", "--gradient-checkpointing", "on"),
        *("--distillation.expert", "oracle", "--distillation.label-weight", "0.5"),
    ),
}
"""Flags of RL runs that exercise different parts of the trainer."""


@pytest.mark.long
def test_the_device_refuses_what_cuda_refuses() -> None:
    assert run_process(check_rules) == 0


@pytest.mark.long
def test_updates_on_a_device_equal_those_on_the_cpu(tmp_path: Path) -> None:
    assert run_process(update_cases, tmp_path / "results") == 0
    results: dict[str, Any] = torch.load(tmp_path / "results")
    assert results.keys() == CASES.keys()
    for case, (metrics, weights) in results.items():
        expected_metrics, expected = train(case, Accelerator(cpu=True))
        assert metrics == pytest.approx(expected_metrics, abs=1e-4, nan_ok=True), case
        for name, weight in expected.items():
            torch.testing.assert_close(weights[name], weight, atol=1e-3, rtol=0, msg=f"{case}: {name}")


@pytest.mark.long
@pytest.mark.parametrize("more", RL_RUNS.values(), ids=RL_RUNS)
def test_rl_on_a_device_equals_rl_on_the_cpu(more: tuple[str, ...], tmp_path: Path) -> None:
    """Warm start, rollouts, updates, evaluations, checkpoints in the background and the final model.

    Later steps may differ: Adam's first steps have the same length for any gradient, so rounding decides tiny ones.
    """
    on_device, on_cpu, log = RunFolder(tmp_path / "device"), RunFolder(tmp_path / "cpu"), tmp_path / "log"
    assert run_process(train_on_device, coin_flags(on_device.path, *THREE_STEPS, *more), log) == 0, log.read_text()
    assert train_cli(coin_flags(on_cpu.path, *THREE_STEPS, *more)) == 0
    (line, *rest), (expected, *_) = (list(run.read_metrics()) for run in (on_device, on_cpu))
    assert [later["step"] for later in rest] == [2, 3]
    assert line["stops"] == expected["stops"]
    for name in ("loss", "grad_norm", "entropy", "score", "approx_kl"):
        assert line[name] == pytest.approx(expected[name], abs=1e-4), name
    assert (
        load_file(on_device.model / "model.safetensors").keys() == load_file(on_cpu.model / "model.safetensors").keys()
    )


@pytest.mark.long
def test_sft_on_a_device_equals_sft_on_the_cpu(tmp_path: Path) -> None:
    on_device, on_cpu, log = RunFolder(tmp_path / "device"), RunFolder(tmp_path / "cpu"), tmp_path / "log"
    assert run_process(train_on_device, sft_flags(on_device.path, "--epochs", "1"), log) == 0, log.read_text()
    assert train_cli(sft_flags(on_cpu.path, "--epochs", "1")) == 0
    losses, expected_losses = ([line["loss"] for line in run.read_metrics()] for run in (on_device, on_cpu))
    assert losses == pytest.approx(expected_losses, abs=1e-4)
    weights, expected = (load_file(run.model / "model.safetensors") for run in (on_device, on_cpu))
    assert weights.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(weights[name], weight, atol=1e-3, rtol=0)
