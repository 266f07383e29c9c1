"""Tests of complete RL runs with critics, adapters and gradient checkpointing."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from agentgym_envs import EnvPool, Episode, EpisodeSpec, PoolSlot, play_episode
from agentgym_envs.agents.formats import Bare
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.algorithms import GRPO, PPO, GiGPO, GroupFilter
from agentgym_trainer.config import CriticModel, Evaluation, Generation, Lora, RLConfig, WarmStart, WorldConfig
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import FixedHorizon
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.policy import PolicyModel, SeparateCritic
from agentgym_trainer.models.scratch import build_model
from agentgym_trainer.policies import hf
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers.layers import choose_layers
from agentgym_trainer.trainers.rl import _policy_model, train
from coin_world import ENV, Coin
from rich.console import Console
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

KEEP_ZERO_VARIANCE = GroupFilter(zero_variance="keep")
KINDS: dict[str, dict[str, Any]] = {
    "ppo, a head": {"algorithm": PPO},
    "ppo, a separate critic": {"algorithm": PPO, "critic": CriticModel(where="separate")},
    "gigpo": {"algorithm": replace(GiGPO, groups=KEEP_ZERO_VARIANCE)},
    "an adapter": {"lora": Lora(rank=2)},
    "an adapter and ppo": {"lora": Lora(rank=2), "algorithm": PPO, "gradient_checkpointing": "on"},
    "gradient checkpointing": {"gradient_checkpointing": "on"},
}


def _run(folder: Path, **settings: Any) -> RunFolder:
    defaults: dict[str, Any] = {
        "world": WorldConfig(ENV, agent="bare", instructions=False),
        "algorithm": replace(GRPO, groups=KEEP_ZERO_VARIANCE),
        "horizon": FixedHorizon(3),
        "generation": Generation(max_tokens=6, max_context=256),
        "evaluation": Evaluation(tasks=2, samples=1, ks=(1,)),
        "steps": 2,
        "tasks_per_step": 4,
        "group_size": 4,
        "epochs": 2,
        "device": "cpu",
    }
    config = RLConfig(**(defaults | settings))
    run = RunFolder.create(folder, config, "test")
    assert train(config, run, RunConsole(Console(quiet=True)), Stopping()).step == config.steps
    return run


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model that has imitated the expert."""
    scratch = Scratch(vocab=280, hidden=32, layers=1, heads=2, context=256)
    warm = WarmStart(episodes=96, noise=0.8, imitate_noise=True, epochs=3, batch=8, lr=1e-2)
    return _run(
        tmp_path_factory.mktemp("start") / "run", model="scratch", scratch=scratch, warm_start=warm, steps=1
    ).start


def test_models_with_unsupported_layers_are_rejected(tmp_path: Path, start: Path) -> None:
    model = shutil.copytree(start, tmp_path / "windows")
    layers = {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention"]}
    settings = model / "config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | layers))
    with pytest.raises(
        UsageError, match=r"windows can't be trained with these settings: .* has layers of sliding_attention"
    ):
        _run(tmp_path / "run", model=str(model))


async def _play(folder: Path) -> Episode:
    """Play an episode with the model in a folder."""
    policy = hf(str(folder), temperature=0.0, seed=0, max_tokens=6)
    with EnvPool(ENV, 1) as pool:
        episode = await play_episode(
            PoolSlot(pool, 0, Bare(Coin())), policy, EpisodeSpec("coin/test/1", seed=0), horizon=3
        )
    await policy.close()
    return episode


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind == "an adapter and ppo" else pytest.mark.long) for kind in KINDS]
)
def test_trained_parts_change_and_complete_models_are_saved(tmp_path: Path, start: Path, kind: str) -> None:
    run = _run(tmp_path / "run", model=str(start), **KINDS[kind])
    lines = list(run.read_metrics())
    assert all(line["grad_norm"] > 0 and line["trained"] == 16 for line in lines)
    if "ppo" in kind:
        assert all(line["critic_grad_norm"] > 0 and line["value_loss"] > 0 for line in lines)
    before, after = (load_file(folder / "model.safetensors") for folder in (start, run.model))
    assert before.keys() == after.keys()
    changed = {name for name, weight in after.items() if not torch.equal(weight, before[name])}
    assert any("q_proj" in name for name in changed)
    # With an adapter, embeddings and norms don't change.
    assert ("model.embed_tokens.weight" in changed) == ("adapter" not in kind)
    for folder in (run.model, run.checkpoints / "step-000002"):
        assert not asyncio.run(_play(folder)).failed


