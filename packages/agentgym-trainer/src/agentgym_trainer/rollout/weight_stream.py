"""Hands weights from the main thread, which gathers them with all processes, to the thread of an engine.

Collectives stay in the main thread, in the same order on all processes, whatever happens to an engine. Only a few
tensors are on their way at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue
from threading import Event, Semaphore

import torch
from torch import Tensor

from agentgym_trainer.engines.base import Weights
from agentgym_trainer.models.machine_copy import MachineCopy

_AHEAD = 2  # tensors that were gathered and not yet loaded
_GLANCE = 1.0  # seconds between looks at whether the engine still loads


class WeightStream:
    """One pass over weights that all processes make. The main thread feeds it, the engine's reads it."""

    def __init__(self, weights: Weights, copy: MachineCopy) -> None:
        """Start nothing yet.

        Args:
            weights: The weights.
            copy: The copy that the processes of this machine share. The pass writes it if one of their engines needs
                it.
        """
        self._source = copy.written(weights)
        self._started = Event()
        self._fed: SimpleQueue[tuple[str, Tensor] | None] = SimpleQueue()
        self._free = Semaphore(_AHEAD)
        self._failure: BaseException | None = None
        self.weights = replace(weights, tensors=lambda: self, collective=False, machine_copy=copy)
        """The weights for the engine."""

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        return self

    def __next__(self) -> tuple[str, Tensor]:
        """Wait for the next tensor.

        Raises:
            RuntimeError: when the main thread stopped feeding before all tensors were read.
        """
        self._started.set()
        fed = self._fed.get()
        if fed is None:
            self._fed.put(None)  # for a further call
            if self._failure is not None:
                raise RuntimeError("The weights didn't all reach the engine.") from self._failure
            raise StopIteration
        self._free.release()
        if fed[1].is_cuda:
            # Its memory is not used again before the kernels of this thread have read it.
            fed[1].record_stream(torch.cuda.current_stream(fed[1].device))
        return fed

    @contextmanager
    def gathering(self) -> Generator[None]:
        """On exit, gather what wasn't fed, since the other processes wait for it."""
        try:
            yield
        finally:
            for _ in self._source:
                pass

    def feed(self, over: Callable[[], bool], check: Callable[[], object]) -> None:
        """Gather all tensors and hand them to the engine, once it starts to read.

        Args:
            over: Whether the engine has stopped reading; the remaining tensors are then dropped.
            check: Called while the engine is slow; an exception that it raises ends the reading and is raised.
        """
        try:
            self._wait(self._started.wait, over, check)
            for fed in self._source:
                if not self._wait(self._free.acquire, over, check):
                    self._failure = RuntimeError("The engine had ended its load before.")
                    continue
                if fed[1].is_cuda:
                    torch.cuda.current_stream(fed[1].device).synchronize()
                self._fed.put(fed)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._fed.put(None)

    def _wait(self, until: Callable[..., bool], over: Callable[[], bool], check: Callable[[], object]) -> bool:
        """Wait for the engine; return whether it still reads."""
        while not over():
            if until(timeout=_GLANCE):
                return True
            check()
        return False
