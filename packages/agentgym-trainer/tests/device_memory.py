"""Which tensors a run holds in which phase, in order, for tests of the order in which a run takes a device's memory.

A run that loads, shards, copies or starts an engine in the wrong order needs more memory than it keeps. On a CPU this
goes unnoticed, so `accounted` records the bytes of all tensors before and after each phase. Tensors that only autograd
holds (activations), and what a phase frees before it ends, are not counted; nor are tensors without data (`meta`).
"""

from __future__ import annotations

import functools
import gc
import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

import torch
from accelerate import PartialState
from agentgym_trainer.engines.base import Engine
from agentgym_trainer.engines.factory import ENGINES, EngineContext
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor
from train_processes import train

PHASES = {
    "load": "agentgym_trainer.trainers.rl.load_policy",
    "shard": "agentgym_trainer.learner.learner.Learner.__init__",
    "engine": "agentgym_trainer.trainers.rl.open_engine",
    "update": "agentgym_trainer.learner.learner.Learner.update",
}
"""The functions that begin and end a phase of `trainers.rl.train`."""
OWN_ENGINE = "device_memory:own_engine"
"""For `--engine.kind`: an engine with weights of its own, as vLLM has."""


@dataclass(frozen=True, slots=True)
class PhaseEvent:
    """A phase of a run in one process."""

    phase: str
    rank: int
    before: int
    """Bytes of this process's tensors when the phase began, without those from before the run."""
    after: int
    """Bytes when it ended."""


@dataclass(frozen=True, slots=True)
class MemoryLog:
    """The phases of a run, in the order in which they ended."""

    events: list[PhaseEvent] = field(default_factory=list)

    @property
    def order(self) -> list[str]:
        """The phases, without repetitions of the last one."""
        phases = [event.phase for event in self.events]
        return [phase for n, phase in enumerate(phases) if phases[n - 1 : n] != [phase]]

    @property
    def peak(self) -> int:
        """The most bytes at the beginning or end of a phase, over all ranks."""
        return max(max(event.before, event.after) for event in self.events)

    def since(self, phase: str) -> MemoryLog:
        """Return the events from the first one of a phase on, such as without those of a warm start."""
        return MemoryLog(self.events[self.events.index(self.first(phase)) :])

    def first(self, phase: str) -> PhaseEvent:
        """Return the first event of a phase."""
        return next(event for event in self.events if event.phase == phase)


@contextmanager
def accounted(phases: Mapping[str, str] = PHASES) -> Generator[MemoryLog]:
    """Record the phases of runs of this process, which are calls of the functions with these names."""
    exempt_existing()
    log, already = MemoryLog(), live_bytes()

    def recorded(phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            before = live_bytes() - already
            result = function(*args, **options)
            log.events.append(PhaseEvent(phase, PartialState().process_index, before, live_bytes() - already))
            return result

        return call

    with ExitStack() as stack:
        for phase, name in phases.items():
            owner, _, attribute = name.rpartition(".")
            function = recorded(phase, getattr(resolve_name(owner), attribute))
            stack.enter_context(patch.object(resolve_name(owner), attribute, function))
        yield log


def train_sharded(folder: Path, arguments: Sequence[str]) -> None:
    """Run `train` as one of several processes that share a model, and write this process's phases to `folder`."""
    rank = int(os.environ["RANK"])
    with accounted() as log, suppress(SystemExit):
        train("sharded", "none", arguments)
    folder.joinpath(f"{rank}.json").write_text(json.dumps([asdict(event) for event in log.events]), encoding="utf-8")


def read_log(folder: Path, rank: int) -> MemoryLog:
    """Return the phases that `train_sharded` wrote in a process."""
    events = json.loads(folder.joinpath(f"{rank}.json").read_text(encoding="utf-8"))
    return MemoryLog([PhaseEvent(**event) for event in events])


def exempt_existing() -> None:
    """Make `live_bytes` count what is created from here on. It would scan the millions of objects of other tests."""
    gc.collect()
    gc.freeze()


def live_bytes(*, collect: bool = True) -> int:
    """Return the bytes of all tensors of this process that Python's garbage collector tracks, each storage once.

    Args:
        collect: Whether to free unreachable tensors first. Otherwise cycles of them count: they are on the device, too.
    """
    if collect:
        gc.collect()
    storages: dict[int, int] = {}
    for tensor in gc.get_objects():
        if issubclass(type(tensor), torch.Tensor) and not (isinstance(tensor, FakeTensor) or tensor.is_meta):
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            storages[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
    return sum(storages.values())


def own_engine(context: EngineContext) -> Engine:
    """Open the engine `transformers` with a copy of the weights."""
    return ENGINES["transformers"](replace(context, own_copy=True))