@pytest.mark.long
def test_runs_start_from_adapters_merged_into_their_base_model(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(start.parent)
    first = _run(tmp_path / "first", model=start.name, steps=1, **KINDS["an adapter"])
    monkeypatch.chdir(tmp_path)
    adapter = first.checkpoints / "step-000001"
    second = _run(tmp_path / "second", model="first/checkpoints/step-000001", steps=1, **KINDS["an adapter"])
    third = _run(tmp_path / "third", model=str(adapter), steps=1)
    merged = load_file(first.model / "model.safetensors")
    for run in (second, third):
        initial = load_file(run.start / "model.safetensors")
        assert initial.keys() == merged.keys()
        for name, weight in initial.items():
            torch.testing.assert_close(weight, merged[name])
    # The base model of the second adapter is the merged model, not the base model of the first adapter.
    ids = torch.arange(3, 9)[None]
    adapted, complete = (
        AutoModelForCausalLM.from_pretrained(folder) for folder in (second.checkpoints / "step-000001", second.model)
    )
    with torch.no_grad():
        torch.testing.assert_close(adapted(ids).logits, complete(ids).logits)
    assert (
        load_file(third.model / "model.safetensors")["model.embed_tokens.weight"]
        .ne(merged["model.embed_tokens.weight"])
        .any()
    )


def test_gradient_checkpointing_includes_a_separate_critic(
    tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors: list[PolicyModel] = []

    def learner(actor: PolicyModel, *more: Any, **settings: Any) -> Learner:
        actors.append(actor)
        return Learner(actor, *more, **settings)

    monkeypatch.setattr("agentgym_trainer.trainers.rl.Learner", learner)
    _run(tmp_path / "run", model=str(start), steps=1, gradient_checkpointing="on", **KINDS["ppo, a separate critic"])
    (actor,) = actors
    assert isinstance(actor.critic, SeparateCritic)
    assert actor.causal_lm.is_gradient_checkpointing
    assert actor.critic.trunk.is_gradient_checkpointing


def test_adapters_are_trained_without_dropout() -> None:
    config = RLConfig(lora=Lora(rank=2, dropout=0.5))
    layers = choose_layers(config, Accelerator(cpu=True))
    adapted = _policy_model(
        config, build_model(Scratch(hidden=16, layers=1, heads=1), vocab=32, end_id=1, pad_id=0, seed=0), layers
    )
    dropouts = [module.p for module in adapted.modules() if isinstance(module, torch.nn.Dropout)]
    assert dropouts and not any(dropouts)


@pytest.mark.parametrize("kind", ["opt", "gpt2"])
def test_policy_and_critic_are_trained_without_dropout(kind: str) -> None:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    if kind == "opt":
        shape |= {"ffn_dim": 16, "word_embed_proj_dim": 16, "dropout": 0.5, "layerdrop": 0.5}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **shape))
    config = RLConfig(algorithm=PPO, critic=CriticModel("separate"))
    policy = _policy_model(config, model, choose_layers(config, Accelerator(cpu=True))).train()
    ids = torch.arange(8)
    outputs = [policy(ids, ids, (8,), ids[:-1], ids[1:]) for _ in range(3)]
    for other in outputs[1:]:
        assert torch.equal(other.logprobs_M, outputs[0].logprobs_M)
        assert torch.equal(other.values_M, outputs[0].values_M)
