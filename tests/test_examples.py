"""Tests that run the examples. Those that train or start servers are slow."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from agentgym_envs import Bare, make, text_env
from agentgym_trainer.algorithms import GRPO, KL
from agentgym_trainer.config import Optimizer
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Segment, Trajectory
from dev_packages import require_packages

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGE = 100  # lines
LONGER = {"grpo_one_file": 210}
# Examples without a test: a helper module, and one whose dependencies conflict with ours (tested manually).
UNTESTED = {"tiny_model", "verifiers_env"}
NEEDS = {
    "mcp_client": ("mcp",),
    "openenv_server": ("openenv",),
    "skyrl_gym_env": ("skyrl_gym",),
    "stable_baselines3_babyai": ("stable_baselines3",),
}


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> ModuleType:
    """The example with the test's name, imported with the folder of examples on the import path."""
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    name = request.node.originalname.removeprefix("test_")
    require_packages(*NEEDS.get(name, ()))
    return import_module(name)


@pytest.fixture
def trl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable TRL's use of vLLM, which it imports if installed, and its warning about experimental features."""
    monkeypatch.setattr(import_module("trl.import_utils"), "is_vllm_available", lambda min_version=None: False)
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")


def test_every_example_is_short_and_tested() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    for path in EXAMPLES:
        text = path.read_text(encoding="utf-8")
        assert text.count("\n") <= LONGER.get(path.stem, PAGE), path
        assert path.stem in tested | UNTESTED, path


def test_plain_gymnasium(example: ModuleType) -> None:
    scores = example.main(tasks=8)
    assert scores["expert"] == 1.0
    assert scores["random"] < 1.0


def test_skyrl_gym_env(example: ModuleType) -> None:
    assert example.main() == {"score": 1.0, "success": 1.0, "turns": 3}


@pytest.mark.long
def test_stable_baselines3_babyai(example: ModuleType) -> None:
    before, after = example.main(steps=4_096, episodes=60)
    assert after > before + 0.1


@pytest.mark.long
def test_trl_environment_factory(trl: None, example: ModuleType) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of TRL and transformers
        (line,) = example.main(sft_steps=200, steps=1)
    assert line["tools/call_frequency"] > 0
    assert line["tools/failure_frequency"] == 0
    assert 0 <= line["rewards/TextCraft/mean"] <= 1


@pytest.mark.long
def test_trl_rollout_func(trl: None, example: ModuleType) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (line,) = example.main(sft_steps=200, steps=1)
    assert line["reward"] > 0
    assert line["completions/mean_length"] > 5


@pytest.mark.long
def test_openenv_server(example: ModuleType) -> None:
    assert example.main() == 1.0


@pytest.mark.long
def test_mcp_client(example: ModuleType) -> None:
    serve = [sys.executable, "-c", "from agentgym_envs.cli.main import serve; serve()", "--port", "0"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split()[2].rstrip(":")
        result = example.main(url)
        server.terminate()
    assert result["success"] is True
    assert result["score"] == 1.0


@pytest.mark.long
def test_grpo_one_file(example: ModuleType) -> None:
    """The example trains, and its loss has the same gradient as the trainer's on the same tokens."""
    env = Bare(make("agentgym/TextCraft-v0", **example.OPTIONS))
    model, tokenizer = example.warm_start(env, episodes=150)
    tasks = text_env(env).tasks.train.ids[:2]
    policy = partial(example.sample, model, tokenizer)
    torch.manual_seed(0)
    groups = [[example.play(env, task, policy, tokenizer) for _ in range(3)] for task in tasks]
    for group in groups:
        for number, sampled in enumerate(group):
            sampled.reward = float(number)  # independent of the model's skill
    with torch.no_grad():
        old = [[example.logprobs(model, sampled) - 0.1 * number for number, sampled in enumerate(g)] for g in groups]

    advantages = [example.group_advantages([sampled.reward for sampled in group]) for group in groups]
    batch = [item for g in zip(groups, advantages, old, strict=True) for item in zip(*g, strict=True)]
    example.minibatch_loss(model, batch).backward()
    expected = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()

    algorithm = replace(GRPO, kl=KL(), clip=replace(GRPO.clip, low=example.CLIP, high=example.CLIP))
    learner = Learner(PolicyModel(model), Accelerator(cpu=True), Optimizer(clip_norm=1e9))
    sampled = [
        _trajectory(item, logprobs, str(number))
        for number, (group, before) in enumerate(zip(groups, old, strict=True))
        for item, logprobs in zip(group, before, strict=True)
    ]
    actual: list[torch.Tensor] = []
    learner.optimizer.optimizer.register_step_pre_hook(
        lambda *_: actual.extend(p.grad.clone() for p in model.parameters())
    )
    tokens = learner.compute_logprobs(make_batch(sampled), algorithm).with_logprobs(
        old_logprobs_N=torch.cat([*chain(*old)])
    )
    learner.update(make_batch(sampled), tokens, algorithm.compute_advantages(tokens, learner.total), algorithm)
    for ours, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-4)
    (line,) = example.main(steps=1)
    assert line["tokens"] > 0


def _trajectory(example: Any, logprobs: torch.Tensor, group: str) -> Trajectory:
    """Convert an example's trajectory to the trainer's."""
    turns, number = [], -1
    for previous, in_loss in zip([False, *example.loss_mask], example.loss_mask, strict=False):
        number += in_loss and not previous
        turns.append(number if in_loss else -1)
    remaining = iter(logprobs.tolist())
    rollout_logprobs = tuple(next(remaining) if in_loss else 0.0 for in_loss in example.loss_mask)
    segment = Segment(tuple(example.ids), tuple(example.loss_mask), rollout_logprobs, tuple(turns))
    rewards = (*(0.0 for _ in range(number)), example.reward)
    return Trajectory((segment,), rewards, ("",) * len(rewards), (("act", ""),) * len(rewards), group)
