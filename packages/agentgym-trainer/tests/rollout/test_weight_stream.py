"""Tests of weights that all processes gather in their main threads while engines load them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agentgym_trainer.engines.base import Completion, EngineUsage, SamplingParams, Weights
from agentgym_trainer.engines.batching import Batching
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.rollout import weight_stream
from agentgym_trainer.rollout.runner import RolloutRunner
from counting_core import CountingCore, with_and_without_thread
from patience import PATIENCE, eventually
from torch import Tensor

NAMES = [f"layer{number}" for number in range(20)]


class Gathering:
    """Weights whose passes note which tensors were gathered, in which threads."""

    def __init__(self) -> None:
        self.gathered: list[str] = []
        self.threads: set[threading.Thread] = set()
        self.weights = Weights(3, self._tensors, lasting=False, collective=True)

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        for number, name in enumerate(NAMES):
            self.gathered.append(name)
            self.threads.add(threading.current_thread())
            yield name, torch.tensor(float(number))

    def assert_complete(self) -> None:
        """Assert that the main thread has gathered everything once, as other processes need."""
        assert self.gathered == NAMES
        assert self.threads == {threading.main_thread()}


class Reader(ScriptedEngine):
    """An engine that reads weights in a thread of its own."""

    def __init__(self, read: Callable[[Iterator[tuple[str, Tensor]]], Any]) -> None:
        super().__init__(lambda ids: ids, end_id=0)
        self._read = read

    async def load(self, weights: Weights) -> None:
        await asyncio.to_thread(self._read, weights.tensors())
        await super().load(weights)


def test_engine_reads_what_the_main_thread_gathers() -> None:
    source, read = Gathering(), dict[str, float]()
    with RolloutRunner(Reader(lambda tensors: read.update((name, t.item()) for name, t in tensors))) as rollouts:
        rollouts.load(source.weights)
        assert rollouts.engine.version == 3
    assert list(read) == NAMES
    assert list(read.values()) == list(range(20))
    source.assert_complete()


def test_only_a_few_tensors_are_on_their_way() -> None:
    source, ahead = Gathering(), list[int]()

    def read(tensors: Iterator[tuple[str, Tensor]]) -> None:
        for number, _ in enumerate(tensors, 1):
            ahead.append(len(source.gathered) - number)

    with RolloutRunner(Reader(read)) as rollouts:
        rollouts.load(source.weights)
    # Those handed over, and one that was gathered and waits.
    assert max(ahead) <= weight_stream._AHEAD + 1
    source.assert_complete()


def test_nothing_is_gathered_before_the_engine_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then, it may read the last weights from the memory to which these are copied."""
    source, gathered, looks = Gathering(), list[int](), threading.Semaphore(0)

    def read(tensors: Iterator[tuple[str, Tensor]]) -> None:
        for _ in range(3):
            assert looks.acquire(timeout=PATIENCE)
        gathered.append(len(source.gathered))
        gathered.append(len(list(tensors)))

    monkeypatch.setattr(weight_stream, "_GLANCE", 0.01)
    with RolloutRunner(Reader(read), looks.release) as rollouts:
        rollouts.load(source.weights)
    assert gathered == [0, len(NAMES)]


@pytest.mark.parametrize("before_failing", [0, 1, 7])
def test_all_tensors_are_gathered_though_the_engine_fails(before_failing: int) -> None:
    source = Gathering()

    def read(tensors: Iterator[tuple[str, Tensor]]) -> None:
        for _ in range(before_failing):
            next(tensors)
        raise OSError("the device is lost")

    with RolloutRunner(Reader(read)) as rollouts, pytest.raises(OSError, match="the device is lost"):
        rollouts.load(source.weights)
    source.assert_complete()


def test_all_tensors_are_gathered_though_the_engine_reads_none() -> None:
    source = Gathering()
    with RolloutRunner(ScriptedEngine(lambda ids: ids, end_id=0)) as rollouts:
        rollouts.load(source.weights)
    source.assert_complete()


