"""`EnvPool`: many slots, any of them stepped in any order, results as they come.

Whoever waits for a result, in `recv` or in `await`, watches its deadline; a world that hangs is let go of and the
others never notice. Knows nothing about policies, and nothing about how a slot holds its world.
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

_PATIENCE = 120.0
_PARTING = 10.0  # seconds for worlds to close
_GLANCE = 1.0  # seconds after which `recv` looks at the deadlines again, whatever comes in and goes out meanwhile


class SlotBusy(RuntimeError):
    """A slot got a call before the result of the last one was received."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """A call on its way."""

    slot: int
    seconds: float
    """What it may take."""
    awaited: bool
    """Whether a coroutine awaits it; else `recv` is to bring it."""
    expires: float | None = None
    """On the monotonic clock, once the slot has it: before, nobody may give it up, or it would reach a later world."""
    future: asyncio.Future[Result] | None = None
    """Where the coroutine waits, once it does."""
    result: Result | None = None
    """Set once, by the slot or by who gives it up."""

    def overdue(self, now: float) -> bool:
        """Whether it is to be given up."""
        return self.result is None and self.expires is not None and self.expires <= now


class EnvPool:
    """Worlds in slots. `with EnvPool("agentgym/BabyAI-v0", 8) as pool: pool.reset(0); results = pool.recv()`.

    Two faces, which may be used side by side on different slots: `send`, `reset`, `ask` and `recv` for loops;
    `await step`, `await start`, `await inquire` for coroutines. A slot takes one call at a time; another one before its
    result was received is refused, so that no more than a result per slot ever waits. Methods may be called from
    several threads.

    After an `EnvFault` (a crash, a killed process, a deadline) the slot's next `reset` meets a fresh world. What a
    cancelled coroutine called for goes on; its slot is busy until that is answered, overdue, or replaced. After Ctrl-C
    in `recv`, or an error that a signal of the caller's raised there, `replace` and another `recv` free any slot.
    """

    # A slot is taken while its ticket is in `_tickets`. Ctrl-C may come between any two instructions: each step below
    # leaves the slot either taken, with an answer to come, or free.

    def __init__(
        self,
        spec: str | WorldSpec | Sequence[str | WorldSpec],
        slots: int | None = None,
        backend: str | None = None,
        *,
        options: Mapping[str, Any] | Sequence[Mapping[str, Any]] = (),
        deadline: float = _PATIENCE,
    ) -> None:
        """Make the slots; their worlds are made when first called.

        Args:
            spec: A world for all slots, or one per slot.
            slots: How many; may be left out where `spec` says it.
            backend: `inline`, `thread`, `process`, or the URL of a server of ours (several with commas between). By
                default each slot has what suits its world's `step_seconds` and `step_waits`.
            options: Options for the worlds beyond those of `spec`, for all slots or for each.
            deadline: Seconds that a call may take unless it is sent with another; `inline` can't be stopped.

        Raises:
            ValueError: for an unknown world or backend, numbers that don't fit, or options that can't be sent to a
                process. What keeps a world from being made is in the result of its first call.
            gymnasium.error.DependencyNotInstalled: when the extra of a world is missing whose backend is to be chosen.
        """
        self._deadline = _checked(deadline)
        self.specs = slot_specs(spec, slots, options)
        self._slots, self._shared = open_slots(self.specs, backend)
        self._tickets: dict[int, _Ticket] = {}
        self._answered: deque[_Ticket] = deque()  # that `recv` is to bring
        self._lock = threading.RLock()
        self._arrived = threading.Condition(self._lock)
        self._next_look = 0.0
        self._closed = False
        self._forgotten = weakref.finalize(self, self._shared.close)

    def __enter__(self) -> EnvPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self.specs)

    # For loops: what is sent is received by `recv`.

    def submit(self, slot: int, call: Call, *, deadline: float | None = None) -> None:
        """Carry out `call` in `slot`; what `send`, `reset` and `ask` do.

        Raises:
            SlotBusy: when the slot's last result wasn't received yet.
            IndexError: when there is no such slot.
            ValueError: for a deadline that isn't above 0.
            RuntimeError: when the pool is closed.
        """
        self._submit(slot, call, deadline)

    def send(self, slot: int, action: str, *, deadline: float | None = None) -> None:
        """Play `action` in `slot`. Raises as `submit` does."""
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
        """Begin `task`, or one that is drawn from `split`, in `slot`. Raises as `submit` does."""
        self._submit(slot, Reset(task, split, seed), deadline)

    def ask(self, slot: int, name: str, *arguments: Any, deadline: float | None = None) -> None:
        """Ask the world in `slot` for what it has under `name` (`oracle`, `render`). Raises as `submit` does."""
        self._submit(slot, Ask(name, arguments), deadline)

    def recv(self, timeout: float | None = None) -> list[Result]:
        """The results that are there, in order of completion; waits for one at least.

        Args:
            timeout: Seconds after which the list may be empty; None waits as long as the deadlines allow.

        Raises:
            RuntimeError: when it would wait for ever, because nothing was sent.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            now = time.monotonic()
            patience = 0.0 if self._answered and now < self._next_look else self._look(now, until)
            with self._lock:
                if not self._answered and patience > 0:
                    self._arrived.wait(patience)
                results = self._received()
            if results or now >= until:
                return results

    # For coroutines: each awaits its own result.

    async def call(self, slot: int, call: Call, *, deadline: float | None = None) -> Result:
        """What comes of `call` in `slot`; what the world raises is the result's `error`, as with `recv`.

        Raises:
            SlotBusy, IndexError, RuntimeError: as `send`.
        """
        ticket = self._submit(slot, call, deadline, awaited=True)
        await self._wait(ticket)
        assert ticket.result is not None, "a ticket leaves its slot with a result"
        return ticket.result

    async def step(self, slot: int, action: str, *, deadline: float | None = None) -> Result:
        """Play `action` in `slot`.

        Raises:
            EnvFault: when the world broke or the deadline passed.
            SlotBusy, IndexError, RuntimeError: as `send`.
            Exception: whatever else a bad call raises in the world, such as ResetNeeded.
        """
        return await self._inquire(slot, Step(action), deadline)

    async def start(
        self,
        slot: int,
        task: str | None = None,
        *,
        split: Split = "train",
        seed: int | None = None,
        deadline: float | None = None,
    ) -> Result:
        """Begin `task`, or one that is drawn from `split`, in `slot`. Raises as `step`, and KeyError for a task that
        doesn't exist.
        """
        return await self._inquire(slot, Reset(task, split, seed), deadline)

    async def inquire(self, slot: int, name: str, *arguments: Any, deadline: float | None = None) -> Any:
        """What the world in `slot` has under `name`. Raises as `step`."""
        return (await self._inquire(slot, Ask(name, arguments), deadline)).value

    # For both.

    def replace(self, slot: int) -> None:
        """Let go of the world in `slot`, whatever it does; its next `reset` makes another. A call that is on its way
        there ends as a fault.
        """
        if self._closed or not 0 <= slot < len(self.specs):
            raise self._refusal(slot)
        ticket = self._tickets.get(slot)
        if ticket is None or not self._give_up(ticket, "was replaced before it answered"):
            self._slots[slot].replace()

    def close(self) -> None:
        """Close all worlds and free what they hold; waits some seconds for those that answer. May be called twice.
        Calls that are on their way end as faults.
        """
        if self._closed:
            return
        self._closed = True
        for slot in self._slots:
            slot.close()
        until = time.monotonic() + _PARTING
        late = [slot for slot in self._slots if not slot.join(max(0.0, until - time.monotonic()))]
        for ticket in list(self._tickets.values()):
            self._give_up(ticket, "was closed before it answered")
        for slot in late:
            slot.replace()
            slot.join(_GLANCE)
        self._forgotten()

    def _submit(self, slot: int, call: Call, deadline: float | None, *, awaited: bool = False) -> _Ticket:
        if self._closed or not 0 <= slot < len(self.specs):
            raise self._refusal(slot)
        seconds = self._deadline if deadline is None else _checked(deadline)
        ticket = _Ticket(slot, seconds, awaited)
        try:
            while (before := self._tickets.setdefault(slot, ticket)) is not ticket:
                if not (before.awaited and before.overdue(time.monotonic())):
                    raise SlotBusy(f"Slot {slot} has a call whose result was not received yet.")
                self._give_up(before)  # its coroutine was cancelled, and its loop maybe ended
            self._slots[slot].submit(call, partial(self._take, ticket))
            ticket.expires = time.monotonic() + seconds
        except BaseException:
            if self._tickets.get(slot) is ticket:  # Ctrl-C in the middle of a step, which nobody can continue
                self._slots[slot].replace()
                del self._tickets[slot]
            raise
        return ticket

    def _refusal(self, slot: int) -> Exception:
        if self._closed:
            return RuntimeError("This pool is closed; make another.")
        return IndexError(f"There is no slot {slot}; this pool has {len(self.specs)}, from 0.")

    def _look(self, now: float, until: float) -> float:
        """Give up what is overdue. Returns the seconds that `recv` may wait then."""
        self._next_look = now + _GLANCE
        owed = [ticket for ticket in list(self._tickets.values()) if not ticket.awaited]
        if not owed and until == math.inf:
            raise RuntimeError("No slot was sent anything that recv() could wait for; call send() or reset().")
        for ticket in owed:
            if ticket.overdue(now):
                self._give_up(ticket)
        deadlines = (ticket.expires for ticket in owed if ticket.result is None and ticket.expires is not None)
        return min(until, self._next_look, *deadlines) - now

    def _received(self) -> list[Result]:
        """What is there for `recv`; the slots are free from now on."""
        results: list[Result] = []
        while self._answered:
            ticket = self._answered[0]
            if self._tickets.get(ticket.slot) is ticket and ticket.result is not None:  # else Ctrl-C was faster
                del self._tickets[ticket.slot]
                results.append(ticket.result)
            self._answered.popleft()
        return results

    def _take(self, ticket: _Ticket, result: Result) -> None:
        """A slot answers; too late, maybe."""
        with self._lock:
            if ticket.result is None:
                ticket.result = result
                self._deliver(ticket)

    def _give_up(self, ticket: _Ticket, why: str = "") -> bool:
        """Answer in the slot's stead and let go of its world, unless it has answered. Whether it had not."""
        why = why or f"did not answer within {ticket.seconds:g} seconds and was replaced"
        fault = EnvFault(f"{self.specs[ticket.slot].id} in slot {ticket.slot} {why}.")
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
        """Hand the result to who waits."""
        with self._lock:
            if self._tickets.get(ticket.slot) is not ticket:  # nobody does
                return
            if not ticket.awaited:
                self._answered.append(ticket)
                self._arrived.notify()
                return
            del self._tickets[ticket.slot]
            if ticket.future is not None and ticket.result is not None:
                _settle(ticket.future, ticket.result)

    async def _inquire(self, slot: int, call: Call, deadline: float | None) -> Result:
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
        overdue = loop.call_later(ticket.seconds, self._give_up, ticket)  # also when this coroutine is cancelled
        await future
        overdue.cancel()


def _settle(future: asyncio.Future[Result], result: Result) -> None:
    """Give a result to a future of whichever loop."""

    def settle() -> None:
        if not future.done():
            future.set_result(result)

    with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
        future.get_loop().call_soon_threadsafe(settle)


def _checked(deadline: float) -> float:
    if not deadline > 0:  # nor a NaN
        raise ValueError(f"A deadline is above 0 seconds, not {deadline:g}.")
    return deadline
