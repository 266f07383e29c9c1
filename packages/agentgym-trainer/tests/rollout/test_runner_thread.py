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
from agentgym_trainer.engines.base import Completion, EngineGone, SamplingParams, Weights
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.rollout import runner
from agentgym_trainer.rollout.environments import OpenEnvironment
from agentgym_trainer.rollout.runner import EnginePolicy, RolloutRequest, RolloutRunner, TokenBudget
from agentgym_trainer.tokens.chat import Chat
from coin_rollouts import always, chatter, coins, open_world
from coin_world import OTHER, Coin
from patience import eventually


class Waiting(Coin):
    """A world whose task 1 answers when it is allowed to."""

    allowed: ClassVar[threading.Event] = threading.Event()

    def _act(self, action: str) -> Any:
        if self._sides == 1:
            assert self.allowed.wait(60), "nobody allowed it"
        return super()._act(action)


gymnasium.register("coin/Waiting-v0", Waiting, max_episode_steps=20, disable_env_checker=True)


class Deaf(ScriptedEngine):
    """An engine that never answers a second time in a conversation, and knows who has asked it."""

    def __init__(self, chat: Chat) -> None:
        super().__init__(always(chat, "heads"), end_id=chat.end_id)
        self.stuck = 0
        self.closed = 0

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        if len([i for i in ids if i == self._end_id]) < 2:
            return await super().generate(ids, sampling)
        self.stuck += 1
        try:
            await asyncio.Event().wait()
        finally:
            self.stuck -= 1
        raise AssertionError("nobody wakes it")

    async def close(self) -> None:
        self.closed += 1


@pytest.fixture(scope="module")
def coin() -> Iterator[OpenEnvironment]:
    with open_world() as world:
        yield world


@pytest.fixture
def talking(chat: Chat) -> Iterator[RolloutRunner]:
    with RolloutRunner(chatter(chat, ["heads", "tails"])) as rollouts:
        yield rollouts


def _player(rollouts: RolloutRunner, chat: Chat) -> EnginePolicy:
    return EnginePolicy(rollouts.engine, chat, TokenBudget(), name="scripted")


async def _others() -> int:
    """Tasks besides the one that asks."""
    return len(asyncio.all_tasks()) - 1


def _free(world: OpenEnvironment) -> bool:
    return not world.pool._tickets


def test_all_worlds_are_played_at_once_and_the_same_again_in_the_same_order(chat: Chat, coin: OpenEnvironment) -> None:
    def play() -> list[tuple[str, int, str]]:
        with RolloutRunner(chatter(chat, ["heads", "tails", "sideways"])) as rollouts, open_world(OTHER, 2) as other:
            matches = [
                RolloutRequest(coin, coins(6, samples=2), 2),
                RolloutRequest(other, [EpisodeSpec(f"one-sided/train/{i}", seed=1) for i in range(9)]),
            ]
            episodes = list(rollouts.play(matches, _player(rollouts, chat)))
            assert rollouts.run(_others()) == 0
            assert {len(e.turns) for e in episodes if e.env == "coin/Coin-v0"} == {2}
            return [(e.task_id, e.sample, e.turns[0].reply.text) for e in episodes]

    once = play()
    assert len(once) == 21
    assert [task.split("/")[0] for task, _, _ in once] != sorted(task.split("/")[0] for task, _, _ in once)
    assert play() == once


def test_a_world_that_takes_its_time_holds_up_nobody(chat: Chat, talking: RolloutRunner) -> None:
    Waiting.allowed.clear()
    with open_world("coin/Waiting-v0", 2, backend="thread") as world, ExitStack() as stack:
        stack.callback(Waiting.allowed.set)
        episodes = talking.play(
            [RolloutRequest(world, [EpisodeSpec(f"coin/train/{i}") for i in (1, 0, 2, 3, 4)])], _player(talking, chat)
        )
        others = [next(episodes).task_id for _ in range(4)]
        Waiting.allowed.set()
        assert others == [f"coin/train/{i}" for i in (0, 2, 3, 4)]
        assert [episode.task_id for episode in episodes] == ["coin/train/1"]


def test_what_is_not_taken_is_cancelled(chat: Chat, coin: OpenEnvironment) -> None:
    engine = Deaf(chat)
    with RolloutRunner(engine) as rollouts:
        player = _player(rollouts, chat)
        # Episodes of one turn end, and those of more never do.
        with open_world(OTHER, 1) as other:
            matches = [RolloutRequest(other, [EpisodeSpec("one-sided/train/1")], 1), RolloutRequest(coin, coins(3))]
            with closing(rollouts.play(matches, player)) as episodes:
                assert next(episodes).task_id == "one-sided/train/1"
        assert engine.stuck == 0
        assert rollouts.run(_others()) == 0
        assert player._contexts == {}
        assert _free(coin)


def test_an_interrupted_caller_leaves_nothing_running(chat: Chat, coin: OpenEnvironment, interruptible: None) -> None:
    engine = Deaf(chat)
    with RolloutRunner(engine) as rollouts:
        player = _player(rollouts, chat)
        with _ctrl_c(lambda: engine.stuck == 3), pytest.raises(KeyboardInterrupt):
            list(rollouts.play([RolloutRequest(coin, coins(3))], player))
        assert engine.stuck == 0
        assert rollouts.run(_others()) == 0
        assert player._contexts == {}
        assert _free(coin)
        context = [chat.end_id] * 2
        with _ctrl_c(lambda: engine.stuck == 1), pytest.raises(KeyboardInterrupt):
            rollouts.run(engine.generate(context, SamplingParams()))
        assert engine.stuck == 0
        assert rollouts.run(_others()) == 0
    assert engine.closed == 1


