"""Tests of DAgger: the mixture of policy and expert, masks, aggregated data, and resuming within the warm start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, ClassVar

import pytest
from agentgym_envs import (
    EnvPool,
    Episode,
    EpisodeSpec,
    LocalSlot,
    Policy,
    PoolSlot,
    Reply,
    Sample,
    TurnContext,
    play_episode,
    read_episodes,
)
from agentgym_envs.agents.agent import Agent
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.config import DAgger, WarmStart, WorldConfig
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.trainers import warm_start
from agentgym_trainer.trainers.dagger import Mixture, Round, check_experts
from coin_configs import coin_config
from coin_world import ENV, Coin
from safetensors.torch import load_file
from toy_learner import SignalPoint, coin_flags, train_cli, train_process

ROUNDS, EPISODES = 2, 24
DAGGER = (
    *("--steps", "1", "--evaluation.every", "0"),
    *("--warm-start.dagger.rounds", str(ROUNDS), "--warm-start.dagger.episodes", str(EPISODES)),
)


class Edge(Policy):
    """A policy that always replies "edge", with sampled ids."""

    name: str = "edge"

    def __init__(self) -> None:
        self.forgotten: list[int] = []

    async def reply(self, context: TurnContext) -> Reply:
        return Reply("edge", sample=Sample((1,), (2,), (-1.0,)))

    def forget(self, key: int) -> None:
        self.forgotten.append(key)


def play_mixture(beta: float, *, samples: int, agent: str = "bare", pooled: bool = False) -> list[Episode]:
    async def play_all() -> list[Episode]:
        edge = Edge()
        env = Agent.parse(agent).wrap(Coin())
        with EnvPool(ENV, 1) as pool:
            slot = PoolSlot(pool, 0, env) if pooled else LocalSlot(env)
            specs = [EpisodeSpec("coin/train/5", sample, 0) for sample in range(samples)]
            episodes = [await play_episode(slot, Mixture(edge, beta), spec, horizon=3) for spec in specs]
        assert len(edge.forgotten) == samples
        return episodes

    return asyncio.run(play_all())


def by_expert(episodes: Sequence[Episode]) -> list[bool]:
    return [turn.reply.sample is None for episode in episodes for turn in episode.turns]


def test_the_expert_acts_with_probability_beta() -> None:
    acts = by_expert(play_mixture(0.3, samples=300))
    assert len(acts) == 900
    assert sum(acts) / len(acts) == pytest.approx(0.3, abs=0.05)  # 3 standard errors
    assert all(by_expert(play_mixture(1.0, samples=3)))


@pytest.mark.parametrize("pooled", [False, True])
def test_the_expert_acts_in_the_state_that_was_reached(pooled: bool) -> None:
    for episode in play_mixture(0.5, samples=20, pooled=pooled):
        for turn, right in zip(episode.turns, ("tails", "heads", "tails"), strict=True):
            assert turn.action == ("edge" if turn.reply.sample else right)
    assert [e.turns for e in play_mixture(0.5, samples=4)] == [
        e.turns for e in play_mixture(0.5, samples=4, pooled=True)
    ]


def test_the_policy_acts_where_the_expert_has_no_action(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Coin, "oracle", lambda _: None)
    episodes = play_mixture(1.0, samples=3)
    assert not any(by_expert(episodes))
    assert not any(episode.failed for episode in episodes)


def test_other_turns_than_actions_are_the_policys_own() -> None:
    for episode in play_mixture(1.0, samples=3, agent="react+plan+reflect:1"):
        for turn in episode.turns:
            assert (turn.reply.sample is None) == (turn.kind == "act")
        assert all("Action: " in turn.reply.text for turn in episode.turns if turn.kind == "act")


def test_episodes_of_a_round_depend_on_seed_and_number() -> None:
    config = coin_config(warm_start=WarmStart(episodes=1, dagger=DAgger(rounds=2, episodes=40)))

    def drawn(number: int, seed: int = 0) -> list[EpisodeSpec]:
        with open_environments(config) as worlds:
            ((_, specs),) = Round(replace(config, seed=seed), number, Path()).draw_episodes(worlds)
        return specs

    assert drawn(1) == drawn(1)
    assert len(drawn(1)) == 40
    assert len({spec.seed for spec in (*drawn(1), *drawn(2), *drawn(1, seed=1))}) == 3


class FixedPath(Coin):
    oracle_replans: ClassVar[bool] = False


def test_experts_that_follow_a_fixed_path_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_environments(coin_config()) as worlds:
        check_experts(worlds)
        monkeypatch.setattr(Coin, "oracle_replans", False)
        with pytest.raises(UsageError, match=r"that of coin/Coin-v0 follows a path .* --warm-start\.dagger\.rounds 0"):
            check_experts(worlds)


def test_which_worlds_support_dagger() -> None:
    names = ("agentgym/BabyAI-v0", "agentgym/TextCraft-v0", "agentgym/SearchQA-v0")
    config = coin_config(world=WorldConfig(names[0]), extra_worlds=tuple(map(WorldConfig, names[1:])))
    with open_environments(config) as worlds:
        check_experts(worlds)


@pytest.mark.parametrize("settings", [{"beta": 0.0}, {"beta": 1.5}, {"rounds": -1}, {"episodes": 0}, {"epochs": 0}])
def test_settings_are_checked(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"warm_start\.dagger needs rounds >= 0"):
        DAgger(**settings)
    with pytest.raises(ValueError, match=r"set warm_start\.episodes, too"):
        WarmStart(dagger=DAgger(rounds=1))


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose warm start has two rounds of DAgger."""
    folder = RunFolder(tmp_path_factory.mktemp("complete") / "run")
    assert train_cli(coin_flags(folder.path, *DAGGER)) == 0
    return folder


