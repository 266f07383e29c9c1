"""Sessions: each holds a world in a slot and plays one call at a time, for whoever knows its id.

A call that was begun goes on whether or not anybody waits, and its result is remembered under its key. Everything here
happens in the thread of one event loop; slots answer from any. Knows no HTTP but the statuses of `Refusal`.
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
from agentgym_envs.server.session_types import Play, Session, hint_of, kind_of, same
from agentgym_envs.server.settings import Settings
from agentgym_envs.server.workers import Worker, Workers

_log = logging.getLogger(__name__)
_PARTING = 10.0  # seconds for worlds to close


class Sessions:
    """All sessions of a server. Use it in one event loop, between `open` and `shut`."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Plan the sessions.

        Args:
            settings: What there may be.
            clock: Seconds by which leases run.

        Raises:
            ValueError: when there is no such world as one of the settings'.
        """
        self.settings = settings
        self.catalog = Catalog(settings.world, settings.option)
        self.closing = False
        self.metrics = Metrics(self.__len__, lambda: sum(worker["alive"] for worker in self.workers.seen()))
        self.workers = Workers(settings.workers, self.metrics.restarts.inc)
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._creations = Creations(clock)
        self._creating = 0
        self._playing: dict[Play, Session] = {}
        self._parting: list[Slot] = []
        self._arrived: deque[tuple[Session, Play, Result]] = deque()
        self._woken = False
        self._thread = 0

    def __len__(self) -> int:
        return len(self._sessions)

    async def open(self) -> None:
        """Start the workers, in the event loop that the sessions are to be used in."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.workers.start()

    def refuse_calls(self) -> None:
        """From now on no call is begun; those on their way go on."""
        self.closing = True

    def cut_off(self) -> None:
        """Answer the calls on their way as refused, and let go of their worlds."""
        for play, session in list(self._playing.items()):
            session.slot.replace()
            self._settle(session, play, Result(0, error=_closing()))

    async def shut(self, grace: float) -> None:
        """Refuse calls, wait at most `grace` seconds for those on their way, and close everything."""
        self.refuse_calls()
        with suppress(TimeoutError):
            await asyncio.wait_for(asyncio.gather(*map(self._settled, self._playing)), grace)
        self.cut_off()
        for session in list(self._sessions.values()):
            self.close(session)
        await asyncio.to_thread(self._part)

    def _part(self) -> None:
        until = time.monotonic() + _PARTING
        for slot in self._parting:
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
        """Make a world, at once, in a session of its own.

        Args:
            world: Its id.
            options: What a client asks for.
            key: A creation that is repeated with its key gives the same session for as long as that is open.
            client: Who asks, see `Guard`; keys of different clients are different keys.
            own: Options that the server sets by itself, among them such as no client may.

        Raises:
            Refusal: `unknown_world`, `invalid`, `too_many_sessions`, `closing`, and what becomes of a world that
                can't be made.
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
        if len(self) + self._creating >= self.settings.max_sessions:
            raise later(
                429, "too_many_sessions", f"There are {len(self)} sessions, which is all there may be; close one."
            )
        worker, slot = self._seat(spec)
        session = Session(secrets.token_hex(16), world, spec, worker, slot, self._expiry())
        self._creating += 1
        try:
            session.instructions = (await self.call(session, Ask("instructions"))).value
            self._check_open()
        except BaseException:
            self._leave(session)
            raise
        finally:
            self._creating -= 1
        self._sessions[session.id] = session
        return session

    def get(self, session_id: str) -> Session:
        """The session of that id, whose lease begins anew.

        Raises:
            Refusal: `unknown_session`, `closing`.
        """
        self._check_open()
        session = self._sessions.get(session_id)
        if session is not None and session.play is None and session.expires <= self._clock():
            self._expire(session)
            session = None
        if session is None:
            raise Refusal(
                404,
                "unknown_session",
                f"There is no session {session_id[:80]!r}; it was closed, or its lease of "
                f"{self.settings.lease:g} s ran out, or it never was. Create another: POST /v1/sessions.",
            )
        session.expires = self._expiry()
        return session

    async def call(self, session: Session, call: Call, key: str | None = None) -> Result:
        """The result of `call`; that of the last one with this `key` where it is a repeat.

        Raises:
            Refusal: for whatever becomes of it that is no result.
        """
        play = self.begin(session, call, key)
        if play.result is None:
            await self._settled(play)
        assert play.result is not None, "a call that was waited for has a result"
        if play.result.error is not None:
            raise play.result.error.with_traceback(None)  # it may be raised once more, and would keep growing
        return play.result

    def begin(self, session: Session, call: Call, key: str | None = None) -> Play:
        """Begin `call`; where the world plays in this thread, its result is there at once. See `call`.

        Raises:
            Refusal: `busy`, `invalid`: then nothing is begun.
        """
        if key is not None and session.keyed is not None and session.keyed.key == key:
            if not same(session.keyed.call, call):
                raise Refusal(422, "invalid", f"The key {key!r} was used for another call; take a new one.")
            return session.keyed
        if isinstance(call, Step):
            self._check_length(call)
        if session.play is not None:
            raise Refusal(
                409, "busy", "Another call of this session is on its way; wait for it, or repeat it with its key."
            )
        if isinstance(call, Reset) and not session.worker.home.alive:
            session.worker.sessions -= 1
            session.worker, session.slot = self._seat(session.spec)
        session.play = play = Play(call, key, time.perf_counter())
        if key is not None:
            session.keyed = play
        session.slot.submit(call, partial(self._take, session, play))
        if play.result is None:
            self._playing[play] = session
            play.timer = self._loop.call_later(self.settings.deadline, self._overdue, session, play)
        return play

    def close(self, session: Session) -> None:
        """Close the session: its id is unknown from now on, and its world closes by and by."""
        if self._sessions.pop(session.id, None) is not None:
            self._leave(session)

    def sweep(self) -> None:
        """Close the sessions whose lease ran out, and forget what needn't be remembered any more."""
        now = self._clock()
        for session in [one for one in self._sessions.values() if one.play is None and one.expires <= now]:
            self._expire(session)
        self._creations.sweep()
        self._parting = [slot for slot in self._parting if not slot.join(0.0)]

    async def tend(self, every: float) -> None:
        """Sweep and start dead workers anew, for ever."""
        while True:
            await asyncio.sleep(every)
            self.sweep()
            try:
                self.workers.tend()
            except OSError:
                _log.exception("No worker can be started; it is tried again in %g seconds.", every)

    def _check_open(self) -> None:
        if self.closing:
            raise _closing()

    def _seat(self, spec: WorldSpec) -> tuple[Worker, Slot]:
        try:
            return self.workers.seat(spec)
        except OSError as error:
            raise Refusal(502, "world_fault", f"No worker can be started for {spec.id}: {error}") from error

    def _check_length(self, call: Step) -> None:
        most = self.settings.max_action
        if len(call.action) > most or len(hint_of(call) or "") > most:
            raise Refusal(422, "invalid", f"An action has at most {most:,} characters here; send a shorter one.")

    def _expiry(self) -> float:
        return self._clock() + self.settings.lease

    def _expire(self, session: Session) -> None:
        self.metrics.expired.inc()
        self.close(session)

    def _leave(self, session: Session) -> None:
        session.closed = True
        session.last = session.keyed = None  # the key of its creation may outlive it for a while
        session.worker.sessions -= 1
        session.slot.close()
        self._parting.append(session.slot)

    def _take(self, session: Session, play: Play, result: Result) -> None:
        """A slot answers, in whichever thread."""
        if threading.get_ident() == self._thread:
            self._settle(session, play, result)
            return
        self._arrived.append((session, play, result))
        if not self._woken:
            self._woken = True
            with suppress(RuntimeError):  # the loop has ended, and nobody waits
                self._loop.call_soon_threadsafe(self._settle_arrived)

    def _settle_arrived(self) -> None:
        """All that came since the loop was woken: to wake it takes longer than to settle a call."""
        self._woken = False
        while self._arrived:
            self._settle(*self._arrived.popleft())

    def _overdue(self, session: Session, play: Play) -> None:
        said = f"The world did not answer within {self.settings.deadline:g} seconds and was replaced; reset it."
        if not session.closed:
            session.slot.replace()
        self._settle(session, play, Result(0, error=Overdue(said)))

    def _settle(self, session: Session, play: Play, result: Result) -> None:
        if play.result is not None:  # it was overdue
            return
        status = 200
        if result.error is not None:
            refusal = refusal_of(result.error, play.call)
            result, status = result._replace(error=refusal), refusal.status
        elif not isinstance(play.call, Ask):
            session.last = result
        play.result = result
        session.play = None
        session.expires = self._expiry()
        if play.timer is not None:
            play.timer.cancel()
            self._playing.pop(play, None)
        self.metrics.called(kind_of(play.call), status, time.perf_counter() - play.began)
        for listener in play.listeners:
            listener()
        play.listeners.clear()

    async def _settled(self, play: Play) -> None:
        """Wait for the result."""
        arrived = asyncio.Event()
        play.listeners.append(arrived.set)
        await arrived.wait()


def _closing() -> Refusal:
    return later(503, "closing", "This server is closing; call again in some seconds, or another server.")
