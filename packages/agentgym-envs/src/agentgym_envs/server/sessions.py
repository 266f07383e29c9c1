"""Sessions: each holds an environment in a slot and runs one call at a time for any client that has its id.

A started call continues even if its client disconnects, and its result is stored under its idempotency key. Everything
here runs in the thread of one event loop, but slots may report results from any thread. The only dependency on HTTP are
the status codes of `Refusal`.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from agentgym_envs.pool import Ask, Reset, Result, Step, WorldSpec
from agentgym_envs.pool.calls import Call
from agentgym_envs.pool.slots import Slot
from agentgym_envs.server.catalog import Catalog
from agentgym_envs.server.creations import Creations, Key
from agentgym_envs.server.errors import Overdue, Refusal, later, refusal_of
from agentgym_envs.server.metrics import Metrics
from agentgym_envs.server.session_types import CallRecord, Session, hint_of, kind_of, same
from agentgym_envs.server.settings import Settings
from agentgym_envs.server.workers import Worker, Workers

_log = logging.getLogger(__name__)
_CLOSE_TIMEOUT = 10.0  # seconds


class Sessions:
    """The sessions of a server. To be used in one event loop, between `open` and `shut`."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare the environment catalog and the workers, without starting them.

        Args:
            settings: Limits and environments.
            clock: Clock for leases, in seconds.

        Raises:
            ValueError: If an environment of the settings does not exist.
        """
        self.settings = settings
        self.catalog = Catalog(settings.world, settings.option)
        self.closing = False
        self.metrics = Metrics(self.__len__, lambda: sum(worker["alive"] for worker in self.workers.list_workers()))
        self.workers = Workers(settings.workers, self.metrics.restarts.inc)
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._creations = Creations(clock)
        self._creating = 0
        self._pending: dict[CallRecord, Session] = {}
        self._closing_slots: list[Slot] = []
        self._results: deque[tuple[Session, CallRecord, Result]] = deque()
        self._wakeup_scheduled = False
        self._thread = 0

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(self) -> None:
        """Start the workers. Must run in the event loop in which the sessions are used."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.workers.start()

    def refuse_calls(self) -> None:
        """Refuse new calls from now on; pending calls continue."""
        self.closing = True

    def cut_off(self) -> None:
        """Refuse the pending calls and discard their environments."""
        for record, session in list(self._pending.items()):
            session.slot.replace()
            self._settle(session, record, Result(0, error=_closing()))

    async def shut(self, grace: float) -> None:
        """Refuse new calls, wait at most `grace` seconds for pending ones, and close all sessions and workers."""
        self.refuse_calls()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*map(self._settled, self._pending)), grace)
        self.cut_off()
        for session in list(self._sessions.values()):
            self.close(session)
        await asyncio.to_thread(self._join)

    def _join(self) -> None:
        until = time.monotonic() + _CLOSE_TIMEOUT
        for slot in self._closing_slots:
            slot.join(max(0.0, until - time.monotonic()))
        self.workers.close(max(0.0, until - time.monotonic()))

    async def create(
        self,
        world: str,
        options: Mapping[str, Any],
        key: str | None = None,
        *,
        client: str = "",
        own: Mapping[str, Any] | None = None,
    ) -> Session:
        """Create an environment in a new session.

        Args:
            world: Id of the environment.
            options: Options that the client requested.
            key: Idempotency key: repeating a creation with its key returns the same session while that is open.
            client: The client, see `Guard`. Keys of different clients are independent.
            own: Options that the server sets, including those that clients may not set.

        Raises:
            Refusal: `unknown_world`, `invalid`, `too_many_sessions`, `closing`, or the refusal for an environment
                that can't be created.
        """
        if key is None:
            return await self._create(world, options, own or {})
        session = await self._creations.once(
            Key(client, key), [world, options, own], lambda: self._create(world, options, own or {})
        )
        session.expires = self._expiry()
        return session

    async def _create(self, world: str, options: Mapping[str, Any], own: Mapping[str, Any]) -> Session:
        self._check_open()
        spec = await self.catalog.spec(world, options, own)
        at_work = sum(session.closed for session in self._pending.values())
        if len(self) + self._creating + at_work >= self.settings.max_sessions:
            more = f" and {at_work} closed ones whose environments are still at work" if at_work else ""
            message = f"There are {len(self)} sessions{more}, which is the maximum; close one first."
            raise later(429, "too_many_sessions", message)
        worker, slot = self._open_slot(spec)
        session = Session(secrets.token_hex(16), world, spec, worker, slot, self._expiry())
        self._creating += 1
        try:
            session.instructions = (await self.call(session, Ask("instructions"))).value
            self._check_open()
        except BaseException:
            self._release(session)
            raise
        finally:
            self._creating -= 1
        self._sessions[session.id] = session
        return session

    def get(self, session_id: str) -> Session:
        """Return the session of that id and renew its lease.

        Raises:
            Refusal: `unknown_session`, `closing`.
        """
        self._check_open()
        session = self._sessions.get(session_id)
        if session is not None and session.pending is None and session.expires <= self._clock():
            self._expire(session)
            session = None
        if session is None:
            raise Refusal(
                404,
                "unknown_session",
                f"There is no session {session_id[:80]!r}: it was closed, its lease of {self.settings.lease:g} s "
                "expired, or it never existed. Create a new one: POST /v1/sessions.",
            )
        session.expires = self._expiry()
        return session

    async def call(self, session: Session, call: Call, key: str | None = None) -> Result:
        """Carry out `call` and return its result. If the session's last keyed call has this key, return its result.

        Raises:
            Refusal: If the call failed.
        """
        record = self.begin(session, call, key)
        if record.result is None:
            await self._settled(record)
        assert record.result is not None, "a call that was waited for has a result"
        if record.result.error is not None:
            raise record.result.error.with_traceback(None)  # it may be raised repeatedly; the traceback would grow
        return record.result

    def begin(self, session: Session, call: Call, key: str | None = None) -> CallRecord:
        """Start `call`. For environments that run in this thread, the result is available on return. See `call`.

        Raises:
            Refusal: `busy`, `invalid`: the call was not started.
        """
        if key is not None and session.keyed is not None and session.keyed.key == key:
            if not same(session.keyed.call, call):
                raise Refusal(422, "invalid", f"The key {key!r} was used for another call; use a new key.")
            return session.keyed
        if isinstance(call, Step):
            self._check_length(call)
        if session.pending is not None:
            raise Refusal(
                409, "busy", "Another call of this session is pending; wait for it, or repeat it with its key."
            )
        if isinstance(call, Reset) and not session.worker.process.alive:
            session.worker.sessions -= 1
            session.worker, session.slot = self._open_slot(session.spec)
        session.pending = record = CallRecord(call, key, time.perf_counter())
        if key is not None:
            session.keyed = record
        if isinstance(call, Step) and (last := session.last) is not None and last.over:
            # As an environment answers after its own end; after a limit of turns, it would go on and pay.
            self._settle(session, record, last._replace(reward=0.0))
            return record
        session.slot.submit(call, partial(self._on_result, session, record))
        if record.result is None:
            self._pending[record] = session
            record.timer = self._loop.call_later(self.settings.deadline, self._overdue, session, record)
        return record

    def close(self, session: Session) -> None:
        """Close the session. Its id is invalid from now on; its environment closes in the background."""
        if self._sessions.pop(session.id, None) is not None:
            self._release(session)

    def sweep(self) -> None:
        """Close the sessions whose lease expired, and drop old creation keys and closed slots."""
        now = self._clock()
        for session in [one for one in self._sessions.values() if one.pending is None and one.expires <= now]:
            self._expire(session)
        self._creations.sweep()
        self._closing_slots = [slot for slot in self._closing_slots if not slot.join(0.0)]

    async def maintain(self, interval: float) -> None:
        """Sweep and replace dead workers every `interval` seconds, forever."""
        while True:
            await asyncio.sleep(interval)
            self.sweep()
            try:
                self.workers.restart_dead()
            except OSError:
                _log.exception("No worker process can be started; retrying in %g seconds.", interval)

    def _check_open(self) -> None:
        if self.closing:
            raise _closing()

    def _open_slot(self, spec: WorldSpec) -> tuple[Worker, Slot]:
        try:
            return self.workers.open_slot(spec)
        except OSError as error:
            raise Refusal(502, "world_fault", f"No worker process can be started for {spec.id}: {error}") from error

    def _check_length(self, call: Step) -> None:
        limit = self.settings.max_action
        if len(call.action) > limit or len(hint_of(call) or "") > limit:
            raise Refusal(422, "invalid", f"An action may have at most {limit:,} characters; send a shorter one.")

    def _expiry(self) -> float:
        return self._clock() + self.settings.lease

    def _expire(self, session: Session) -> None:
        self.metrics.expired.inc()
        self.close(session)

    def _release(self, session: Session) -> None:
        session.closed = True
        session.last = session.keyed = None  # the creation's key may keep the session object alive for a while
        session.worker.sessions -= 1
        session.slot.close()
        self._closing_slots.append(session.slot)

    def _on_result(self, session: Session, record: CallRecord, result: Result) -> None:
        """Take a slot's result, in any thread."""
        if threading.get_ident() == self._thread:
            self._settle(session, record, result)
            return
        self._results.append((session, record, result))
        if not self._wakeup_scheduled:
            self._wakeup_scheduled = True
            with suppress(RuntimeError):  # the event loop has ended
                self._loop.call_soon_threadsafe(self._settle_results)

    def _settle_results(self) -> None:
        """Settle all queued results in one batch, since waking the loop takes longer than settling a call."""
        self._wakeup_scheduled = False
        while self._results:
            self._settle(*self._results.popleft())

    def _overdue(self, session: Session, record: CallRecord) -> None:
        message = (
            f"The environment did not answer within {self.settings.deadline:g} seconds and was replaced; reset it."
        )
        if not session.closed:
            session.slot.replace()
        self._settle(session, record, Result(0, error=Overdue(message)))

    def _settle(self, session: Session, record: CallRecord, result: Result) -> None:
        if record.result is not None:  # it was overdue
            return
        status = 200
        if result.error is not None:
            refusal = refusal_of(result.error, record.call)
            result, status = result._replace(error=refusal), refusal.status
            if isinstance(record.call, Reset) and refusal.kind not in ("unknown_task", "invalid"):
                session.last = None  # the last episode is over, and none has begun
        elif not isinstance(record.call, Ask):
            session.last = result
        record.result = result
        session.pending = None
        session.expires = self._expiry()
        if record.timer is not None:
            record.timer.cancel()
            self._pending.pop(record, None)
        self.metrics.called(kind_of(record.call), status, time.perf_counter() - record.began)
        for listener in record.listeners:
            listener()
        record.listeners.clear()

    async def _settled(self, record: CallRecord) -> None:
        """Wait for the result."""
        event = asyncio.Event()
        record.listeners.append(event.set)
        await event.wait()


def _closing() -> Refusal:
    return later(503, "closing", "This server is closing; retry in a few seconds, or use another server.")
