"""Tests of runs in which the environment's expert plays the first turns of episodes."""

from __future__ import annotations

import json
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from agentgym_envs import Episode, Reply, Turn, read_episodes
from agentgym_envs.episodes.conversation import replay
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.algorithms import PRESETS
from agentgym_trainer.config import RolloutFiles
from agentgym_trainer.curriculum.horizon import BackwardHorizon, FixedHorizon
from agentgym_trainer.reward_shaping import PerTurn, shaped_rewards
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.rollout.groups import EpisodeGroup, EpisodeOutcome
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import own_rewards, trajectory
from agentgym_trainer.trainers.expert_starts import check_expert_starts
from coin_configs import coin_config
from coin_loops import Build, collect_rollouts, initial_state, loop_config, random_guesses, take_step
from coin_world import FLIPS, Coin
from safetensors.torch import load_file
from toy_learner import SignalPoint, coin_flags, train_cli, train_process

LAST_FLIP = BackwardHorizon((1,), every=1, turns=FLIPS)


def rollouts_of(build: Build, **settings: Any) -> list[EpisodeGroup]:
    loop = build(loop_config(horizon=LAST_FLIP, **settings), random_guesses())
    return collect_rollouts(loop, initial_state(loop)).own


def test_episodes_begin_near_the_end_with_the_same_prefix_in_a_group(build: Build) -> None:
    for group in rollouts_of(build):
        assert [[turn.reply.expert for turn in e.turns] for e in group.episodes] == [[True, True, False]] * 3
        assert len({tuple((turn.observation, turn.reply.text) for turn in e.turns[:2]) for e in group.episodes}) == 1
        assert len({e.turns[2].state_key for e in group.episodes}) == 1


def test_the_experts_turns_are_context_without_loss(build: Build) -> None:
    loop = build(loop_config(horizon=LAST_FLIP), random_guesses())
    chat: Chat = loop.chat
    for group in collect_rollouts(loop, initial_state(loop)).own:
        for episode in group.episodes:
            *_, (conversation, own) = replay(episode)
            assert own.reply.sample is not None
            assert [message.role for message in conversation].count("assistant") == 2
            tokens = group.trajectory(episode, trajectory(episode))
            (segment,) = tokens.segments
            prompt = tuple(chat.open(conversation))
            assert segment.ids == prompt + own.reply.sample.ids
            assert segment.loss_mask == (False,) * len(prompt) + (True,) * len(own.reply.sample.ids)
            assert set(segment.turns) == {-1, 0}
            assert (tokens.rewards, tokens.states) == ((own.reward,), (own.state_key,))


@pytest.mark.parametrize("preset", ["grpo", "dr-grpo", "rloo", "reinforce++", "gigpo"])
def test_advantages_are_those_of_episodes_without_the_experts_turns(build: Build, preset: str) -> None:
    loop = build(loop_config(horizon=LAST_FLIP, algorithm=PRESETS[preset]), random_guesses(1))
    rollouts = collect_rollouts(loop, initial_state(loop))
    batch = loop.compute_logprobs(loop.make_batch(rollouts))
    tokens = batch.batch.tokens
    assert tokens.rewards_EK.shape[1] == 1
    own = [episode.turns[2].reward for group in rollouts.own if group.treatment == "keep" for episode in group.usable]
    assert tokens.rewards_EK[:, 0].tolist() == pytest.approx(own)
    advantages = loop.compute_advantages(batch, 0).advantages_N
    assert advantages.isfinite().all()
    assert torch.allclose(advantages, loop.algorithm.compute_advantages(batch.tokens, lambda local: local).advantages_N)


