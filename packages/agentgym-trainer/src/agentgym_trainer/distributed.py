"""Communication between the processes of a run: sharing work, gathering, broadcasting and raising errors together.

Messages are small (metrics, decisions, errors) or episodes; the model's tensors go through accelerate. All processes
must make the same calls, from their main threads: if one doesn't, the others block until the launcher ends them all.
Messages don't go through NCCL, whose kernels would keep the GPU busy while one process waits for another's episodes,
and whose short timeout ends a run in which a machine has died.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor

_T = TypeVar("_T")
_NOTICE = "agentgym/notice"
_OF_ALL = "raised_by_all_processes"
"""Attribute of errors that all processes have raised together."""
PATIENCE = timedelta(days=1)
"""How long a process waits for a message: as long as the slowest environments may take. The launcher detects dead
processes."""
_logger = logging.getLogger(__name__)


class RankFailed(RuntimeError):
    """Another process of the run failed with an error that can't be pickled."""


class Ranks:
    """The processes that the launcher started; a single one without a launcher."""

    def __init__(self) -> None:
        state = PartialState()
        self.index: int = state.process_index
        self.count: int = state.num_processes
        self.first_here: int = state.process_index - state.local_process_index
        """Index of the first process on this machine."""

    @property
    def is_main(self) -> bool:
        """Whether this is the main process, which writes files and prints."""
        return self.index == 0

    def share(self, items: Sequence[_T]) -> list[_T]:
        """Return this process's share of `items`."""
        return list(items[self.index :: self.count])

    def gather(self, items: Sequence[_T]) -> list[_T]:
        """Concatenate the items of all processes, in the order of processes."""
        if self.count == 1:
            return list(items)
        parts: list[Any] = [None] * self.count
        dist.all_gather_object(parts, list(items), group=_messages())
        return [item for part in parts for item in part]

    def gather_to_main(self, items: Sequence[_T]) -> list[_T]:
        """Concatenate the items of all processes on the main process; others get an empty list. For large items."""
        if self.count == 1:
            return list(items)
        parts: list[Any] | None = [None] * self.count if self.is_main else None
        dist.gather_object(list(items), parts, group=_messages())
        return [item for part in parts or () for item in part]

    def exchange(self, items: Sequence[_T]) -> list[_T]:
        """Send `items[i]` to process i, for each process; return what all of them sent to this one, in their order."""
        if self.count == 1:
            return list(items)
        sent = [pickle.dumps(item) for item in items]
        sizes = self.gather([[len(part) for part in sent]])
        incoming = [row[self.index] for row in sizes]
        received = torch.empty(sum(incoming), dtype=torch.uint8)
        outgoing = torch.frombuffer(bytearray(b"".join(sent)), dtype=torch.uint8)
        dist.all_to_all_single(received, outgoing, incoming, sizes[self.index], group=_messages())
        return [pickle.loads(part.numpy().tobytes()) for part in received.split(incoming)]

    def broadcast(self, value: _T) -> _T:
        """Return the main process's `value` on all processes."""
        values = [value]
        if self.count > 1:
            dist.broadcast_object_list(values, group=_messages())
        return values[0]

    def any(self, condition: bool) -> bool:
        """Whether the condition holds on at least one process."""
        return any(self.gather([condition]))

    def notice(self, number: int) -> None:
        """Publish a number that all processes can read with `noticed`; the last one counts.

        Unlike the other methods it doesn't block, and may be called from any thread and process.
        """
        try:
            _store().set(_NOTICE, str(number))
        except RuntimeError as error:  # the store ended with the launcher, which may have received the same signal
            _logger.warning("Signal %d could not be passed on to the other processes: %s", number, error)

    def noticed(self) -> int | None:
        """Return the number that a process gave to `notice`; None before that."""
        try:
            return int(_store().get(_NOTICE)) if _store().check([_NOTICE]) else None
        except RuntimeError:  # the store ended with the launcher, and this process will be ended too
            return None

    @contextmanager
    def errors_together(self) -> Generator[None]:
        """Wait for all processes at the end of the context. If one of them raised, all raise; each its own error first.

        Nothing in the context may wait for other processes, unless all do so whatever fails, as in
        `RolloutRunner.load`, or with `total`.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as raised:  # raised again below, after the others have received it
            if self.all_raised(raised):  # by `total`: the others don't wait any more
                raise
            error = raised
        sent = self.gather([] if error is None else [_sendable(error)])
        if error is not None:
            raise _of_all(error)
        _raise_first(sent)

    def total(self, value: Tensor) -> Tensor:
        """Sum a small tensor over all processes, through host memory.

        In the context of `errors_together`, this raises the error of another process that has left the context.
        """
        sent = self.gather([value.detach().cpu()])
        _raise_first(sent)
        return torch.stack(sent).sum(0, dtype=value.dtype).to(value.device)

    def all_raised(self, error: Exception) -> bool:
        """Whether all processes have raised this error, or their own ones, together: they can still work together."""
        return self.count == 1 or hasattr(error, _OF_ALL)


def _raise_first(sent: Sequence[Any]) -> None:
    """Raise the first error among the messages of all processes, if there is one."""
    if error := next((pickle.loads(each) for each in sent if isinstance(each, bytes)), None):
        raise _of_all(error)


def _of_all(error: Exception) -> Exception:
    """Mark an error that all processes raise."""
    setattr(error, _OF_ALL, True)
    return error


def _messages() -> Any:
    """Return the process group of messages: the default one on CPUs, otherwise one over gloo."""
    return None if dist.get_backend() == "gloo" else _gloo_group(dist.group.WORLD)


@cache
def _gloo_group(world: Any) -> Any:
    """Create the group once for each default group `world`. All processes must call this."""
    return dist.new_group(timeout=PATIENCE, backend="gloo")


def thread_group(thread: str) -> Any:
    """Return a process group for the messages and CPU tensors of a thread beside the main one, by its name.

    All processes must call this, from their main threads.
    """
    return _thread_group(thread, dist.group.WORLD)


@cache
def _thread_group(thread: str, world: Any) -> Any:
    return dist.new_group(timeout=PATIENCE, backend="gloo", group_desc=thread)


def _store() -> Any:
    """Return the key-value store of the process group."""
    return dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]


def _sendable(error: Exception) -> bytes:
    """Pickle the error, or a `RankFailed` with its message if it can't be pickled."""
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001 - custom pickling code may raise anything
        return pickle.dumps(RankFailed(f"{type(error).__name__}: {error}"))
    return pickled
