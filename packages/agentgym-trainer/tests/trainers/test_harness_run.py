"""Tests of training runs whose episodes a harness plays."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_envs import read_episodes
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.algorithms import GroupFilter
from agentgym_trainer.config import AsyncRollout, RLConfig
from agentgym_trainer.config.serialization import from_json, to_json
from agentgym_trainer.curriculum.horizon import BackwardHorizon
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.reward_shaping import PerTurn
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.rollout.play import find_harness
from agentgym_trainer.rollout.runner import RolloutRunner
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.trainers.rl_loop import RLLoop
from coin_loops import GRPO_PLAIN, Build, loop_config
from dev_packages import require_packages
from metric_lines import without_measured
from rich.console import Console
from toy_learner import coin_flags, make_learner, train_cli

require_packages("openai")

HARNESS = "harness_examples:loop"


def harness_config(**settings: Any) -> RLConfig:
    """Return a configuration in which the harness plays and every group trains."""
    algorithm = replace(GRPO_PLAIN, groups=GroupFilter(zero_variance="keep"), entropy=0.1)
    return loop_config(**{"harness": HARNESS, "algorithm": algorithm, "save_every": 1} | settings)


def lines(folder: RunFolder) -> list[dict[str, Any]]:
    return without_measured(folder.read_metrics())


def weights(loop: RLLoop) -> list[bytes]:
    return [parameter.detach().numpy().tobytes() for parameter in loop.learner.policy.parameters()]


def test_a_run_trains_the_model_of_the_harness_and_the_viewer_reads_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    flags = coin_flags(out, "--harness", HARNESS, "--steps", "2", "--evaluation.every", "0", "--rollouts.tokens", "1")
    assert train_cli(flags) == 0
    assert f"--split test --samples 4 --harness {HARNESS} --horizon" in "".join(capsys.readouterr())
    folder, config, _ = RunFolder.open(out)
    assert isinstance(config, RLConfig)
    assert (config.harness, config.harness_command) == (HARNESS, "")
    assert [line["step"] for line in folder.read_metrics()] == [1, 2]
    for line in folder.read_metrics():
        assert (line["failed"], line["trained"] > 0) == (0, True)
    step = folder.rollouts / "step-000002.jsonl"
    episodes = list(read_episodes(step))
    assert {episode.env for episode in episodes} == {"coin/Coin-v0"}
    assert all(turn.reply.sample for episode in episodes for turn in episode.turns)
    assert folder.read_evaluation(2, "sampled")
    tokens = list(map(json.loads, step.with_suffix(".tokens.jsonl").read_text().splitlines()))
    assert tokens
    assert "Flip 2." in "".join(tokens[0]["segments"][0]["tokens"])


@pytest.mark.long
def test_a_run_that_is_resumed_is_the_run_that_was_not_interrupted(
    tmp_path: Path, build: Build, new_model: Callable[..., Any], chat: Chat
) -> None:
    # One request at a time: the order of concurrent ones depends on time, and with it rounding and reused prefixes.
    config = harness_config(steps=2, harness_concurrency=1)
    whole = build(config, name="whole")
    whole.run(lambda: False)
    begun = build(config, name="begun")
    stops = iter([False, True])
    assert begun.run(lambda: next(stops)).step == 1
    learner = make_learner(new_model(init=1.0), micro_tokens=400)
    engine = transformers_engine(learner.policy, end_id=chat.end_id)
    with RolloutRunner(engine) as rollouts:
        folder = RunFolder.open(tmp_path / "begun")[0]
        loop = RLLoop(config, folder, begun.worlds, learner, chat, RunConsole(Console(quiet=True)), rollouts)
        assert loop.run(lambda: False).step == 2
    assert weights(loop) == weights(whole) != weights(begun)
    assert lines(loop.folder) == lines(whole.folder)


@pytest.mark.long
def test_harnesses_play_while_the_learner_works(tmp_path: Path, new_model: Callable[..., Any], chat: Chat) -> None:
    config = harness_config(async_rollout=AsyncRollout(1), steps=3)
    learner = make_learner(new_model(init=1.0), micro_tokens=400)
    engine = transformers_engine(learner.policy, end_id=chat.end_id, own_copy=True)
    before = [parameter.detach().clone() for parameter in learner.policy.parameters()]
    with open_environments(config) as worlds, RolloutRunner(engine) as rollouts:
        folder = RunFolder.create(tmp_path / "run", config, "test")
        loop = RLLoop(config, folder, worlds, learner, chat, RunConsole(Console(quiet=True)), rollouts)
        assert loop.run(lambda: False).step == 3
    assert any(not torch.equal(a, b) for a, b in zip(before, learner.policy.parameters(), strict=True))
    assert [line["failed"] for line in folder.read_metrics()] == [0, 0, 0]


def test_failed_harnesses_end_a_run_like_failed_environments(tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = coin_flags(tmp_path / "run", "--harness-command", "false", "--warm-start.episodes", "0")
    assert train_cli([*flags, "--warm-start.no-imitate-noise", "--warm-start.noise", "0"], log) == 1
    assert "episodes all failed" in log.read_text()
    assert "exit code 1" in log.read_text()


def test_settings_of_harnesses_survive_json_and_are_checked() -> None:
    config = harness_config(harness_timeout=5.0, harness_concurrency=3)
    assert from_json(RLConfig, json.loads(json.dumps(to_json(config)))) == config
    with pytest.raises(ValueError, match="not both"):
        replace(config, harness_command="agent")
    with pytest.raises(ValueError, match="harness_timeout"):
        replace(config, harness_timeout=0.0)
    with pytest.raises(ValueError, match="harness_concurrency"):
        replace(config, harness_concurrency=0)
    with pytest.raises(ValueError, match="a harness begins its own"):
        replace(config, horizon=BackwardHorizon())
    for shaped in (PerTurn(format_bonus=0.1), PerTurn(invalid_penalty=0.1)):
        with pytest.raises(ValueError, match=r"judge an agent's actions, which a harness doesn't show"):
            replace(config, reward=shaped)
    assert replace(config, reward=PerTurn(turn_penalty=0.1)).harness
    for name, words in {
        "harness_examples:loops": "Did you mean loop",
        "harness_examples:NO_HARNESS": "function of a task",
        "no_such_agent:play": "no_such_agent",
        "loop": "MODULE:NAME",
    }.items():
        with pytest.raises(UsageError, match=words):
            find_harness(replace(config, harness=name))
