"""What a run says of episodes from files that don't suit it: who played them, and of which tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from agentgym_envs import Episode, EpisodeSpec, play_many
from agentgym_envs.agents.agent import Agent
from agentgym_eval.policies.policies import Oracle
from agentgym_trainer.config import Evaluation, SFTConfig, WorldConfig
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.trainers.training_data import not_held_out, played_otherwise
from coin_world import ENV, OTHER, Coin, OneSided
from toy_learner import sft_flags, train_cli


def play(agent: str, *tasks: str, told: bool = True) -> list[Episode]:
    world = OneSided() if tasks[0].startswith("one-sided") else Coin()
    seat = Agent.parse(agent).wrap(world, instructions=None if told else "")
    return list(play_many(seat, Oracle(), [EpisodeSpec(task, seed=0) for task in tasks]))


TRAIN = ("coin/train/0", "coin/train/1")
DEV, TEST = (tuple(f"coin/{split}/{number}" for number in range(4)) for split in ("dev", "test"))
OTHERS = ("one-sided/train/0", "one-sided/train/1")
BARE = WorldConfig(ENV, agent="bare")


def otherwise(episodes: Sequence[Episode], *worlds: WorldConfig) -> list[str]:
    config = SFTConfig(world=worlds[0], extra_worlds=worlds[1:])
    with open_environments(config) as opened:
        return list(played_otherwise(config, opened, episodes))


def test_episodes_of_the_agent_that_the_run_has_need_no_word() -> None:
    assert otherwise(play("bare", *TRAIN), BARE) == []
    assert otherwise(play("bare", *TRAIN, on_change=False), replace(BARE, instructions=False)) == []
    nobody = [replace(episode, agent="") for episode in play("react", *TRAIN, on_change=False)]
    elsewhere = [replace(episode, env="agentgym/TextCraft-v0") for episode in play("react", *TRAIN)]
    assert otherwise([*nobody, *elsewhere], BARE) == []


def test_another_agent_and_other_instructions_are_named_with_the_flags_that_mend_it() -> None:
    (sentence,) = otherwise([*play("react", *TRAIN), *play("bare", *TRAIN[:1])], replace(BARE, instructions=False))
    assert sentence.startswith("3 of 3 episodes of coin/Coin-v0 were played by react with instructions and bare with ")
    assert "is evaluated as bare without instructions." in sentence
    assert sentence.endswith("--world.agent react --world.instructions.")
    mixed = [*play("bare", *TRAIN), *play("bare+plan", *OTHERS, on_change=False)]
    (sentence,) = otherwise(mixed, BARE, WorldConfig(OTHER, agent="bare"))
    assert sentence.startswith("2 of 2 episodes of coin/OneSided-v0 were played by bare+plan without instructions")
    assert sentence.endswith("--extra-worlds.0.agent bare+plan --extra-worlds.0.no-instructions.")


@pytest.mark.parametrize(("tasks", "seen"), [(0, "4 of the 4"), (1, "1 of the 1")])
@pytest.mark.parametrize(("split", "held_out"), [("dev", DEV), ("test", TEST)])
def test_dev_and_test_tasks_among_what_is_learned_are_counted(
    split: str, held_out: Sequence[str], tasks: int, seen: str
) -> None:
    config = SFTConfig(world=BARE, evaluation=Evaluation(tasks=tasks, test_tasks=tasks))
    with open_environments(config) as opened:
        assert list(not_held_out(config, opened, play("bare", *TRAIN))) == []
        (sentence,) = not_held_out(config, opened, play("bare", *TRAIN, *held_out, *held_out[:1]))
    start = (
        f"5 of 7 episodes of coin/Coin-v0 are of its {split} tasks; {seen} {split} tasks that this run is evaluated on "
    )
    assert sentence.startswith(start)


def test_tasks_of_a_split_that_a_run_does_not_play_need_no_word() -> None:
    for evaluation, free in ((Evaluation(split="train"), DEV), (Evaluation(test=False), TEST)):
        config = SFTConfig(world=BARE, evaluation=evaluation)
        with open_environments(config) as opened:
            assert list(not_held_out(config, opened, play("bare", *free))) == []


def test_a_run_says_both_before_it_learns(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "test.jsonl"
    data.write_text("".join(f"{episode.to_json()}\n" for episode in play("react", *TEST)))
    more = ("--data.files", str(data), "--data.keep", "all", "--epochs", "1", "--generation.max-context", "2000")
    assert train_cli(sft_flags(tmp_path / "run", *more)) == 0
    said, _, learned = capfd.readouterr().err.partition("after 0 steps")
    assert learned
    assert "4 of 4 episodes of coin/Coin-v0 were played by react with instructions, but this run" in said
    assert "4 of 4 episodes of coin/Coin-v0 are of its test tasks; 4 of the 4 test tasks" in said


def test_a_wrong_model_is_refused_before_anything_is_played(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert train_cli(sft_flags(tmp_path / "run", "--model", str(empty))) == 2
    said = capfd.readouterr().err
    assert f"The model {empty} can't be loaded." in said
    assert "Training on" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_refused_run_leaves_nothing_that_the_next_one_stumbles_over(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = sft_flags(tmp_path / "run", "--data.episodes", "4", "--epochs", "1", "--lora.rank", "2", "--lora.targets")
    assert train_cli([*flags, "foo"]) == 2
    assert "lora.targets names foo" in " ".join(capfd.readouterr().err.split())
    assert not (tmp_path / "run").exists()
    assert train_cli([*flags, "q_proj"]) == 0