def test_all_tensors_are_gathered_though_the_runner_is_closed() -> None:
    source, rollouts = Gathering(), RolloutRunner(ScriptedEngine(lambda ids: ids, end_id=0))
    rollouts.close()
    with pytest.raises(RuntimeError, match="This rollout runner is closed"):
        rollouts.load(source.weights)
    source.assert_complete()


def test_stop_during_a_load_gathers_everything_and_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    source, errors = Gathering(), list[BaseException]()
    reading, stopped = threading.Event(), threading.Event()

    def read(tensors: Iterator[tuple[str, Tensor]]) -> None:
        next(tensors)
        reading.set()
        assert stopped.wait(PATIENCE)
        try:
            list(tensors)
        except RuntimeError as error:
            errors.append(error)

    def check() -> None:
        if reading.is_set():
            stopped.set()
            raise TimeoutError("the job's time is over")

    monkeypatch.setattr(weight_stream, "_GLANCE", 0.01)
    with RolloutRunner(Reader(read), check) as rollouts, pytest.raises(TimeoutError, match="the job's time"):
        rollouts.load(source.weights)
    eventually(lambda: errors)
    assert [str(error) for error in errors] == ["The weights didn't all reach the engine."]
    source.assert_complete()


def test_error_while_gathering_reaches_both_threads() -> None:
    errors, reading = list[BaseException](), threading.Event()

    def failing() -> Iterator[tuple[str, Tensor]]:
        yield "one", torch.ones(1)
        assert reading.wait(PATIENCE)
        raise ArithmeticError("no more memory")

    def read(tensors: Iterator[tuple[str, Tensor]]) -> None:
        next(tensors)
        reading.set()
        try:
            list(tensors)
        except RuntimeError as error:
            errors.append(error)

    with RolloutRunner(Reader(read)) as rollouts, pytest.raises(ArithmeticError, match="no more memory"):
        rollouts.load(Weights(1, failing, lasting=False, collective=True))
    eventually(lambda: errors)
    assert [repr(error.__cause__) for error in errors] == ["ArithmeticError('no more memory')"]


def test_gpu_memory_of_a_tensor_outlives_its_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gathering and reading use different CUDA streams: each waits for the other where the tensor changes hands."""
    log: list[tuple[str, bool]] = []

    def note(event: str) -> None:
        log.append((event, threading.current_thread() is threading.main_thread()))

    stream = SimpleNamespace(synchronize=lambda: note("gathered"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    tensor: Any = SimpleNamespace(is_cuda=True, device="cuda:1", record_stream=lambda _: note("reading"))
    with RolloutRunner(Reader(lambda tensors: [note("read") for _ in tensors])) as rollouts:
        rollouts.load(Weights(1, lambda: iter([("one", tensor)]), lasting=False, collective=True))
    assert log == [("gathered", True), ("reading", False), ("read", False)]


class LoadingCore(CountingCore):
    """A core that reads all weights, except in the first load of all cores that share a log."""

    def load(self, weights: Weights) -> None:
        super().load(weights)
        tensors = weights.tensors()
        if self.log.count("load 3") == 1:
            for _ in range(5):
                next(tensors)
            raise OSError("dropped them")
        self.log.append([name for name, _ in tensors])


@with_and_without_thread
def test_restarted_core_gets_the_weights_that_were_gathered_once(in_thread: bool) -> None:
    source, log = Gathering(), list[Any]()
    fails = iter([lambda _: False, lambda step: step == 1])

    def make(usage: EngineUsage) -> LoadingCore:
        return LoadingCore(usage, log, fails_at=next(fails, lambda _: False))

    async def generate(ids: Sequence[int]) -> Completion:
        return await rollouts.engine.generate(ids, SamplingParams(max_tokens=1))

    with RolloutRunner(Batching(make, in_thread=in_thread)) as rollouts:
        rollouts.load(source.weights)
        assert log == ["load 3", "close", "load 3", NAMES]
        source.assert_complete()
        rollouts.engine._death = None  # type: ignore[attr-defined]
        # Long after the load, its weights can only come from the copy.
        assert rollouts.run(generate([5, 6])).version == 3
    assert log[4:] == [[2], "close", "load 3", NAMES, [2], "close"]
