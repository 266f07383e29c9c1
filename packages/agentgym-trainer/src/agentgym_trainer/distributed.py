"""One process among those of the run: what it does of the work, and what all come to know.

What is sent is small (figures, decisions, errors); tensors go through accelerate. Called in the main thread only, by
all processes alike: whoever waits for one that doesn't come waits until the launcher ends them all.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

_T = TypeVar("_T")
_NOTICE = "agentgym/notice"
_logger = logging.getLogger(__name__)


class RankFailed(RuntimeError):
    """Another process of the run failed with an error that can't be sent."""


class Ranks:
    """The processes that the launcher started; one where there was none."""

    def __init__(self) -> None:
        state = PartialState()
        self.index: int = state.process_index
        self.count: int = state.num_processes
        self.first_here: int = state.process_index - state.local_process_index
        """Index of the first of those on this machine."""

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.index == 0

    def share(self, items: Sequence[_T]) -> list[_T]:
        """Those of `items` that are this process's to do."""
        return list(items[self.index :: self.count])

    def gather(self, items: Sequence[_T]) -> list[_T]:
        """The items of all processes, one process's after the other's."""
        gathered: Any = gather_object(list(items))
        return gathered

    def gather_to_main(self, items: Sequence[_T]) -> list[_T]:
        """The items of all processes for the one that leads; the others get none. For what is too large for all."""
        if self.count == 1:
            return list(items)
        parts: list[Any] | None = [None] * self.count if self.is_main else None
        dist.gather_object(list(items), parts)
        return [item for part in parts or () for item in part]

    def broadcast(self, value: _T) -> _T:
        """What the process that leads has for `value`."""
        told: Any = broadcast_object_list([value])
        return told[0]

    def any(self, wish: bool) -> bool:
        """Whether it holds in one process at least."""
        return any(self.gather([wish]))

    def notice(self, number: int) -> None:
        """Have all processes find this number with `noticed`, without any of them waiting; the last one stays. Unlike
        the rest this may be called in any thread.
        """
        try:
            _store().set(_NOTICE, str(number))
        except RuntimeError as error:  # it went with the launcher, which may have got the same signal
            _logger.warning("The other processes can't be told of signal %d: %s", number, error)

    def noticed(self) -> int | None:
        """The number that a process gave to `notice`; None before one did."""
        try:
            return int(_store().get(_NOTICE)) if _store().check([_NOTICE]) else None
        except RuntimeError:  # nobody can be told any more; what ended the launcher ends this process, too
            return None

    @contextmanager
    def errors_together(self) -> Generator[None]:
        """Wait, after each process's part of something, for the others. What one raises, all raise; its own first.

        Nothing in the part may wait for other processes.
        """
        error: Exception | None = None
        try:
            yield
        except Exception as raised:  # noqa: BLE001 - raised again below, once the others know
            error = raised
        errors = [pickle.loads(sent) for sent in self.gather([] if error is None else [_sendable(error)])]
        if error is not None:
            raise error
        if errors:
            raise errors[0]


def _store() -> Any:
    """What the processes found each other by."""
    return dist.distributed_c10d._get_default_store()  # pyright: ignore[reportPrivateUsage]


def _sendable(error: Exception) -> bytes:
    """The error pickled, or one that says the same."""
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:  # noqa: BLE001 - whatever an error's own way of being pickled raises
        return pickle.dumps(RankFailed(f"{type(error).__name__}: {error}"))
    return pickled
