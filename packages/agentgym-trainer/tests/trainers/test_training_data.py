"""Tests of warnings about training data: other agents, and held-out tasks."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import Episode, EpisodeSpec, play_many
from agentgym_envs.agents.agent import Agent
from agentgym_eval.policies.policies import Oracle
from agentgym_trainer.config import Evaluation, SFTConfig, WorldConfig
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.trainers.training_data import not_held_out, played_otherwise
from coin_world import ENV, OTHER, Coin, OneSided
from toy_learner import coin_flags, sft_flags, train_cli


def play(agent: str, *tasks: str, instructions: bool = True) -> list[Episode]:
    base = OneSided() if tasks[0].startswith("one-sided") else Coin()
    env = Agent.parse(agent).wrap(base, instructions=None if instructions else "")
    return list(play_many(env, Oracle(), [EpisodeSpec(task, seed=0) for task in tasks]))


TRAIN = ("coin/train/0", "coin/train/1")
DEV, TEST = (tuple(f"coin/{split}/{number}" for number in range(4)) for split in ("dev", "test"))
OTHERS = ("one-sided/train/0", "one-sided/train/1")
BARE = WorldConfig(ENV, agent="bare")


def agent_warnings(episodes: Sequence[Episode], *worlds: WorldConfig) -> list[str]:
    config = SFTConfig(world=worlds[0], extra_worlds=worlds[1:])
    with open_environments(config) as opened:
        return list(played_otherwise(config, opened, episodes))


def test_episodes_of_the_same_agent_give_no_warning() -> None:
    assert agent_warnings(play("bare", *TRAIN), BARE) == []
    assert agent_warnings(play("bare", *TRAIN, instructions=False), replace(BARE, instructions=False)) == []
    without_agent = [replace(episode, agent="") for episode in play("react", *TRAIN, instructions=False)]
    other_env = [replace(episode, env="agentgym/TextCraft-v0") for episode in play("react", *TRAIN)]
    assert agent_warnings([*without_agent, *other_env], BARE) == []


def test_other_agents_and_instructions_give_a_warning_with_flags() -> None:
    (warning,) = agent_warnings([*play("react", *TRAIN), *play("bare", *TRAIN[:1])], replace(BARE, instructions=False))
    assert warning.startswith("3 of 3 episodes of coin/Coin-v0 were played by react with instructions and bare with ")
    assert "is evaluated as bare without instructions." in warning
    assert warning.endswith("--world.agent react --world.instructions.")
    mixed = [*play("bare", *TRAIN), *play("bare+plan", *OTHERS, instructions=False)]
    (warning,) = agent_warnings(mixed, BARE, WorldConfig(OTHER, agent="bare"))
    assert warning.startswith("2 of 2 episodes of coin/OneSided-v0 were played by bare+plan without instructions")
    assert warning.endswith("--extra-worlds.0.agent bare+plan --extra-worlds.0.no-instructions.")


@pytest.mark.parametrize(("tasks", "overlap"), [(0, "4 of the 4"), (1, "1 of the 1")])
@pytest.mark.parametrize(("split", "held_out"), [("dev", DEV), ("test", TEST)])
def test_held_out_tasks_in_the_training_data_are_counted(
    split: str, held_out: Sequence[str], tasks: int, overlap: str
) -> None:
    config = SFTConfig(world=BARE, evaluation=Evaluation(tasks=tasks, test_tasks=tasks))
    with open_environments(config) as opened:
        assert list(not_held_out(config, opened, play("bare", *TRAIN))) == []
        (warning,) = not_held_out(config, opened, play("bare", *TRAIN, *held_out, *held_out[:1]))
    start = f"5 of 7 episodes of coin/Coin-v0 are of its {split} tasks; {overlap} {split} tasks that this run is "
    assert warning.startswith(f"{start}evaluated on ")


def test_splits_that_are_not_evaluated_give_no_warning() -> None:
    for evaluation, unused in ((Evaluation(split="train"), DEV), (Evaluation(test=False), TEST)):
        config = SFTConfig(world=BARE, evaluation=evaluation)
        with open_environments(config) as opened:
            assert list(not_held_out(config, opened, play("bare", *unused))) == []


def test_both_warnings_are_printed_before_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "test.jsonl"
    data.write_text("".join(f"{episode.to_json()}\n" for episode in play("react", *TEST)))
    more = ("--data.files", str(data), "--data.keep", "all", "--epochs", "1", "--generation.max-context", "2000")
    assert train_cli(sft_flags(tmp_path / "run", *more)) == 0
    before, _, after = capfd.readouterr().err.partition("after 0 steps")
    assert after
    assert "4 of 4 episodes of coin/Coin-v0 were played by react with instructions, but this run" in before
    assert "4 of 4 episodes of coin/Coin-v0 are of its test tasks; 4 of the 4 test tasks" in before


def test_incomplete_lines_and_other_environments_are_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data, (here, there) = tmp_path / "some.jsonl", (play("bare", *TRAIN), play("bare", *OTHERS))
    recorded = replace(here[0], env="", agent="")
    lines = [f"{episode.to_json()}\n" for episode in (*here, *there, recorded)]
    data.write_text("".join([*lines, lines[0][:50]]))
    more = ("--data.files", str(data), "--data.keep", "all", "--epochs", "1", "--generation.max-context", "2000")
    assert train_cli(sft_flags(tmp_path / "run", *more)) == 0
    before = " ".join(capfd.readouterr().err.partition("after 0 steps")[0].split())
    assert f"{data}, line 6: half a line, left by a killed process, is left out." in before
    assert "2 of 5 episodes are of environments that this run doesn't play: coin/OneSided-v0." in before


def test_an_unusable_model_is_rejected_before_playing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert train_cli(sft_flags(tmp_path / "run", "--model", str(empty))) == 2
    stderr = capfd.readouterr().err
    assert f"The model {empty} can't be loaded." in stderr
    assert "Training on" not in stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_rejected_run_does_not_block_the_next_one(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = sft_flags(tmp_path / "run", "--data.episodes", "4", "--epochs", "1", "--lora.rank", "2", "--lora.targets")
    assert train_cli([*flags, "foo"]) == 2
    assert "lora.targets names foo" in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "run").exists()
    assert train_cli([*flags, "q_proj"]) == 0


@pytest.mark.parametrize("flags", [sft_flags, coin_flags])
@pytest.mark.parametrize(
    ("hook", "message"),
    [
        ("_act", "coin/Coin-v0 raised SystemExit"),
        ("__init__", "An environment or a plugin ended the process: SystemExit"),
    ],
)
def test_an_environment_that_exits_fails_the_run_with_a_message(
    hook: str, message: str, flags: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    def leave(*_: Any, **__: Any) -> Any:
        raise SystemExit

    monkeypatch.setattr(Coin, hook, leave)
    assert train_cli(flags(tmp_path / "run")) == 1
    stderr = " ".join(capfd.readouterr().err.split())
    assert f"{message} (test_training_data.py, line " in stderr
    assert f"resume with: uv run train --resume {tmp_path / 'run'}" in stderr


def test_a_signal_handler_of_the_program_may_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(*_: Any) -> Any:
        raise SystemExit(7)

    def interrupt(*_: Any) -> None:
        signal.raise_signal(signal.SIGUSR2)

    monkeypatch.setattr(Coin, "_act", interrupt)
    before = signal.signal(signal.SIGUSR2, leave)
    try:
        assert train_cli(sft_flags(tmp_path / "run")) == 7
    finally:
        signal.signal(signal.SIGUSR2, before)
