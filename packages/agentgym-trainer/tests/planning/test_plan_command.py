"""Tests of `train --plan`, and of the check before a run loads anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
import torch
from accelerate import ParallelismConfig
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import EngineSettings
from agentgym_trainer.planning.hardware import Hardware
from agentgym_trainer.planning.report import check_memory, hardware_of
from agentgym_trainer.recipes import RECIPES
from toy_learner import train_cli

SMALL = ["textcraft-scaling", "--model", "Qwen/Qwen2.5-0.5B-Instruct", "--engine.kind", "vllm"]


def test_a_plan_prints_every_phase_and_starts_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train_cli([*SMALL, "--plan", "24GB"]) == 0
    out, _ = capfd.readouterr()
    for phase in ("load", "engine", "rollout", "log-probs", "update", "weight load", "checkpoint"):
        assert f" {phase} " in out
    assert "0.49B weights, all train" in out and "gradient checkpointing on" in out and "It fits." in out
    assert list(tmp_path.iterdir()) == []


def test_a_plan_that_doesnt_fit_ends_with_1_and_says_what_does(capfd: pytest.CaptureFixture[str]) -> None:
    assert train_cli([*SMALL, "--plan", "24GB", "--gradient-checkpointing", "off"]) == 1
    out, _ = capfd.readouterr()
    assert "It doesn't fit: update needs" in out
    assert "It fits with --gradient-checkpointing on\n" in out


def test_a_plan_names_flags_without_an_effect(capfd: pytest.CaptureFixture[str]) -> None:
    assert train_cli([*SMALL, "--lora.alpha", "8", "--plan", "24GB"]) == 0
    assert "--lora.alpha has no effect: that needs an adapter" in capfd.readouterr().err


def test_several_gpus_of_this_machine_shard_only_reinforcement_learning(monkeypatch: pytest.MonkeyPatch) -> None:
    eight = Hardware("H100", 8, 85e9, sharded=True)
    monkeypatch.setattr("agentgym_trainer.planning.report.this_machine", lambda *, cpu: eight)
    assert hardware_of(RECIPES["textcraft-scaling"].config, ()) == eight
    assert hardware_of(RECIPES["textcraft-sft"].config, ()) == replace(eight, sharded=False)


def test_a_plan_without_hardware_is_for_this_machine(capfd: pytest.CaptureFixture[str]) -> None:
    assert train_cli(["quickstart", "--plan"]) == 0
    assert "the CPU of this machine" in capfd.readouterr().out


@pytest.mark.long
def test_a_plan_of_dpo_with_a_moving_reference_proposes_no_adapter(capfd: pytest.CaptureFixture[str]) -> None:
    moving = ["dpo-textcraft", "--device", "auto", "--reference.sync", "10", "--model", "Qwen/Qwen2.5-3B-Instruct"]
    assert train_cli([*moving, "--engine.kind", "vllm", "--engine.memory", "0.7", "--plan", "H100"]) == 1
    out, _ = capfd.readouterr()
    assert "It fits with " in out and "--lora" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plan", "8xH10"], "Did you mean H100?"),
        (["--plan", "H100", "--world.env", "textcraf"], "There is no environment 'textcraf'"),
        (["--plan", "H100", "--world.agent", "reakt"], "reakt"),
        (["--plan", "H100", "--world.options", "depht=1"], "has no option 'depht'"),
        (["--plan", "H100", "H200"], "one description of hardware"),
        (["--resume", "runs/mine", "--plan"], "without --resume"),
    ],
    ids=["unknown", "environment", "agent", "option", "several", "resume"],
)
def test_wrong_uses_of_plan_are_refused(arguments: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert train_cli(arguments) == 2
    assert message in capfd.readouterr().err


def gpu(monkeypatch: pytest.MonkeyPatch, gigabytes: float, major: int = 9) -> Any:
    """Return an accelerator of one process with a GPU of this memory and major compute capability."""
    properties = Mock(return_value=SimpleNamespace(total_memory=int(gigabytes * 1e9), major=major))
    monkeypatch.setattr(torch.cuda, "get_device_properties", properties)
    device = torch.device("cuda", 0)
    return cast("Any", SimpleNamespace(device=device, num_processes=1, is_fsdp2=False, parallelism_config=None))


@pytest.mark.long
def test_a_run_that_cant_fit_on_its_gpu_is_refused_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(RECIPES["textcraft-scaling"].config, engine=EngineSettings(kind="vllm"))
    accelerator, said = gpu(monkeypatch, 85), list[str]()
    with pytest.raises(UsageError, match=r"doesn't fit on 1x81GB.*--no-check-memory"):
        check_memory(config, accelerator, said.append)
    check_memory(replace(config, check_memory=False), accelerator, said.append)
    check_memory(replace(config, model="Qwen/Qwen2.5-0.5B-Instruct"), accelerator, said.append)
    accelerator.device = torch.device("cpu")
    check_memory(config, accelerator, said.append)
    assert said == []


@pytest.mark.long
def test_bfloat16_in_vllm_is_refused_on_gpus_that_only_emulate_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(
        RECIPES["textcraft-scaling"].config, model="Qwen/Qwen2.5-0.5B-Instruct", engine=EngineSettings(kind="vllm")
    )
    assert config.precision == "bf16"
    check_memory(config, gpu(monkeypatch, 34), Mock())
    with pytest.raises(UsageError, match=r"compute capability 8.0 and above.*It fits with --precision auto"):
        check_memory(config, gpu(monkeypatch, 34, major=7), Mock())
    check_memory(replace(config, engine=EngineSettings()), gpu(monkeypatch, 34, major=7), Mock())


@pytest.mark.long
def test_hybrid_sharding_shards_over_fewer_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(RECIPES["textcraft-scaling"].config, engine=EngineSettings(kind="vllm"))
    accelerator = gpu(monkeypatch, 85)
    accelerator.num_processes, accelerator.is_fsdp2 = 8, True
    check_memory(config, accelerator, Mock())
    accelerator.parallelism_config = ParallelismConfig(dp_replicate_size=4, dp_shard_size=2)
    with pytest.raises(UsageError, match="doesn't fit on 2x81GB"):
        check_memory(config, accelerator, Mock())


def test_a_model_that_cant_be_planned_may_train(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("agentgym_trainer.planning.report.make_plan", Mock(side_effect=AttributeError("no layers")))
    check_memory(RECIPES["textcraft-scaling"].config, gpu(monkeypatch, 24), said.append)
    (sentence,) = said
    assert sentence.startswith("The memory that this run needs isn't checked, since it can't be computed: Attribute")
