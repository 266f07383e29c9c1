"""`EnvPool`: many environments in slots, stepped in any order, with results returned in order of completion.

The thread or coroutine that waits for a result also enforces its deadline. An environment that hangs is replaced
without affecting the others. This module depends neither on policies nor on how a slot runs its environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentgym_envs.core.tasks import Split
from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool.backends import open_slots, slot_specs
from agentgym_envs.pool.calls import Ask, Call, Reset, Result, Step, WorldSpec

_DEFAULT_DEADLINE = 120.0  # seconds
_CLOSE_TIMEOUT = 10.0  # seconds
_CHECK_INTERVAL = 1.0  # seconds between two checks of the deadlines in `recv`, even under a constant flow of results


class SlotBusy(RuntimeError):
    """Raised when a slot gets a call before the result of its previous call was received."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """A pending call."""

    slot: int
    seconds: float
    """Time allowed for the call."""
    awaited: bool
    """Whether a coroutine awaits the result; otherwise `recv` returns it."""
    expires: float | None = None
    """Deadline on the monotonic clock, set once the slot has the call. Expiring a call earlier would let it reach the
    slot's next environment."""
    future: asyncio.Future[Result] | None = None
    """Future that the coroutine awaits, once it does."""
    result: Result | None = None
    """Set exactly once, by the slot or by `EnvPool._expire`."""

    def overdue(self, now: float) -> bool:
        """Return whether the deadline passed without a result."""
        return self.result is None and self.expires is not None and self.expires <= now


