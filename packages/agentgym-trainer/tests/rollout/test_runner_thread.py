"""Tests of the rollout runner's thread: concurrency, cancellation, interrupts, errors and closing."""

from __future__ import annotations

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any, ClassVar

import gymnasium
import psutil
import pytest
from agentgym_envs import Episode, EpisodeSpec
from agentgym_envs.util import abandoned_threads
from agentgym_trainer.engines.base import Completion, EngineGone, SamplingParams, Weights
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.rollout import runner
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.rollout.runner import EnginePolicy, RolloutRequest, RolloutRunner, TokenBudget
from agentgym_trainer.tokens.chat import Chat
from coin_rollouts import coin_specs, constant_script, open_environment, random_reply_engine
from coin_world import OTHER, Coin
from patience import eventually


class Waiting(Coin):
    """An environment whose task 1 blocks until it is allowed to continue."""

    allowed: ClassVar[threading.Event] = threading.Event()

    def _act(self, action: str) -> Any:
        if self._sides == 1:
            assert self.allowed.wait(60), "task 1 was never allowed to continue"
        return super()._act(action)


gymnasium.register("coin/Waiting-v0", Waiting, max_episode_steps=20, disable_env_checker=True)


class StallingEngine(ScriptedEngine):
    """An engine that never answers the second request of a conversation, and counts its pending requests."""

    def __init__(self, chat: Chat) -> None:
        super().__init__(constant_script(chat, "heads"), end_id=chat.end_id)
        self.pending = 0
        self.closed = 0

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        if len([i for i in ids if i == self._end_id]) < 2:
            return await super().generate(ids, sampling)
        self.pending += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.pending -= 1
        raise AssertionError("the request returned")

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture(scope="module")
def coin() -> Iterator[OpenEnvironment]:
    with open_environment() as world:
        yield world


@pytest.fixture
def random_runner(chat: Chat) -> Iterator[RolloutRunner]:
    with RolloutRunner(random_reply_engine(chat, ["heads", "tails"])) as rollouts:
        yield rollouts


def _policy(rollouts: RolloutRunner, chat: Chat) -> EnginePolicy:
    return EnginePolicy(rollouts.engine, chat, TokenBudget(), name="scripted")


async def _count_other_tasks() -> int:
    """Return the number of asyncio tasks without this one."""
    return len(asyncio.all_tasks()) - 1


def _is_free(world: OpenEnvironment) -> bool:
    return not world.pool._tickets


def test_environments_are_played_concurrently_in_a_deterministic_order(chat: Chat, coin: OpenEnvironment) -> None:
    def play() -> list[tuple[str, int, str]]:
        with (
            RolloutRunner(random_reply_engine(chat, ["heads", "tails", "sideways"])) as rollouts,
            open_environment(OTHER, 2) as other,
        ):
            requests = [
                RolloutRequest(coin, coin_specs(6, samples=2), 2),
                RolloutRequest(other, [EpisodeSpec(f"one-sided/train/{i}", seed=1) for i in range(9)]),
            ]
            episodes = list(rollouts.play(requests, _policy(rollouts, chat)))
            assert rollouts.run(_count_other_tasks()) == 0
            assert {len(e.turns) for e in episodes if e.env == "coin/Coin-v0"} == {2}
            return [(e.task_id, e.sample, e.turns[0].reply.text) for e in episodes]

    first = play()
    assert len(first) == 21
    assert [task.split("/")[0] for task, _, _ in first] != sorted(task.split("/")[0] for task, _, _ in first)
    assert play() == first


def test_a_slow_environment_does_not_delay_other_episodes(chat: Chat, random_runner: RolloutRunner) -> None:
    Waiting.allowed.clear()
    with open_environment("coin/Waiting-v0", 2, backend="thread") as world, ExitStack() as stack:
        stack.callback(Waiting.allowed.set)
        episodes = random_runner.play(
            [RolloutRequest(world, [EpisodeSpec(f"coin/train/{i}") for i in (1, 0, 2, 3, 4)])],
            _policy(random_runner, chat),
        )
        finished = [next(episodes).task_id for _ in range(4)]
        Waiting.allowed.set()
        assert finished == [f"coin/train/{i}" for i in (0, 2, 3, 4)]
        assert [episode.task_id for episode in episodes] == ["coin/train/1"]


