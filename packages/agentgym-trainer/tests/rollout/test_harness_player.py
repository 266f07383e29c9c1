"""Tests of episodes that harnesses play: recorded like our own agents', and failed where the harness fails."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from agentgym_envs import Episode, EpisodeSpec
from agentgym_eval.util.errors import UsageError
from agentgym_trainer.engines.base import Engine, EngineGone
from agentgym_trainer.gateway.harness import Harness, HarnessTask, Outcome, run_command, run_function
from agentgym_trainer.gateway.recording import EpisodeLimits
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.rollout.harness_player import HarnessPlayer
from agentgym_trainer.rollout.play import named_harness
from agentgym_trainer.rollout.runner import EnginePolicy, RolloutRequest, RolloutRunner, TokenBudget
from agentgym_trainer.tokens.chat import Chat
from agentgym_trainer.tokens.trajectory import trajectory
from coin_rollouts import coin_specs, contexts, open_environment, random_reply_engine
from dev_packages import require_packages
from patience import PATIENCE, eventually

require_packages("openai")
import harness_examples
from gateways import replying

LIMITS = EpisodeLimits(temperature=1.0, turn=50, context=400)
PROGRAM = Path(__file__).parent.parent / "harness_command.py"


def command(argument: str) -> str:
    return shlex.join([sys.executable, str(PROGRAM), argument])


@contextmanager
def environment() -> Generator[OpenEnvironment]:
    with open_environment(max_episode_steps=20) as world:
        yield world


def play(
    engine: Engine,
    chat: Chat,
    run: Any,
    specs: Sequence[EpisodeSpec],
    *,
    horizon: int | None = None,
    limits: EpisodeLimits = LIMITS,
    timeout: float = PATIENCE,
    slots: int = 2,
) -> list[Episode]:
    """Play episodes, in the order of `specs`."""
    with environment() as world, RolloutRunner(engine) as rollouts:
        gateway = rollouts.gateway(chat, "tiny")
        player = HarnessPlayer(run, gateway, limits, timeout=timeout, slots=asyncio.Semaphore(slots))
        episodes = list(rollouts.play([RolloutRequest(world, specs, horizon)], player))
    order = {(spec.task_id, spec.sample): i for i, spec in enumerate(specs)}
    return sorted(episodes, key=lambda episode: order[episode.task_id, episode.sample])


def function(harness: Harness) -> Any:
    return partial(run_function, harness)


def test_a_loop_on_the_client_of_openai_records_what_our_own_agent_records(chat: Chat) -> None:
    specs = coin_specs(3, samples=2)
    texts = ["heads", "tails", "it says <|im_end|>"]
    played = play(random_reply_engine(chat, texts), chat, function(harness_examples.loop), specs, slots=1)
    with environment() as world, RolloutRunner(random_reply_engine(chat, texts)) as rollouts:
        policy = EnginePolicy(rollouts.engine, chat, TokenBudget(50, 400), name="tiny")
        for spec, episode in zip(specs, played, strict=True):
            # One by one, since the replies come from one generator.
            (own,) = rollouts.play([RolloutRequest(world, [spec])], policy)
            assert episode.stop == own.stop == "terminated"
            assert (episode.score, episode.success) == (pytest.approx(own.score), own.success)
            assert list(contexts(episode)) == list(contexts(own))
            assert trajectory(episode).segments == trajectory(own).segments
            assert [turn.observation for turn in episode.turns] == [turn.observation for turn in own.turns]
            assert sum(turn.reward for turn in episode.turns) == pytest.approx(episode.score)
            assert Episode.from_json(episode.to_json()) == episode
            assert (episode.category, episode.split, episode.policy) == (own.category, own.split, "tiny")


def test_crashes_silence_and_wrong_rewards_are_failed_episodes(chat: Chat) -> None:
    specs = coin_specs(1, samples=6)
    played = play(replying(chat, "heads"), chat, function(harness_examples.split_by_sample), specs)
    assert [episode.stop for episode in played] == ["terminated", *["failed"] * 5]
    assert (played[0].score, played[0].success) == (0.5, False)
    for episode, words in zip(
        played[1:], ["no request", "lost its tools", "'good'", "from 0 to 1", "SystemExit"], strict=True
    ):
        assert words in str(episode.error)
        assert (episode.score, episode.success) == (None, None)
        assert sum(turn.reward for turn in episode.turns) == 0


@pytest.mark.parametrize("harness", [harness_examples.endless, harness_examples.blocked])
def test_a_harness_that_does_not_end_is_a_failed_episode(chat: Chat, harness: Harness) -> None:
    before = len(harness_examples.ANSWERED)
    (episode,) = play(replying(chat, "heads"), chat, function(harness), coin_specs(1), timeout=1)
    assert episode.stop == "failed"
    assert "did not end within 1 seconds" in str(episode.error)
    if harness is harness_examples.endless:
        eventually(lambda: len(harness_examples.ANSWERED) > before, "the cancellation of the harness")


def test_the_horizon_and_the_token_budget_end_episodes_by_the_policy(chat: Chat) -> None:
    blocked = function(harness_examples.blocked)
    (at_horizon,) = play(replying(chat, "heads"), chat, blocked, coin_specs(1), horizon=3)
    assert (at_horizon.stop, at_horizon.score, len(at_horizon.turns)) == ("truncated", 0.0, 3)
    (at_budget,) = play(replying(chat, "heads"), chat, blocked, coin_specs(1), limits=replace(LIMITS, episode=5))
    assert (at_budget.stop, at_budget.score) == ("length", 0.0)
    tokens = sum(len(turn.reply.sample.ids) for turn in at_budget.turns if turn.reply.sample)
    assert tokens <= 5
    (too_long,) = play(replying(chat, "heads"), chat, blocked, coin_specs(1), limits=replace(LIMITS, context=5))
    assert too_long.stop == "failed"
    assert "context length is 5" in str(too_long.error)


def test_the_horizon_is_the_time_limit_of_the_environment_of_the_task(chat: Chat) -> None:
    loop = function(harness_examples.loop)
    (episode,) = play(replying(chat, "heads"), chat, loop, coin_specs(1), horizon=2)
    assert (episode.stop, len(episode.turns)) == ("truncated", 2)
    assert episode.score is not None
    assert episode.score > 0  # what was earned before the limit


def test_no_more_episodes_than_slots_are_played_at_a_time(chat: Chat) -> None:
    playing, most = 0, 0

    async def run(task: HarnessTask, base_url: str, api_key: str) -> Any:
        nonlocal playing, most
        playing += 1
        most = max(most, playing)
        outcome = await run_function(harness_examples.asynchronous, task, base_url, api_key)
        playing -= 1
        return outcome

    played = play(replying(chat, "heads"), chat, run, coin_specs(4, samples=2), slots=3)
    assert most == 3
    assert all(episode.success for episode in played)


def test_an_engine_that_is_gone_ends_everything(chat: Chat) -> None:
    engine = replying(chat, "heads")

    async def gone(*_: Any) -> Any:
        raise EngineGone("no power")

    engine.generate = gone  # type: ignore[method-assign]
    with pytest.raises(EngineGone, match="no power"):
        play(engine, chat, function(harness_examples.asynchronous), coin_specs(2))


def test_log_probabilities_that_are_not_finite_fail_the_episode(chat: Chat) -> None:
    engine = replying(chat, "heads")
    generate = engine.generate

    async def broken(ids: Any, sampling: Any) -> Any:
        completion = await generate(ids, sampling)
        return replace(completion, logprobs=(float("nan"),) * len(completion.ids))

    engine.generate = broken  # type: ignore[method-assign]
    (episode,) = play(engine, chat, function(harness_examples.asynchronous), coin_specs(1))
    assert episode.stop == "failed"
    assert "aren't finite" in str(episode.error)


@pytest.mark.parametrize(
    ("argument", "stop", "score", "words"),
    [
        ("0.5", "terminated", 0.5, ""),
        ('{"reward": 1, "success": false, "truncated": true}', "truncated", 1.0, ""),
        ('{"reward": 1, "notes": "' + "x" * 1000 + '"}', "terminated", 1.0, ""),
        ("crash", "failed", None, "exit code 1: the agent has lost its tools"),
        ('{"reward": 0.5, "notes": "a\u2028b"}', "terminated", 0.5, ""),
        ("50%\r100%\r0.5", "terminated", 0.5, ""),
        ("bye", "failed", None, "'bye'"),
        ("[1]", "failed", None, "reward from 0 to 1"),
        ("[" * 100_000, "failed", None, "'[[["),
    ],
)
def test_a_command_plays_and_ends_with_a_reward(
    chat: Chat, argument: str, stop: str, score: float | None, words: str
) -> None:
    run = partial(run_command, command(argument))
    (episode,) = play(replying(chat, "heads"), chat, run, coin_specs(1))
    assert (episode.stop, episode.score) == (stop, score)
    assert words in str(episode.error)
    assert len(episode.turns) == 1


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_process_that_a_command_leaves_running_is_killed(chat: Chat, tmp_path: Path) -> None:
    run = partial(run_command, f"sh -c 'sleep 1000 & echo $! > {tmp_path / 'pid'}; {command('0.5')}'")
    (episode,) = play(replying(chat, "heads"), chat, run, coin_specs(1), timeout=60)
    assert (episode.stop, episode.score) == ("terminated", 0.5)
    left = int((tmp_path / "pid").read_text())
    eventually(lambda: not runs(left), "the end of `sleep`")


@pytest.mark.parametrize("malformed", ["sh -c 'echo 1", " "])
def test_a_command_without_words_is_refused(malformed: str) -> None:
    with pytest.raises(UsageError, match="--harness-command"):
        named_harness("", malformed)


def test_an_error_with_half_an_emoji_can_be_saved(chat: Chat) -> None:
    def undecodable(*_: Any) -> float:
        raise OSError("no file \udcff")

    (episode,) = play(replying(chat, "heads"), chat, function(undecodable), coin_specs(1))
    assert episode.stop == "failed"
    assert "no file" in str(episode.error)
    episode.to_json().encode()


NUMPY: tuple[Any, Any] = np.float32(0.5), np.True_


@pytest.mark.parametrize(("result", "score"), [(NUMPY[0], 0.5), (Outcome(NUMPY[0]), 0.5), (Outcome(NUMPY[1]), 1.0)])
def test_numbers_of_numpy_are_rewards(result: Any, score: float, chat: Chat) -> None:
    def plays(task: Any, base_url: str, api_key: str) -> Any:
        harness_examples.loop(task, base_url, api_key)
        return result

    (episode,) = play(replying(chat, "heads"), chat, function(plays), coin_specs(1))
    assert (episode.stop, episode.score) == ("terminated", score)
    assert Episode.from_json(episode.to_json()) == episode


TWO = np.array([True, False])


@pytest.mark.parametrize(
    "made",
    [
        lambda: {"reward": 10**400},
        lambda: {"reward": 1, "success": TWO},
        lambda: {"reward": 1, "success": torch.tensor(TWO)},
        lambda: {"reward": 1, "truncated": TWO},
        lambda: Outcome(1.0, success=TWO),
        lambda: Outcome(1.0, truncated=TWO),
    ],
)
def test_whatever_a_harness_returns_fails_its_episode_alone(made: Callable[[], Any], chat: Chat) -> None:
    def returns(*_: Any) -> Any:
        return made()

    (episode,) = play(replying(chat, "heads"), chat, function(returns), coin_specs(1))
    assert episode.stop == "failed"


def test_a_command_that_does_not_end_is_killed(chat: Chat) -> None:
    (episode,) = play(replying(chat, "heads"), chat, partial(run_command, "sleep 1000"), coin_specs(1), timeout=1)
    assert "did not end" in str(episode.error)
    (missing,) = play(replying(chat, "heads"), chat, partial(run_command, "no-such-agent"), coin_specs(1))
    assert "no-such-agent can't be started" in str(missing.error)
