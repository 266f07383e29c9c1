"""Tests of two processes whose frozen weights are in 4 bits: each has the whole model, and FSDP2 is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from agentgym_trainer.run.folder import RunFolder
from forked_processes import run_two_processes
from quantized_models import require_bitsandbytes
from safetensors.torch import load_file
from toy_learner import coin_flags, train_cli
from train_processes import train

pytestmark = pytest.mark.long
require_bitsandbytes()

SETTINGS = (
    *("--lora.rank", "2", "--lora.quantize", "nf4", "--scratch.hidden", "64", "--warm-start.epochs", "4"),
    *("--algorithm", "dapo", "--algorithm.groups.zero-variance", "keep", "--steps", "2", "--evaluation.every", "0"),
)


def test_two_processes_train_an_adapter_of_a_quantized_model(tmp_path: Path) -> None:
    one, two, log = RunFolder(tmp_path / "one"), RunFolder(tmp_path / "two"), tmp_path / "log"
    assert train_cli(coin_flags(one.path, *SETTINGS)) == 0
    assert run_two_processes(train, "ddp", "none", coin_flags(two.path, *SETTINGS), log=log) == [0, 0], log.read_text()
    # Sums in another order can round a weight to the neighboring code.
    weights, expected = (load_file(run.start / "model.safetensors") for run in (two, one))
    assert weights.keys() == expected.keys()
    different = sum(int(((weights[name] - weight).abs() > 1e-3).sum()) for name, weight in expected.items())
    assert different < 0.01 * sum(weight.numel() for weight in expected.values())
    adapter = "checkpoints/step-000002/adapter_model.safetensors"
    assert load_file(two.path / adapter).keys() == load_file(one.path / adapter).keys()


def test_sharded_processes_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = coin_flags(tmp_path / "run", *SETTINGS)
    assert run_two_processes(train, "sharded", "none", flags, log=log) == [2, 2], log.read_text()
    assert "FSDP2 shards it. Start the processes without FSDP2" in " ".join(log.read_text().split())
    assert not (tmp_path / "run" / "start").exists()