def test_closing_the_iterator_cancels_remaining_episodes(chat: Chat, coin: OpenEnvironment) -> None:
    engine = StallingEngine(chat)
    with RolloutRunner(engine) as rollouts:
        policy = _policy(rollouts, chat)
        # Only episodes of one turn end.
        with open_environment(OTHER, 1) as other:
            requests = [
                RolloutRequest(other, [EpisodeSpec("one-sided/train/1")], 1),
                RolloutRequest(coin, coin_specs(3)),
            ]
            with closing(rollouts.play(requests, policy)) as episodes:
                assert next(episodes).task_id == "one-sided/train/1"
        assert engine.pending == 0
        assert rollouts.run(_count_other_tasks()) == 0
        assert policy._contexts == {}
        assert _is_free(coin)


def test_an_interruption_abandons_a_thread_that_an_environment_blocks(
    chat: Chat, interruptible: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "_CANCEL", 0.2)
    monkeypatch.setattr(abandoned_threads, "_processes", set[int]())
    Waiting.allowed.clear()
    engine = StallingEngine(chat)
    with open_environment("coin/Waiting-v0", 1, backend="inline") as world, ExitStack() as stack:
        stack.callback(Waiting.allowed.set)
        with RolloutRunner(engine) as rollouts:
            episodes = rollouts.play([RolloutRequest(world, [EpisodeSpec("coin/train/1")])], _policy(rollouts, chat))
            with _ctrl_c_when(lambda: bool(world.pool._tickets)), pytest.raises(KeyboardInterrupt):
                next(episodes)
            assert abandoned_threads.any_abandoned()
            assert rollouts.closed
            rollouts.end(_count_other_tasks())
            with pytest.raises(RuntimeError, match="closed"):
                rollouts.run(_count_other_tasks())
        assert engine.closed == 0


def test_ctrl_c_cancels_everything_in_the_thread(chat: Chat, coin: OpenEnvironment, interruptible: None) -> None:
    engine = StallingEngine(chat)
    with RolloutRunner(engine) as rollouts:
        policy = _policy(rollouts, chat)
        with _ctrl_c_when(lambda: engine.pending == 3), pytest.raises(KeyboardInterrupt):
            list(rollouts.play([RolloutRequest(coin, coin_specs(3))], policy))
        assert engine.pending == 0
        assert rollouts.run(_count_other_tasks()) == 0
        assert policy._contexts == {}
        assert _is_free(coin)
        context = [chat.end_id] * 2
        with _ctrl_c_when(lambda: engine.pending == 1), pytest.raises(KeyboardInterrupt):
            rollouts.run(engine.generate(context, SamplingParams()))
        assert engine.pending == 0
        assert rollouts.run(_count_other_tasks()) == 0
    assert engine.closed == 1