class EnvPool:
    """A pool of environments, one per slot.

    Example: `with EnvPool("agentgym/BabyAI-v0", 8) as pool: pool.reset(0); results = pool.recv()`.

    There are two interfaces, which may be mixed on different slots: `send`, `reset`, `ask` and `recv` for loops;
    `await step`, `await start` and `await inquire` for coroutines. A slot takes one call at a time and refuses the
    next one until the result was received, so at most one result per slot is queued. Methods are thread-safe.

    After an `EnvFault` (a crash, a killed process, a missed deadline) the slot's next `reset` creates a fresh
    environment. Cancelling a coroutine does not cancel its call: the slot stays busy until the call is answered,
    overdue, or replaced. After Ctrl-C in `recv`, or an exception that a signal handler of the caller raised there,
    `replace` followed by `recv` frees any slot.
    """

    # A slot is busy while its ticket is in `_tickets`. Ctrl-C may arrive between any two instructions, so each step
    # below leaves the slot either busy with an answer to come, or free.

    def __init__(
        self,
        spec: str | WorldSpec | Sequence[str | WorldSpec],
        slots: int | None = None,
        backend: str | None = None,
        *,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        deadline: float = _DEFAULT_DEADLINE,
    ) -> None:
        """Create the slots. Each environment is created by the first call to its slot.

        Args:
            spec: One environment for all slots, or a sequence with one per slot.
            slots: Number of slots; optional if `spec` is a sequence.
            backend: `inline`, `thread`, `process`, or the URL of an agentgym-envs server (several separated by commas).
                By default chosen per slot from the environment's `step_seconds` and `step_waits`.
            options: Environment options in addition to those of `spec`, for all slots or one mapping per slot.
            deadline: Default time limit of a call in seconds. `inline` calls can't be interrupted.

        Raises:
            ValueError: If an environment or backend is unknown, the counts don't match, or options can't be sent to a
                process. Errors while creating an environment are in the result of its first call instead.
            gymnasium.error.DependencyNotInstalled: If choosing a backend requires an environment whose extra is
                missing.
        """
        self._deadline = _checked(deadline)
        self.specs = slot_specs(spec, slots, options)
        self._slots, self._shared = open_slots(self.specs, backend)
        self._tickets: dict[int, _Ticket] = {}
        self._answered: deque[_Ticket] = deque()  # for `recv`
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._next_check = 0.0
        self._closed = False
        self._finalizer = weakref.finalize(self, self._shared.close)

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.specs)

    # Interface for loops: `recv` returns the results.

    def submit(self, slot: int, call: Call, *, deadline: float | None = None) -> None:
        """Submit `call` to `slot`. `send`, `reset` and `ask` are shorthands for this method.

        Raises:
            SlotBusy: If the slot's last result was not received yet.
            IndexError: If the slot does not exist.
            ValueError: If the deadline is not above 0.
            RuntimeError: If the pool is closed.
        """
        self._submit(slot, call, deadline)

    def send(self, slot: int, action: str, *, deadline: float | None = None) -> None:
        """Submit a step with `action` to `slot`. Raises the errors of `submit`."""
        self._submit(slot, Step(action), deadline)

    def reset(
        self,
        slot: int,
        task: str | None = None,
        *,
        split: Split = "train",
        seed: int | None = None,
        deadline: float | None = None,
    ) -> None:
        """Submit a reset to `task`, or to a task drawn from `split`. Raises the errors of `submit`."""
        self._submit(slot, Reset(task, split, seed), deadline)

    def ask(self, slot: int, name: str, *arguments: Any, deadline: float | None = None) -> None:
        """Request the environment's attribute or method `name` (`oracle`, `render`). Raises the errors of `submit`."""
        self._submit(slot, Ask(name, arguments), deadline)

    def recv(self, timeout: float | None = None) -> list[Result]:
        """Wait for at least one result and return all available results in order of completion.

        Args:
            timeout: Seconds after which an empty list may be returned; None waits as long as the deadlines allow.

        Raises:
            RuntimeError: If no call is pending, so that it would wait forever.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            now = time.monotonic()
            wait = 0.0 if self._answered and now < self._next_check else self._expire_overdue(now, until)
            with self._lock:
                if not self._answered and wait > 0:
                    self._arrived.wait(wait)
                results = self._take_answered()
            if results or now >= until:
                return results

    # Interface for coroutines: each awaits its own result.

    async def call(self, slot: int, call: Call, *, deadline: float | None = None) -> Result:
        """Carry out `call` in `slot`. As with `recv`, the environment's exceptions are in the result's `error`.

        Raises:
            SlotBusy, IndexError, RuntimeError: As in `send`.
        """
        ticket = self._submit(slot, call, deadline, awaited=True)
        await self._wait(ticket)
        assert ticket.result is not None, "a ticket leaves its slot with a result"
        return ticket.result

    async def step(self, slot: int, action: str, *, deadline: float | None = None) -> Result:
        """Step the environment in `slot` with `action`.

        Raises:
            EnvFault: If the environment failed or the deadline passed.
            SlotBusy, IndexError, RuntimeError: As in `send`.
            Exception: Any other error that the environment raises, such as ResetNeeded.
        """
        return await self._checked_call(slot, Step(action), deadline)

    async def start(
        self,
        slot: int,
        task: str | None = None,
        *,
        split: Split = "train",
        seed: int | None = None,
        deadline: float | None = None,
    ) -> Result:
        """Reset the environment in `slot` to `task`, or to a task drawn from `split`. Raises the errors of `step`, and
        KeyError if the task does not exist.
        """
        return await self._checked_call(slot, Reset(task, split, seed), deadline)

    async def inquire(self, slot: int, name: str, *arguments: Any, deadline: float | None = None) -> Any:
        """Return the environment's attribute or method result `name`. Raises the errors of `step`."""
        return (await self._checked_call(slot, Ask(name, arguments), deadline)).value

    # Common to both interfaces.

    def replace(self, slot: int) -> None:
        """Discard the environment in `slot`, even if it hangs; the slot's next `reset` creates a new one. A pending
        call ends with an `EnvFault`.
        """
        if self._closed or not 0 <= slot < len(self.specs):
            raise self._usage_error(slot)
        ticket = self._tickets.get(slot)
        if ticket is None or not self._expire(ticket, "was replaced before it answered"):
            self._slots[slot].replace()

    def close(self) -> None:
        """Close all environments and free their resources, waiting up to 10 seconds. May be called repeatedly. Pending
        calls end with an `EnvFault`.
        """
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            slot.close()
        until = time.monotonic() + _CLOSE_TIMEOUT
        late = [slot for slot in self._slots if not slot.join(max(0.0, until - time.monotonic()))]
        for ticket in list(self._tickets.values()):
            self._expire(ticket, "was closed before it answered")
        for slot in late:
            slot.replace()
            slot.join(_CHECK_INTERVAL)
        self._finalizer()

    def _submit(self, slot: int, call: Call, deadline: float | None, *, awaited: bool = False) -> _Ticket:
        if self._closed or not 0 <= slot < len(self.specs):
            raise self._usage_error(slot)
        seconds = self._deadline if deadline is None else _checked(deadline)
        ticket = _Ticket(slot, seconds, awaited)
        try:
            while (before := self._tickets.setdefault(slot, ticket)) is not ticket:
                if not (before.awaited and before.overdue(time.monotonic())):
                    raise SlotBusy(f"Slot {slot} has a call whose result was not received yet.")
                self._expire(before)  # its coroutine was cancelled, and the event loop may have ended
            self._slots[slot].submit(call, partial(self._on_result, ticket))
            ticket.expires = time.monotonic() + seconds
        except BaseException:
            if self._tickets.get(slot) is ticket:  # Ctrl-C during a step, which can't be resumed
                self._slots[slot].replace()
                del self._tickets[slot]
            raise
        return ticket

    def _usage_error(self, slot: int) -> Exception:
        if self._closed:
            return RuntimeError("This pool is closed; create a new one.")
        return IndexError(f"There is no slot {slot}; this pool has slots 0 to {len(self.specs) - 1}.")

    def _expire_overdue(self, now: float, until: float) -> float:
        """Expire overdue calls and return for how many seconds `recv` may wait."""
        self._next_check = now + _CHECK_INTERVAL
        pending = [ticket for ticket in list(self._tickets.values()) if not ticket.awaited]
        if not pending and until == math.inf:
            raise RuntimeError("No call is pending that recv() could wait for; call send() or reset() first.")
        for ticket in pending:
            if ticket.overdue(now):
                self._expire(ticket)
        deadlines = (ticket.expires for ticket in pending if ticket.result is None and ticket.expires is not None)
        return min(until, self._next_check, *deadlines) - now

    def _take_answered(self) -> list[Result]:
        """Return the queued results for `recv` and free their slots."""
        results: list[Result] = []
        while self._answered:
            ticket = self._answered[0]
            if self._tickets.get(ticket.slot) is ticket and ticket.result is not None:  # else Ctrl-C came first
                del self._tickets[ticket.slot]
                results.append(ticket.result)
            self._answered.popleft()
        return results

    def _on_result(self, ticket: _Ticket, result: Result) -> None:
        """Take a slot's result, unless the call expired before."""
        with self._lock:
            if ticket.result is None:
                ticket.result = result
                self._deliver(ticket)

    def _expire(self, ticket: _Ticket, reason: str = "") -> bool:
        """End an unanswered call with an `EnvFault` and replace its environment. Return False if it was answered."""
        reason = reason or f"did not answer within {ticket.seconds:g} seconds and was replaced"
        fault = EnvFault(f"{self.specs[ticket.slot].id} in slot {ticket.slot} {reason}.")
        result = Result(ticket.slot, error=fault)
        try:
            with self._lock:
                if ticket.result is not None or ticket.expires is None:
                    return False
                ticket.result = result
            self._slots[ticket.slot].replace()
            return True
        finally:
            if ticket.result is result:
                self._deliver(ticket)

    def _deliver(self, ticket: _Ticket) -> None:
        """Hand the result to `recv` or to the awaiting coroutine."""
        with self._lock:
            if self._tickets.get(ticket.slot) is not ticket:  # nothing waits for it any more
                return
            if not ticket.awaited:
                self._answered.append(ticket)
                self._arrived.notify()
                return
            del self._tickets[ticket.slot]
            if ticket.future is not None and ticket.result is not None:
                _set_result(ticket.future, ticket.result)

    async def _checked_call(self, slot: int, call: Call, deadline: float | None) -> Result:
        result = await self.call(slot, call, deadline=deadline)
        if result.error is not None:
            raise result.error
        return result

    async def _wait(self, ticket: _Ticket) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._tickets.get(ticket.slot) is not ticket:
                return
            future = ticket.future = loop.create_future()
        timer = loop.call_later(ticket.seconds, self._expire, ticket)  # runs even if this coroutine is cancelled
        await future
        timer.cancel()


def _set_result(future: asyncio.Future[Result], result: Result) -> None:
    """Set the result of a future from any thread."""

    def set_unless_done() -> None:
        if not future.done():
            future.set_result(result)

    with contextlib.suppress(RuntimeError):  # the event loop has ended
        future.get_loop().call_soon_threadsafe(set_unless_done)


def _checked(deadline: float) -> float:
    if not deadline > 0:  # nor a NaN
        raise ValueError(f"A deadline must be above 0 seconds, not {deadline:g}.")
    return deadline
