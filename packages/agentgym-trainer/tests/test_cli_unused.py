"""Tests of what `train` says about flags that have no effect, and of group filters that go with an estimator."""

from __future__ import annotations

import pytest
from agentgym_trainer.algorithms import PRESETS
from agentgym_trainer.cli import parse_config
from agentgym_trainer.cli_unused import unused_flags
from agentgym_trainer.config import RLConfig


@pytest.mark.parametrize(
    ("arguments", "flag", "needed"),
    [
        ("textcraft-grpo --algorithm dapo --algorithm.kl.weight 1", "algorithm.kl.weight", "--algorithm.kl.where loss"),
        ("textcraft-grpo --algorithm.kl.estimator k1 --algorithm.kl.clamp=10", "algorithm.kl.clamp", "estimator k3"),
        ("textcraft-grpo --algorithm cispo --algorithm.clip.dual 6", "algorithm.clip.dual", "than cispo"),
        ("textcraft-grpo --algorithm.aggregation.length 9", "algorithm.aggregation.length", "kind fixed"),
        ("textcraft-grpo --critic.where separate", "critic.where", "such as ppo"),
        ("textcraft-grpo --imitation.data.episodes 9", "imitation.data.episodes", "--imitation.weight"),
        ("textcraft-grpo --async_rollout.on_stale drop", "async-rollout.on-stale", "max-staleness"),
        ("textcraft-grpo --lora.alpha 8", "lora.alpha", "--lora.rank"),
        ("dpo-textcraft --data.tasks 3", "data.tasks", "SFT or AgentEvol"),
        ("textcraft-sft --data.files a.jsonl --data.noise 0.1", "data.noise", "not those of --data.files"),
        (
            "textcraft-grpo --imitation.weight 1 --imitation.data.files a --imitation.data.tasks 9",
            "imitation.data.tasks",
            "not those of --imitation.data.files",
        ),
        ("textcraft-sft --data.score 0.5", "data.score", "--data.files"),
        ("textcraft-sft --data.imitate-noise", "data.imitate-noise", "--data.noise"),
        (
            "dpo-textcraft --player expert --data.noise 0.1 --data.imitate-noise",
            "data.imitate-noise",
            "SFT or AgentEvol",
        ),
        (
            "textcraft-grpo --warm-start.episodes 9 --warm-start.imitate-noise",
            "warm-start.imitate-noise",
            "start.noise",
        ),
        ("textcraft-grpo --lora.rank 2 --lora.dropout 0.1", "lora.dropout", "training on episodes"),
        ("dpo-textcraft --lora.rank 2 --lora.dropout 0.1", "lora.dropout", "SFT or AgentEvol"),
        ("textcraft-grpo --algorithm.correction.bound 3", "algorithm.correction.bound", "--algorithm.correction.level"),
        ("textcraft-grpo --engine.memory 0.3", "engine.memory", "--engine.kind vllm"),
        ("textcraft-grpo --project x", "project", "--track"),
        ("textcraft-grpo --scratch.hidden 64", "scratch.hidden", "--model scratch"),
        ("textcraft-grpo --evaluation.no-test --evaluation.test-tasks 5", "evaluation.test-tasks", "--evaluation.test"),
        ("textcraft-grpo --rollouts.every 0 --rollouts.tokens 1", "rollouts.tokens", "--rollouts.every"),
        ("textcraft-grpo --harness-timeout 5", "harness-timeout", "--harness or --harness-command"),
        ("textcraft-grpo --harness-concurrency 5", "harness-concurrency", "--harness or --harness-command"),
        ("textcraft-grpo --async-rollout.correction off", "async-rollout.correction", "max-staleness"),
    ],
)
def test_flags_without_an_effect_are_named(arguments: str, flag: str, needed: str) -> None:
    words = arguments.split()
    (sentence,) = unused_flags(parse_config(words), words)
    assert sentence.startswith(f"--{flag} has no effect: that needs ")
    assert needed in sentence


@pytest.mark.parametrize(
    "arguments",
    [
        "textcraft-grpo --algorithm.kl.weight 1 --algorithm.clip.dual 6",
        "textcraft-grpo --algorithm dapo --algorithm.kl.where loss --algorithm.kl.weight 1 --algorithm.groups.rounds 1",
        "textcraft-grpo --algorithm ppo --critic.where separate --lora.rank 2 --lora.alpha 8",
        "textcraft-grpo --async-rollout.max-staleness 1 --algorithm.correction.bound 3",
        "textcraft-grpo --async-rollout.max-staleness 1 --async-rollout.correction sequence",
        "textcraft-grpo --harness-command ./agent --harness-timeout 5 --harness-concurrency 4",
        "textcraft-grpo --harness agents:solve --harness-timeout 5 --harness-concurrency 4",
        "textcraft-grpo --algorithm.groups.zero-variance drop --distillation.teacher big "
        "--distillation.schedule linear --distillation.decay-steps 5",  # from then on, the teacher has no weight
        "sft-textcraft --data.tasks 3 --data.noise 0.1 --data.imitate-noise",
        "textcraft-sft --data.files a.jsonl --data.imitate-noise --data.score 0.5",
        "textcraft-grpo --imitation.weight 1 --imitation.data.files a.jsonl --imitation.data.imitate-noise",
        "sft-textcraft --data.files a.jsonl --data.noise 0.1",  # from scratch: it makes the tokenizer
    ],
)
def test_flags_with_an_effect_are_not(arguments: str) -> None:
    words = arguments.split()
    assert list(unused_flags(parse_config(words), words)) == []


@pytest.mark.parametrize(
    ("flags", "preset"),
    [
        (("--algorithm.advantages", "gae"), "ppo"),
        (("--algorithm", "ppo", "--algorithm.advantages", "group-relative"), "grpo"),
        (("--algorithm", "ppo"), "ppo"),
        (("--algorithm", "dapo", "--algorithm.advantages", "group-relative"), "dapo"),
        (("--algorithm", "dapo", "--algorithm.advantages", "step-groups"), "dapo"),
        (("--algorithm", "reinforce++-baseline", "--algorithm.advantages", "token-returns"), "reinforce++-baseline"),
    ],
)
def test_an_estimator_comes_with_the_group_filter_of_its_preset_unless_another_was_chosen(
    flags: tuple[str, ...], preset: str
) -> None:
    config = parse_config(["textcraft-grpo", *flags])
    assert isinstance(config, RLConfig)
    assert config.algorithm.groups == PRESETS[preset].groups


@pytest.mark.parametrize("fitting", ["--algorithm.kl.where loss", "--algorithm.advantages.scale none"])
def test_an_estimator_is_checked_together_with_the_other_flags(fitting: str) -> None:
    """RLOO's penalty on rewards can't be scaled as step groups do by default."""
    words = f"textcraft-grpo --algorithm rloo --algorithm.advantages step-groups {fitting}".split()
    config = parse_config(words)
    assert isinstance(config, RLConfig)
    assert config.algorithm.groups == PRESETS["gigpo"].groups