def test_what_the_check_raises_ends_whatever_is_waited_for(
    chat: Chat, coin: OpenEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Away(Deaf):
        async def load(self, weights: Weights) -> None:
            await self.generate([self._end_id] * 2, SamplingParams())

    engine = Away(chat)

    def check() -> None:
        if engine.stuck:
            raise TimeoutError("the job's time is over")

    monkeypatch.setattr(runner, "_GLANCE", 0.01)
    with RolloutRunner(engine, check) as rollouts:
        player = _player(rollouts, chat)
        for waited_for in (
            lambda: list(rollouts.play([RolloutRequest(coin, coins(3))], player)),
            lambda: rollouts.load(Weights(1, tensors=lambda: iter(()))),
        ):
            with pytest.raises(TimeoutError, match="the job's time"):
                waited_for()
            assert engine.stuck == 0
            assert rollouts.run(_others()) == 0
        assert player._contexts == {}
        assert _free(coin)
    assert engine.closed == 1


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Ctrl-C is KeyboardInterrupt, whatever the process was started with."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def _ctrl_c(when: Callable[[], bool]) -> Generator[None]:
    """Ctrl-C in the main thread as soon as that is so."""
    main = threading.main_thread().ident
    assert main is not None

    def watch() -> None:
        eventually(when)
        signal.pthread_kill(main, signal.SIGINT)

    watcher = threading.Thread(target=watch)
    watcher.start()
    yield
    watcher.join()


def test_an_engine_that_is_gone_ends_the_play_with_its_own_words(chat: Chat, coin: OpenEnvironment) -> None:
    class Dying(Deaf):
        async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
            if self.stuck == 2:
                raise EngineGone("it is no more")
            return await super().generate(ids, sampling)

    engine = Dying(chat)
    with RolloutRunner(engine) as rollouts:
        with pytest.raises(EngineGone, match="it is no more"):
            list(rollouts.play([RolloutRequest(coin, coins(3))], _player(rollouts, chat)))
        assert rollouts.run(_others()) == 0
        assert engine.stuck == 0
        assert _free(coin)


def test_weights_reach_the_engine_while_others_play(chat: Chat, coin: OpenEnvironment, talking: RolloutRunner) -> None:
    player = _player(talking, chat)
    episodes = talking.play([RolloutRequest(coin, coins(16, samples=8))], player)
    first = next(episodes)
    talking.load(Weights(5, tensors=lambda: iter(())))
    talking.sleep()
    versions = [[turn.reply.sample.version for turn in e.turns if turn.reply.sample] for e in (first, *episodes)]
    assert talking.engine.version == 5
    assert all(line == sorted(line) for line in versions)
    assert len(versions) == 128


def test_what_a_coroutine_raises_reaches_the_caller(talking: RolloutRunner) -> None:
    async def fail() -> None:
        raise KeyError("no such thing")

    with pytest.raises(KeyError, match="no such thing"):
        talking.run(fail())


def test_closing_closes_the_engine_once_and_ends_what_still_runs(chat: Chat) -> None:
    before, engine = set(threading.enumerate()), Deaf(chat)
    rollouts = RolloutRunner(engine)

    async def leave_behind() -> asyncio.Task[Any]:
        return asyncio.create_task(asyncio.Event().wait())

    left = rollouts.run(leave_behind())
    rollouts.close()
    assert left.cancelled()
    rollouts.close()
    assert engine.closed == 1
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError, match="This rollout runner is closed"):
        rollouts.run(asyncio.sleep(0))


@pytest.mark.long
def test_hundreds_of_episodes_leave_nothing_behind(new_model: Callable[..., Any], chat: Chat) -> None:
    process, sizes = psutil.Process(), list[tuple[int, int, int]]()
    jobs = [EpisodeSpec(f"coin/train/{i % 16}", i // 16, seed=1) for i in range(400)]
    engine = transformers_engine(new_model().eval(), end_id=chat.end_id, keep=4096)
    others = [thing for thing in gc.get_objects() if type(thing) is Episode]  # of other tests, kept until the end
    with open_world(slots=32, instructions=None) as world, RolloutRunner(engine) as rollouts:
        player = EnginePolicy(engine, chat, TokenBudget(turn=6, context=300), name="tiny")
        for version, start in enumerate(range(0, len(jobs), 100)):
            episodes = list(rollouts.play([RolloutRequest(world, jobs[start : start + 100])], player))
            assert len(episodes) == 100
            assert player._contexts == {}
            del episodes
            gc.collect()
            assert sum(type(thing) is Episode for thing in gc.get_objects()) == len(others)
            tasks = rollouts.run(_others())
            rows = rollouts.engine._core._rows  # type: ignore[attr-defined]
            kept = sum(row.read for row in rows._idle)
            sizes.append((process.num_fds(), tasks, kept))
            rollouts.load(Weights(version + 1, tensors=lambda: iter(())))
    descriptors, tasks, kept = zip(*sizes, strict=True)
    assert max(descriptors[2:]) <= descriptors[1]
    assert set(tasks) == {0}
    assert 0 < max(kept) <= 4096 + 32 * 300  # what has just left is dropped with the next step
