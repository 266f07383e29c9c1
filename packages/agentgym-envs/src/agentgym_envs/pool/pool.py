"""`EnvPool`: many slots, any of them stepped in any order, results as they come.

Whoever waits for a result, in `recv` or in `await`, watches its deadline; a world that hangs is let go of and the
others never notice. Knows nothing about policies, and nothing about how a slot holds its world.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agentgym_envs.pool.backends import open_slots
from agentgym_envs.pool.calls import Ask, Call, Reset, Result, Step, WorldSpec
from agentgym_envs.tasks import Split
from agentgym_envs.text_env import EnvFault

_PATIENCE = 120.0
_PARTING = 10.0  # seconds for worlds to close


class SlotBusy(RuntimeError):
    """A slot got a call before the result of the last one was received."""


@dataclass(slots=True, eq=False)
class _Ticket:
    """A call on its way."""

    slot: int
    seconds: float
    """What it may take."""
    expires: float
    """On the monotonic clock."""
    future: asyncio.Future[Result] | None
    """Who awaits it; None where `recv` is to bring it."""
    result: Result | None = None


class EnvPool:
    """Worlds in slots. `with EnvPool("agentgym/BabyAI-v0", 8) as pool: pool.reset(0); results = pool.recv()`.

    Two faces, which may be used side by side on different slots: `send`, `reset`, `ask` and `recv` for loops;
    `await step`, `await start`, `await inquire` for coroutines. A slot takes one call at a time; another one before its
    result was received is refused, so that no more than a result per slot ever waits. Methods may be called from
    several threads.

    After an `EnvFault` (a crash, a killed process, a deadline) the slot's next `reset` meets a fresh world.
    """

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
            ValueError: for an unknown world or backend, or numbers that don't fit.
            gymnasium.error.DependencyNotInstalled: when a world's extra is missing.
        """
        if deadline <= 0:
            raise ValueError(f"A deadline is above 0 seconds, not {deadline}.")
        self.specs = _specs(spec, slots, options)
        self._deadline = deadline
        self._slots, self._shared = open_slots(self.specs, backend)
        self._tickets: list[_Ticket | None] = [None] * len(self.specs)
        self._results: deque[Result] = deque()
        self._changed = threading.Condition()
        self._closed = False

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
        until = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while not self._results:
                sent = [ticket for ticket in self._tickets if ticket is not None and ticket.future is None]
                if until is None and not sent:
                    raise RuntimeError("No slot was sent anything that recv() could wait for; call send() or reset().")
                now = time.monotonic()
                if until is not None and now >= until:
                    break
                for ticket in sent:
                    if ticket.expires <= now:
                        self._give_up(ticket)
                if not self._results:
                    ends = [ticket.expires for ticket in sent] + ([] if until is None else [until])
                    self._changed.wait(max(0.0, min(ends) - now))
            results = list(self._results)
            self._results.clear()
            for result in results:
                self._tickets[result.slot] = None
        return results

    # For coroutines: each awaits its own result.

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
        with self._changed:
            ticket = self._tickets[slot]
            if ticket is not None and ticket.result is None:
                self._give_up(ticket, "was replaced before it answered")
            else:
                self._slots[slot].replace()

    def close(self) -> None:
        """Close all worlds and free what they hold; waits some seconds for those that answer. May be called twice.
        Calls that are on their way end as faults.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
        for slot in self._slots:
            slot.close()
        until = time.monotonic() + _PARTING
        for slot in self._slots:
            slot.join(max(0.0, until - time.monotonic()))
        with self._changed:
            for ticket in self._tickets:
                if ticket is not None and ticket.result is None:
                    self._give_up(ticket, "was closed before it answered")
        self._shared.close()

    def _submit(
        self, slot: int, call: Call, deadline: float | None, future: asyncio.Future[Result] | None = None
    ) -> _Ticket:
        with self._changed:
            if self._closed:
                raise RuntimeError("This pool is closed; make another.")
            if not 0 <= slot < len(self._slots):
                raise IndexError(f"There is no slot {slot}; this pool has {len(self._slots)}, from 0.")
            if (before := self._tickets[slot]) is not None:
                self._refuse_or_replace(before)
            seconds = self._deadline if deadline is None else deadline
            ticket = self._tickets[slot] = _Ticket(slot, seconds, time.monotonic() + seconds, future)
        self._slots[slot].submit(call, partial(self._take, ticket))
        return ticket

    def _refuse_or_replace(self, before: _Ticket) -> None:
        """A coroutine that was cancelled left its call behind: the slot is free when it is answered or overdue."""
        if before.future is None or not before.future.done() or time.monotonic() < before.expires:
            raise SlotBusy(f"Slot {before.slot} has a call whose result was not received yet.")
        self._slots[before.slot].replace()

    def _take(self, ticket: _Ticket, result: Result) -> None:
        """A slot answers; too late, maybe."""
        with self._changed:
            if ticket.result is not None or self._tickets[ticket.slot] is not ticket:
                return
            ticket.result = result
            if ticket.future is None:
                self._results.append(result)
                self._changed.notify_all()
                return
            self._tickets[ticket.slot] = None
        _tell(ticket.future, result)

    def _give_up(self, ticket: _Ticket, why: str = "") -> None:
        """Answer in the slot's stead, and let go of its world."""
        why = why or f"did not answer within {ticket.seconds:g} seconds and was replaced"
        self._slots[ticket.slot].replace()
        world = self.specs[ticket.slot].id
        self._take(ticket, Result(ticket.slot, error=EnvFault(f"{world} in slot {ticket.slot} {why}.")))

    async def _inquire(self, slot: int, call: Call, deadline: float | None) -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        ticket = self._submit(slot, call, deadline, future)
        if ticket.result is None:
            try:
                await asyncio.wait((future,), timeout=ticket.seconds)
            finally:
                future.cancel()  # tells that nobody waits any more; nothing happens to one that is done
            if ticket.result is None:
                with self._changed:
                    self._give_up(ticket)
        result = ticket.result
        assert result is not None, "a ticket that was given up has a result"
        if result.error is not None:
            raise result.error
        return result


def _tell(future: asyncio.Future[Result], result: Result) -> None:
    """Settle a future of whichever loop; of one that has ended meanwhile, nobody waits for it."""
    loop = future.get_loop()
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: None if future.done() else future.set_result(result))


def _specs(
    spec: str | WorldSpec | Sequence[str | WorldSpec],
    slots: int | None,
    options: Mapping[str, Any] | Sequence[Mapping[str, Any]],
) -> tuple[WorldSpec, ...]:
    """One spec per slot, with its options."""
    one = isinstance(spec, str | WorldSpec)
    many = len(spec) if not one else slots
    if many is None or many < 1 or (slots is not None and slots != many):
        raise ValueError(
            f"{slots} slots for {1 if one else many} world(s) don't fit: give slots=N, or one spec a slot."
        )
    each = [spec] * many if one else list(spec)
    more = [options] * many if isinstance(options, Mapping) else list(options) or [{}] * many
    if len(more) != many:
        raise ValueError(
            f"There are options for {len(more)} slots and {many} slots; give one for each, or one for all."
        )
    made = [WorldSpec(world) if isinstance(world, str) else world for world in each]
    return tuple(WorldSpec(world.id, {**world.options, **extra}) for world, extra in zip(made, more, strict=True))