def rounds_of(run: RunFolder) -> list[list[Episode]]:
    return [list(read_episodes(path)) for path in sorted(run.warm_start.glob("round-*.jsonl"))]


def test_rounds_are_saved_with_the_experts_turns_in_the_loss(complete: RunFolder) -> None:
    rounds = rounds_of(complete)
    assert list(map(len, rounds)) == [EPISODES] * ROUNDS
    for episodes in rounds:
        turns = [turn for episode in episodes for turn in episode.turns]
        assert [turn.loss for turn in turns] == by_expert(episodes)
        assert 0.25 < sum(turn.loss for turn in turns) / len(turns) < 0.75
        assert {episode.split for episode in episodes} == {"train"}
    assert rounds[0] != rounds[1]
    assert complete.start.exists()
    assert [path.name for path in complete.warm_start.iterdir() if path.is_dir()] == []  # intermediate models


@pytest.mark.long
def test_a_round_without_an_action_of_the_expert_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Mixture, "reply", lambda mixture, context: mixture._policy.reply(context))
    assert train_cli(coin_flags(tmp_path / "run", *DAGGER)) == 0
    said = " ".join(capsys.readouterr().err.split())
    for number in (1, 2):
        assert f"Warning: the expert had no action in any state of DAgger round {number} in coin/Coin-v0" in said


@pytest.mark.long
def test_every_round_trains_on_the_episodes_of_all_rounds_so_far(
    complete: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[Episode]] = []
    original: Callable[..., Any] = warm_start.encode_demonstrations

    def recording(chat: Any, episodes: Sequence[Episode], trimming: Any) -> Any:
        seen.append(list(episodes))
        return original(chat, episodes, trimming)

    monkeypatch.setattr(warm_start, "encode_demonstrations", recording)
    again = RunFolder(tmp_path / "run")
    assert train_cli(coin_flags(again.path, *DAGGER)) == 0
    played = rounds_of(again)
    assert [len(episodes) for episodes in seen] == [96, 96 + EPISODES, 96 + 2 * EPISODES]
    assert seen[2][96:] == [*played[0], *played[1]]
    assert texts(played) == texts(rounds_of(complete))
    assert_same_weights(again, complete)


def texts(rounds: Sequence[Sequence[Episode]]) -> list[Any]:
    return [[(e.task_id, [turn.reply.text for turn in e.turns]) for e in episodes] for episodes in rounds]


def assert_same_weights(run: RunFolder, other: RunFolder) -> None:
    for folder, expected in ((run.start, other.start), (run.model, other.model)):
        weights, same = (load_file(path / "model.safetensors") for path in (folder, expected))
        assert weights.keys() == same.keys()
        assert all(weights[name].equal(same[name]) for name in weights)


@pytest.mark.long
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            ("agentgym_trainer.rollout.runner:EnginePolicy", "reply", 45), id="in the second round's episodes"
        ),
        pytest.param(("agentgym_trainer.trainers.dagger:Round", "_save", 2), id="after the second round's episodes"),
        pytest.param(("agentgym_trainer.learner.learner:Learner", "update", 50), id="in an update"),
    ],
)
def test_a_killed_warm_start_resumes_exactly(complete: RunFolder, tmp_path: Path, point: tuple[str, str, int]) -> None:
    run = RunFolder(tmp_path / "run")
    flags = coin_flags(run.path, *DAGGER)
    child = get_context("spawn").Process(target=train_process, args=(flags, tmp_path / "log", SignalPoint(*point)))
    child.start()
    child.join()
    assert child.exitcode == -9
    assert run.warm_start.exists()
    assert not run.start.exists()
    stored = [read_episodes(file) for file in run.warm_start.glob("playing-*/*/episodes.jsonl")]
    assert any(map(any, stored)) or point[1] != "_save"
    assert train_cli(["--resume", str(run.path)]) == 0
    assert texts(rounds_of(run)) == texts(rounds_of(complete))
    assert_same_weights(run, complete)
    assert not list(run.warm_start.glob("playing-*"))
