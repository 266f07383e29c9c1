"""Tests of models that vLLM can't divide or load weights into: refused in plans, proposals and runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import EngineSettings
from agentgym_trainer.planning.engine_support import check_engine_model, indivisible, largest_split
from agentgym_trainer.planning.hardware import described
from agentgym_trainer.planning.phases import make_plan
from agentgym_trainer.planning.proposals import propose
from agentgym_trainer.planning.shapes import count_weights, number_of_experts
from coin_loops import GRPO_PLAIN
from planned_runs import run
from toy_learner import make_learner, make_trajectories, train_cli, update_on
from transformers import AutoConfig, AutoModelForCausalLM

QWEN_7B = {"num_attention_heads": 28, "num_key_value_heads": 4, "intermediate_size": 18_944, "vocab_size": 152_064}
SMALL = {
    "vocab_size": 128, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 32,
    "num_attention_heads": 2, "num_key_value_heads": 2, "moe_intermediate_size": 32, "num_experts_per_tok": 2,
}  # fmt: skip


def server(split: int, **settings: Any) -> EngineSettings:
    return EngineSettings(kind="vllm-server", tensor_parallel=split, memory=0.3, **settings)


def of_experts(folder: Path, kind: str = "qwen3_moe", **sizes: Any) -> str:
    """Save the configuration of a small mixture of experts; return its folder."""
    AutoConfig.for_model(kind, **(SMALL | sizes)).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize(
    ("changes", "split", "found"),
    [
        pytest.param({}, 4, "", id="fits"),
        pytest.param({}, 8, "28 attention heads", id="heads"),
        pytest.param({"num_attention_heads": 24, "num_key_value_heads": 4}, 6, "4 key heads", id="key-heads"),
        pytest.param({"num_attention_heads": 24, "num_key_value_heads": 4}, 8, "", id="key-heads-with-copies"),
        pytest.param({"intermediate_size": 18_946}, 4, "intermediate size of 18946", id="intermediate-size"),
        pytest.param({"num_attention_heads": 30, "num_key_value_heads": 5, "intermediate_size": 20_000}, 5,
                     "vocabulary of 152064 tokens", id="vocabulary"),
        pytest.param({"vocab_size": 152_001}, 4, "", id="padded-vocabulary"),
    ],
)  # fmt: skip
def test_tensor_parallelism_must_divide_what_vllm_divides(changes: dict[str, int], split: int, found: str) -> None:
    model = AutoConfig.for_model("qwen2", **(QWEN_7B | changes))
    said = indivisible(run(engine=server(split)), model)
    assert said.startswith(f"engine.tensor_parallel {split} doesn't divide the model's {found}") if found else not said
    assert largest_split(model, 1) == 1


@pytest.mark.long
def test_a_plan_with_heads_that_tensor_parallelism_doesnt_divide_fails_and_proposes_a_divisor(
    capfd: pytest.CaptureFixture[str],
) -> None:
    wide = ["textcraft-scaling", "--engine.kind", "vllm-server", "--engine.tensor-parallel", "8"]
    assert train_cli([*wide, "--engine.memory", "0.3", "--plan", "8xH100"]) == 1
    out, _ = capfd.readouterr()
    assert "engine.tensor_parallel 8 doesn't divide the model's 28 attention heads." in out
    assert "It fits with --engine.tensor-parallel 4\n" in out


@pytest.mark.long
def test_proposals_split_a_model_by_a_divisor_of_its_heads() -> None:
    found = propose(make_plan(run(), described("8x40GB")))
    assert "--engine.kind vllm-server --engine.tensor-parallel 4" in str(found[-1])


@pytest.mark.parametrize("recipe", ["textcraft-scaling", "dpo-textcraft", "sft-textcraft"])
def test_a_run_is_refused_before_anything_is_loaded(
    tmp_path: Path, recipe: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    opened = Mock(side_effect=AssertionError("environments were opened"))
    monkeypatch.setattr("agentgym_trainer.trainers.rl.open_environments", opened)
    monkeypatch.setattr("agentgym_trainer.trainers.trl_run.open_environments", opened)
    common = [recipe, "--device", "cpu", "--precision", "no", "--out", str(tmp_path / "run"), "--engine.kind"]
    wide = ["vllm-server", "--engine.tensor-parallel", "8", "--model", "Qwen/Qwen2.5-7B-Instruct"]
    assert train_cli([*common, *wide]) == 2
    assert "28 attention heads. --engine.tensor-parallel 4 does." in capfd.readouterr().err.replace("\n", " ")
    assert train_cli([*common, "vllm", "--model", of_experts(tmp_path / "experts", num_experts=8)]) == 2
    assert "8 experts per layer (mixture of experts), and the engine vllm can't" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("kind", "attribute"),
    [("qwen3_moe", "num_experts"), ("deepseek_v3", "n_routed_experts"), ("mixtral", "num_local_experts")],
)
def test_mixtures_of_experts_are_planned_with_no_engine_and_run_with_transformers(
    tmp_path: Path, kind: str, attribute: str
) -> None:
    config = run(of_experts(tmp_path, kind, **{attribute: 8}))
    with pytest.raises(UsageError, match=r"8 experts.*--engine.kind transformers"):
        check_engine_model(config)
    own = replace(config, engine=EngineSettings())
    check_engine_model(own)
    for each in (config, own):
        with pytest.raises(UsageError, match=rf"plan can't be made for {kind} with 8 experts.*--engine.kind transform"):
            make_plan(each, described("8xH100"))


def test_all_weights_of_a_mixture_of_experts_train() -> None:
    """With the engine transformers, which samples from the training module."""
    config = AutoConfig.for_model("qwen3_moe", **(SMALL | {"vocab_size": 320, "num_experts": 4}))
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    update_on(make_learner(model), make_trajectories(1), GRPO_PLAIN)
    assert any("experts" in name for name in before)
    assert [name for name, weight in model.state_dict().items() if torch.equal(weight, before[name])] == []


def test_dense_models_have_no_experts() -> None:
    dense = AutoConfig.for_model("qwen2", **QWEN_7B, num_hidden_layers=2, hidden_size=3584)
    assert number_of_experts(dense) == 0
    assert count_weights(dense).layers == 2
    dense.num_experts = None
    assert number_of_experts(dense) == 0


def test_a_model_that_isnt_found_is_left_to_those_who_load_it(monkeypatch: pytest.MonkeyPatch) -> None:
    find = Mock(side_effect=UsageError("The shapes of no/such-model aren't known here."))
    monkeypatch.setattr("agentgym_trainer.planning.engine_support.find_config", find)
    check_engine_model(run("no/such-model"))
    find.assert_called_once()