def test_an_exception_of_the_check_cancels_pending_calls(
    chat: Chat, coin: OpenEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    class StallingLoad(StallingEngine):
        async def load(self, weights: Weights) -> None:
            await self.generate([self._end_id] * 2, SamplingParams())

    engine = StallingLoad(chat)

    def check() -> None:
        if engine.pending:
            raise TimeoutError("the job's time is over")

    monkeypatch.setattr(runner, "_GLANCE", 0.01)
    with RolloutRunner(engine, check) as rollouts:
        policy = _policy(rollouts, chat)
        for call in (
            lambda: list(rollouts.play([RolloutRequest(coin, coin_specs(3))], policy)),
            lambda: rollouts.load(Weights(1, tensors=lambda: iter(()))),
        ):
            with pytest.raises(TimeoutError, match="the job's time"):
                call()
            assert engine.pending == 0
            assert rollouts.run(_count_other_tasks()) == 0
        assert policy._contexts == {}
        assert _is_free(coin)
    assert engine.closed == 1


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Make Ctrl-C raise KeyboardInterrupt, even if the process was started with SIGINT ignored."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@contextmanager
def _ctrl_c_when(condition: Callable[[], bool]) -> Generator[None]:
    """Send Ctrl-C to the main thread as soon as the condition holds."""
    main = threading.main_thread().ident
    assert main is not None

    def watch() -> None:
        eventually(condition)
        signal.pthread_kill(main, signal.SIGINT)

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield
    watcher.join()


def test_a_lost_engine_ends_the_rollout_with_its_message(chat: Chat, coin: OpenEnvironment) -> None:
    class FailingEngine(StallingEngine):
        async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
            if self.pending == 2:
                raise EngineGone("it is no more")
            return await super().generate(ids, sampling)

    engine = FailingEngine(chat)
    with RolloutRunner(engine) as rollouts:
        with pytest.raises(EngineGone, match="it is no more"):
            list(rollouts.play([RolloutRequest(coin, coin_specs(3))], _policy(rollouts, chat)))
        assert rollouts.run(_count_other_tasks()) == 0
        assert engine.pending == 0
        assert _is_free(coin)


def test_weights_can_be_loaded_during_a_rollout(
    chat: Chat, coin: OpenEnvironment, random_runner: RolloutRunner
) -> None:
    policy = _policy(random_runner, chat)
    episodes = random_runner.play([RolloutRequest(coin, coin_specs(16, samples=8))], policy)
    first = next(episodes)
    random_runner.load(Weights(5, tensors=lambda: iter(())))
    random_runner.sleep()
    versions = [[turn.reply.sample.version for turn in e.turns if turn.reply.sample] for e in (first, *episodes)]
    assert random_runner.engine.version == 5
    assert all(of_episode == sorted(of_episode) for of_episode in versions)
    assert len(versions) == 128


def test_exceptions_of_coroutines_reach_the_caller(random_runner: RolloutRunner) -> None:
    async def fail() -> None:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        random_runner.run(fail())


def test_close_closes_the_engine_once_and_cancels_tasks(chat: Chat) -> None:
    threads, engine = set(threading.enumerate()), StallingEngine(chat)
    rollouts = RolloutRunner(engine)

    async def start_task() -> asyncio.Task[Any]:
        return asyncio.create_task(asyncio.Event().wait())

    task = rollouts.run(start_task())
    rollouts.close()
    assert task.cancelled()
    rollouts.close()
    assert engine.closed == 1
    assert set(threading.enumerate()) <= threads
    with pytest.raises(RuntimeError, match="This rollout runner is closed"):
        rollouts.run(asyncio.sleep(0))


@pytest.mark.long
def test_hundreds_of_episodes_leak_nothing(new_model: Callable[..., Any], chat: Chat) -> None:
    process, sizes = psutil.Process(), list[tuple[int, int, int]]()
    specs = [EpisodeSpec(f"coin/train/{i % 16}", i // 16, seed=1) for i in range(400)]
    engine = transformers_engine(new_model().eval(), end_id=chat.end_id, keep=4096)
    existing = [o for o in gc.get_objects() if type(o) is Episode]  # of other tests, kept until the end
    with open_environment(slots=32, instructions=None) as world, RolloutRunner(engine) as rollouts:
        policy = EnginePolicy(engine, chat, TokenBudget(turn=6, context=300), name="tiny")
        for version, start in enumerate(range(0, len(specs), 100)):
            episodes = list(rollouts.play([RolloutRequest(world, specs[start : start + 100])], policy))
            assert len(episodes) == 100
            assert policy._contexts == {}
            del episodes
            gc.collect()
            assert sum(type(o) is Episode for o in gc.get_objects()) == len(existing)
            tasks = rollouts.run(_count_other_tasks())
            rows = rollouts.engine._core._rows  # type: ignore[attr-defined]
            kept = sum(row.read for row in rows._idle)
            sizes.append((process.num_fds(), tasks, kept))
            rollouts.load(Weights(version + 1, tensors=lambda: iter(())))
    descriptors, tasks, kept = zip(*sizes, strict=True)
    assert max(descriptors[2:]) <= descriptors[1]
    assert set(tasks) == {0}
    assert 0 < max(kept) <= 4096 + 32 * 300  # rows of finished episodes are dropped at the next step
