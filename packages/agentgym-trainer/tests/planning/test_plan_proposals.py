"""Tests of what is proposed instead of a run that doesn't fit, and of what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import (
    BaseConfig,
    Distillation,
    DPOConfig,
    EngineSettings,
    Lora,
    Optimizer,
    Reference,
    RLConfig,
)
from agentgym_trainer.planning.hardware import described
from agentgym_trainer.planning.phases import make_plan
from agentgym_trainer.planning.proposals import propose
from agentgym_trainer.planning.report import refuse_misfit
from agentgym_trainer.planning.sharding import check_sharding
from agentgym_trainer.recipes import RECIPES
from planned_runs import QLORA, VLLM, dpo, run

ONE_GPU = replace(VLLM, kind="vllm-server", devices="1")
LONG = pytest.mark.long


@pytest.mark.parametrize(
    ("config", "hardware"),
    [
        pytest.param(run(gradient_checkpointing="off"), "8xH100", id="no-checkpointing"),
        pytest.param(run(), "H100", id="7B-one-gpu"),
        pytest.param(run(), "8xH100:ddp", id="7B-ddp", marks=LONG),
        pytest.param(
            run("Qwen/Qwen2.5-3B-Instruct", engine=replace(VLLM, memory=0.7)), "H100", id="large-engine", marks=LONG
        ),
        pytest.param(run(lora=Lora(rank=32), engine=replace(VLLM, memory=0.1)), "H100", id="small-engine"),
        pytest.param(
            run("Qwen/Qwen2.5-0.5B-Instruct", optimizer=Optimizer(micro_tokens=98_304)),
            "24GB",
            id="large-micro-batch",
            marks=LONG,
        ),
    ],
)  # fmt: skip
def test_what_cant_fit_is_refused_with_settings_that_do(config: RLConfig, hardware: str) -> None:
    plan = make_plan(config, described(hardware))
    assert not plan.fits and plan.certain
    found = propose(plan)
    assert found
    for proposal in found:
        assert make_plan(proposal.plan.config, proposal.plan.hardware).fits
        assert str(proposal)
    with pytest.raises(UsageError, match=r"doesn't fit on .* It fits with") as error:
        refuse_misfit(make_plan(config, described(hardware)))
    assert all(str(proposal) in str(error.value) for proposal in found)


def test_the_nearest_proposal_keeps_method_and_hardware() -> None:
    nearest, *_ = propose(make_plan(run(gradient_checkpointing="off"), described("8xH100")))
    assert str(nearest) == "--gradient-checkpointing on"


@pytest.mark.parametrize(
    ("changes", "message", "off"),
    [
        pytest.param({"lora": QLORA}, "whole model on every GPU, and FSDP2 shards it", "quantize off", id="quantize"),
        pytest.param(
            {"optimizer": Optimizer(offload=True)},
            "optimizer.offload moves",
            "no-offload",
            id="offload",
            marks=LONG,
        ),
        pytest.param({"compile": True}, "compile is for layers with whole weights", "--no-compile", id="compile"),
    ],
)
def test_what_cant_be_sharded_is_refused_and_proposed_without(changes: dict[str, Any], message: str, off: str) -> None:
    config = run(**changes)
    with pytest.raises(UsageError, match=rf"{message}.* Start the processes without FSDP2 .*:ddp"):
        make_plan(config, described("8xH100"))
    assert make_plan(config, described("8xH100:ddp")).phases
    check_sharding(config, sharded=False)
    check_sharding(run(), sharded=True)
    sharded = [each for each in propose(make_plan(config, described("24GB"))) if each.plan.hardware.sharded]
    assert sharded
    for proposal in sharded:
        check_sharding(proposal.plan.config, sharded=True)
        assert off in str(proposal)


@pytest.mark.parametrize("recipe", ["textcraft-sft", "textcraft-dpo", "evol-worlds"])
def test_runs_from_data_are_neither_sharded_nor_proposed_with_sharding(recipe: str) -> None:
    config = replace(RECIPES[recipe].config, model="Qwen/Qwen2.5-7B-Instruct", engine=VLLM)
    with pytest.raises(UsageError, match=r"Only reinforcement learning can shard .*:ddp\), and train an adapter"):
        make_plan(config, described("8xH100"))
    plan = make_plan(config, described("2xH100:ddp"))
    assert not plan.fits
    assert not any(proposal.plan.hardware.sharded for proposal in propose(plan))


@pytest.mark.parametrize(
    ("config", "hardware"),
    [
        pytest.param(
            dpo(model="Qwen/Qwen2.5-3B-Instruct", reference=Reference(sync=10)), "H100", id="dpo-reference-sync"
        ),
        pytest.param(run("Qwen/Qwen2.5-14B-Instruct", engine=ONE_GPU), "2xH100", id="engine-devices", marks=LONG),
    ],
)
def test_settings_that_would_be_invalid_are_not_proposed(config: BaseConfig, hardware: str) -> None:
    """An adapter excludes `reference.sync`, and one GPU in `engine.devices` a server that splits the model over two."""
    proposals = propose(make_plan(config, described(hardware)))
    assert proposals
    assert all(proposal.plan.config.lora == config.lora for proposal in proposals if isinstance(config, DPOConfig))
    assert all(proposal.plan.config.engine.tensor_parallel == 1 for proposal in proposals)


@pytest.mark.long
def test_quantization_is_proposed_where_an_adapter_alone_doesnt_fit() -> None:
    config = run(engine=EngineSettings(), slots=2, evaluation=replace(run().evaluation, test=False))
    assert "--lora.quantize" not in str(propose(make_plan(config, described("H100")))[0])
    nearest, *_ = propose(make_plan(config, described("16GB")))
    assert "--lora.rank 32 --lora.quantize nf4" in str(nearest)
    nearest, *_ = propose(make_plan(replace(config, lora=Lora(rank=8)), described("16GB")))
    assert "--lora.quantize nf4" in str(nearest)
    assert "--lora.rank" not in str(nearest)


def test_upper_bounds_fail_a_plan_but_refuse_no_run() -> None:
    config = run(engine=EngineSettings(), slots=512, tasks_per_step=512)
    plan = make_plan(config, described("8xH100"))
    assert not plan.fits and not plan.certain
    refuse_misfit(make_plan(config, described("8xH100")))


def test_a_teacher_that_cant_fit_is_refused() -> None:
    small, large = "Qwen/Qwen2.5-0.5B-Instruct", "Qwen/Qwen2.5-32B-Instruct"
    assert make_plan(run(small), described("H100")).fits
    plan = make_plan(run(small, distillation=Distillation(teacher=large)), described("H100"))
    assert not plan.fits and plan.certain
    assert any("teacher 65.5" in problem for problem in plan.problems), plan.problems