def test_metrics_count_the_policys_turns(build: Build) -> None:
    loop = build(loop_config(horizon=LAST_FLIP, rollouts=RolloutFiles(every=1, tokens=9)), random_guesses())
    state = take_step(loop, initial_state(loop))
    (line,) = loop.folder.read_metrics()
    episodes = loop.config.tasks_per_step * loop.config.group_size
    assert (line["turns"], line["expert_turns"], line["horizon"], line["env_steps"]) == (1, 2, 2, episodes)
    assert line["stage"] == {"number": 0, "since": 0, "why": "begin", "remaining": 1}
    assert line["kinds"]["act"]["turns"] == 1
    # The next step plays whole tasks.
    assert (state.stage.remaining, state.stage.turns, state.stage.number) == (None, FLIPS, 1)
    take_step(loop, state)
    line = list(loop.folder.read_metrics())[1]
    assert (line["turns"], line["env_steps"]) == (FLIPS, (1 + FLIPS) * episodes)
    assert "expert_turns" not in line
    assert "remaining" not in line["stage"]


def test_files_show_the_experts_turns(build: Build) -> None:
    loop = build(loop_config(horizon=LAST_FLIP, rollouts=RolloutFiles(every=1, tokens=9)), random_guesses())
    take_step(loop, initial_state(loop))
    files = [path for path in loop.folder.path.rglob("*.jsonl") if path.name not in ("metrics.jsonl",)]
    lines = [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    tokens = [line for line in lines if line.get("schema") == "agentgym.tokens/2"]
    assert tokens
    # The own turn is the third of the episode.
    assert {turn for line in tokens for segment in line["segments"] for turn in segment["turn"]} == {-1, 2}
    played = [line for line in lines if line.get("schema") == "agentgym.episode/2" and line["split"] == "train"]
    assert {tuple(turn["reply"].get("expert", False) for turn in line["turns"]) for line in played} == {
        (True, True, False)
    }
    assert {tuple(turn["loss"] for turn in line["turns"]) for line in played} == {(False, False, True)}


def made(*turns: tuple[float, bool, int]) -> Episode:
    """Return an episode from the reward, the author (whether it is the expert) and the trial of each turn."""
    return Episode(
        *("coin/Coin-v0", "coin/train/0", "train", "coins", 1, "scripted", 0, ""),
        turns=tuple(
            Turn("Flip.", Reply("heads", expert=expert), "heads", True, reward, "s", trial=trial, loss=not expert)
            for reward, expert, trial in turns
        ),
        final_observation="",
        stop="terminated",
        score=0.5,
        success=False,
    )


def test_the_experts_rewards_do_not_shift_returns() -> None:
    one = made((0.25, True, 0), (0.25, False, 0))
    assert own_rewards(one) == (0.25,)
    # The second trial resets a score of 0.5, and the expert earns 0.25 of it again.
    two = made((0.25, True, 0), (0.25, False, 0), (-0.5, False, 1), (0.25, True, 1), (0.5, False, 1))
    assert own_rewards(two) == (0.25, -0.25, 0.5)
    assert sum(own_rewards(two)) == 0.75 - 0.25  # the final score without the expert's part
    # Of shaped rewards only those of the policy's turns train.
    assert own_rewards(two, [turn.reward - 0.125 for turn in two.turns]) == (0.125, -0.375, 0.375)


def test_shaped_rewards_penalize_the_policy_only() -> None:
    episode = made((0.25, True, 0), (0.25, True, 0), (0.5, False, 0))
    shaping = PerTurn(turn_penalty=0.125, format_bonus=0.0625)
    assert shaped_rewards(shaping, episode) == (0.25, 0.25, 0.5 - 0.125 + 0.0625)
    group = EpisodeGroup.from_episodes([episode], PRESETS["grpo"], reward=shaping)
    assert group.rewards(episode) == (0.4375,)
    assert group.outcome.episodes[0].shaped == 0.4375


def test_outcomes_count_both_parts() -> None:
    outcome = EpisodeOutcome.of(made((0.25, True, 0), (0.25, True, 0), (0.5, False, 0)))
    assert (outcome.turns, outcome.expert_turns, len(outcome.replies), outcome.trials) == (1, 2, 1, 1)


# Environments without an expert.


def test_environments_without_an_expert_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config, said = coin_config(horizon=LAST_FLIP), list[str]()
    with open_environments(config) as worlds:
        check_expert_starts(config, worlds, said.append)
        assert not said

        def clueless(_: Coin) -> str:
            raise NotImplementedError("nobody knows")

        def edge(_: Coin) -> str:
            return "edge"

        def nothing(_: Coin) -> tuple[float, bool]:
            return 0.0, False

        monkeypatch.setattr(Coin, "oracle", clueless)
        with pytest.raises(UsageError, match=r"coin/Coin-v0 did not solve coin/train/0: .*nobody knows.*horizon step"):
            check_expert_starts(config, worlds, said.append)
        check_expert_starts(coin_config(horizon=FixedHorizon(3)), worlds, said.append)
        monkeypatch.setattr(Coin, "oracle", edge)
        monkeypatch.setattr(Coin, "_standing", nothing)
        with pytest.raises(UsageError, match=r"it stopped after 3 turns \(terminated\) with a score of 0\. "):
            check_expert_starts(config, worlds, said.append)


def test_a_run_that_never_plays_whole_tasks_says_so() -> None:
    said = list[str]()
    config = coin_config(horizon=BackwardHorizon((1, 2), every=3, turns=3), steps=6)
    with open_environments(config) as worlds:
        check_expert_starts(config, worlds, said.append)
    assert said == [
        "In none of the 6 steps the policy plays whole tasks, since the last stage of the horizon begins after 6: "
        "lower --horizon.every, or raise --steps."
    ]


# Whole runs.

FLAGS = ("--horizon", "backward", "--horizon.stages", "1", "2", "--horizon.every", "2")
ASYNC = ("--async-rollout.max-staleness", "1")


def stages_of(run: RunFolder) -> list[tuple[Any, ...]]:
    return [
        (line["step"], line["horizon"], line["stage"].get("remaining"), line["turns"], line["success"])
        for line in run.read_metrics()
    ]


@pytest.mark.long
def test_a_killed_run_resumes_exactly(tmp_path: Path) -> None:
    complete, killed = RunFolder(tmp_path / "complete"), RunFolder(tmp_path / "killed")
    assert train_cli(coin_flags(complete.path, *FLAGS)) == 0
    assert [stage[:3] for stage in stages_of(complete)] == [
        *((step, 2, 1) for step in (1, 2)),
        *((step, 3, 2) for step in (3, 4)),
        *((step, 3, None) for step in (5, 6)),
    ]
    assert [line.get("expert_turns") for line in complete.read_metrics()] == [2, 2, 1, 1, None, None]
    point = SignalPoint("agentgym_trainer.trainers.rl_loop:RLLoop", "collect", 4)
    child = get_context("spawn").Process(
        target=train_process, args=(coin_flags(killed.path, *FLAGS), tmp_path / "log", point)
    )
    child.start()
    child.join()
    assert child.exitcode == -9
    assert train_cli(["--resume", str(killed.path)]) == 0
    assert stages_of(killed) == stages_of(complete)
    weights, same = (load_file(run.model / "model.safetensors") for run in (killed, complete))
    assert all(weights[name].equal(same[name]) for name in same)


@pytest.mark.long
def test_asynchronous_rollouts_begin_near_the_end(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    assert train_cli(coin_flags(run.path, *FLAGS, *ASYNC)) == 0
    played = [e for path in sorted((run.path / "rollouts").rglob("*.jsonl")) for e in _episodes(path)]
    led = [sum(turn.reply.expert for turn in episode.turns) for episode in played]
    assert {2, 1, 0} == set(led)
    # A reply that the token budget truncates ends an episode earlier.
    assert all(len(episode.turns) == FLIPS for episode in played if episode.stop != "length")


def _episodes(path: Path) -> list[Episode]:
    return list(read_episodes(path)) if "tokens" not in path.name else []
