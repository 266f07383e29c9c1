"""One or several servers that offer the same worlds: sessions on them, shared out evenly, and what is asked of each.

A server that is away is left out until it is back; the sessions on it are lost, and whoever held one opens another.
Knows nothing of slots or environments.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from agentgym_envs.core.action_schema import Function
from agentgym_envs.core.loop_thread import LoopThread
from agentgym_envs.core.tasks import TaskSet
from agentgym_envs.core.text_env import EnvFault, Malformed, writable
from agentgym_envs.pool.calls import Reset, Step, WorldSpec
from agentgym_envs.remote import tasks
from agentgym_envs.remote.answers import SessionLost
from agentgym_envs.remote.batches import Batches, Errand
from agentgym_envs.remote.client import PAUSES, Client, Server, split_urls

TIMEOUT = 150.0
"""Seconds without an answer after which an attempt counts as failed; a server of ours gives up on a world sooner."""
MAX_ACTION_CHARS = 65_536
"""A server takes no longer actions; the rest of one isn't sent."""
_GATE = 32  # sessions that are opened or given back at the same time
_ASKED = 3  # sessions that are tried before another is opened
_FRESH = 5.0  # seconds for which what a server said of its load is believed
_PARTING = 10.0  # seconds for what is still to be said at the end

Settle = Callable[[dict[str, Any] | Exception], None]


@dataclass(eq=False, slots=True)
class Session:
    """A world on a server."""

    server: Server
    id: str
    spec: WorldSpec
    instructions: str
    lost: bool = field(default=False)
    """Whether it is given back, or gone."""


class Servers:
    """The servers at `urls`, spoken with from one thread. Usable from any other, in the process that made it.

    `servers(urls)` is the one that environments of this process share; whoever has it closes it.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        timeout: float = TIMEOUT,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        """Nothing is asked yet.

        Args:
            urls: One or several, also with commas between: `http://HOST:PORT`, or `http://:TOKEN@HOST:PORT`.
            token: What the servers want to see, where their URLs don't have it.
            timeout: Seconds without an answer after which an attempt counts as failed.
            pauses: Seconds before each new attempt.

        Raises:
            ValueError: when one of them is no URL, or there is none; for a token or timeout that can't be one.
        """
        if not timeout > 0:
            raise ValueError(f"A timeout is above 0 seconds, not {timeout:g}.")
        self._servers = [Server.at(url, token) for url in split_urls(urls)]
        self.loop = LoopThread(f"The server {' or '.join(server.url for server in self._servers)}")
        self.users = 1
        tls = any(server.url.startswith("https:") for server in self._servers)
        self._client = Client(timeout=timeout, pauses=pauses, tls=tls)
        self._batches = Batches(self.loop, self._client)
        self._keys = map(f"{uuid.uuid4().hex}-{{}}".format, itertools.count())
        self._sessions: set[Session] = set()
        self._leaving: set[asyncio.Task[None]] = set()
        self._task_sets: dict[str, TaskSet] = {}
        self._functions: dict[str, tuple[Function, ...]] = {}
        self._gate = asyncio.Semaphore(_GATE)
        self._looking = asyncio.Lock()
        self._looked = -_FRESH

    def close(self) -> None:
        """Use it no more; the last user's closing gives back the sessions and ends the thread."""
        with _lock:
            self.users -= 1
            if self.users > 0:
                return
            for key in [key for key, shared in _shared.items() if shared is self]:
                del _shared[key]
        if self.loop.current:  # the collector of garbage comes by on any thread
            threading.Thread(target=self._end, daemon=True).start()
        else:
            self._end()

    def _end(self) -> None:
        if self.loop.alive:
            with suppress(EnvFault):
                self.loop.run(self._part(), _PARTING)
            self.loop.stop()

    async def _part(self) -> None:
        self._batches.close()
        await asyncio.gather(*(self.leave(session) for session in list(self._sessions)), *self._leaving)
        await self._client.close()

    # Sessions.

    async def open(self, spec: WorldSpec) -> Session:
        """A session of the world, where fewest of ours are, on servers that are there.

        Raises:
            SessionLost: when no server gives one.
            ValueError: when there is no such world, or it doesn't take the options.
            PermissionError: without the right token.
        """
        body = {"world": spec.id.rpartition(":")[2], "options": _sendable(spec), "key": next(self._keys)}
        async with self._gate:
            for pause in (*self._client.pauses, None):
                problems: list[SessionLost] = []
                for server in await self._by_preference():
                    try:
                        return await self._open_at(server, spec, body)
                    except SessionLost as lost:
                        problems.append(lost)
                if pause is None:
                    raise SessionLost(f"No session of {spec.id} could be opened. {' '.join(map(str, problems))}")
                await asyncio.sleep(self._client.jittered(pause, min(lost.retry_after for lost in problems)))
        raise AssertionError("the last pause is None")

    async def _open_at(self, server: Server, spec: WorldSpec, body: dict[str, Any]) -> Session:
        server.sessions += 1  # at once, so that those that open at the same time go elsewhere
        try:
            made = (await self._client.request(server, "POST", "/v1/sessions", body, pauses=())).json()
            session = Session(server, made["id"], spec, made["instructions"])
        except BaseException:
            server.sessions -= 1
            raise
        self._sessions.add(session)
        return session

    def forget(self, session: Session) -> None:
        """It is lost."""
        if not session.lost:
            session.lost = True
            session.server.sessions -= 1
            self._sessions.discard(session)

    async def leave(self, session: Session) -> None:
        """Give it back. A server that can't be told ends it when its lease is over."""
        if not session.lost:
            self.forget(session)
            task = asyncio.create_task(self._delete(session))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
            await task

    async def _delete(self, session: Session) -> None:
        async with self._gate:
            with suppress(EnvFault, TimeoutError):
                gone = self._client.request(session.server, "DELETE", f"/v1/sessions/{session.id}", pauses=())
                await asyncio.wait_for(gone, _PARTING / 2)

    def play(self, session: Session, call: Reset | Step, settle: Settle) -> None:
        """Have `call` carried out, and its outcome or what went wrong handed to `settle`, on the loop. From any thread.

        Raises:
            RuntimeError: when this is closed.
        """
        kind, wanted = _wanted(call)
        body = json.dumps({"session": session.id, "key": next(self._keys), **wanted})
        self._batches.send(Errand(session.server, f"/v1/{kind}", body, settle))

    async def ask(self, session: Session, route: str, *, pauses: Sequence[float] | None = None) -> httpx.Response:
        """What is at `route` below the session.

        Args:
            session: One of ours.
            route: Such as `oracle`.
            pauses: Instead of the usual ones.

        Raises:
            SessionLost: when it is gone, or its server.
            Exception: what the server's refusal means.
        """
        try:
            return await self._client.request(
                session.server, "GET", f"/v1/sessions/{session.id}/{route}", pauses=pauses
            )
        except SessionLost:
            self.forget(session)
            raise

    async def tasks(self, spec: WorldSpec) -> TaskSet:
        """The tasks of the world; fetched once. Raises as `open` and `ask`."""

        async def fetch(route: str) -> dict[str, Any]:
            return await self._ask_any(spec, route)

        def fetch_now(route: str) -> dict[str, Any]:
            return self.loop.run(fetch(route), TIMEOUT)

        key = _key(spec)
        if key not in self._task_sets:
            self._task_sets[key] = await tasks.load(fetch, fetch_now)
        return self._task_sets[key]

    async def functions(self, spec: WorldSpec) -> tuple[Function, ...]:
        """The kinds of actions of the world; fetched once. Raises as `open` and `ask`."""
        key = _key(spec)
        if key not in self._functions:
            said = await self._ask_any(spec, "functions")
            self._functions[key] = tuple(Function(**record) for record in said["functions"])
        return self._functions[key]

    async def _ask_any(self, spec: WorldSpec, route: str) -> dict[str, Any]:
        """What any session of the world answers: one of ours, or one that is opened for it."""
        for held in [session for session in self._sessions if session.spec == spec][:_ASKED]:
            with suppress(EnvFault):  # it is playing just now, or lost
                return (await self.ask(held, route, pauses=())).json()
        session = await self.open(spec)
        try:
            return (await self.ask(session, route)).json()
        finally:
            await self.leave(session)

    # Which server.

    async def _by_preference(self) -> list[Server]:
        if len(self._servers) > 1:
            async with self._looking:
                if time.monotonic() >= self._looked + _FRESH:
                    await asyncio.gather(*map(self._look, self._servers))
                    self._looked = time.monotonic()
        return sorted(self._servers, key=lambda server: (server.away, server.sessions, server.load))

    async def _look(self, server: Server) -> None:
        """Ask a server how it is."""
        try:
            health = (await asyncio.wait_for(self._client.request(server, "GET", "/healthz", pauses=()), 2)).json()
        except (SessionLost, TimeoutError):
            server.missed()
            return
        server.load = health.get("sessions", 0)
        server.away_until = 0.0
        if health["status"] != "ok":
            server.missed()


def _wanted(call: Reset | Step) -> tuple[str, dict[str, Any]]:
    """The route and the body of a call."""
    if isinstance(call, Step):
        action = writable(call.action)[:MAX_ACTION_CHARS]
        if isinstance(call.action, Malformed):
            return "step", {"action": action, "hint": writable(call.action.hint)}
        return "step", {"action": action}
    named = {} if call.task is None else {"task": call.task}
    return "reset", {**named, "split": call.split, **({} if call.seed is None else {"seed": int(call.seed)})}


def _key(spec: WorldSpec) -> str:
    """The same for specs of the same world."""
    return json.dumps([spec.id, _sendable(spec)], sort_keys=True)


def _sendable(spec: WorldSpec) -> dict[str, Any]:
    """The options as JSON values.

    Raises:
        ValueError: when they aren't.
    """
    try:
        return json.loads(json.dumps(dict(spec.options)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The options of {spec.id} go to a server as JSON, and {dict(spec.options)} don't: {error}."
        ) from error


_lock = threading.RLock()  # the collector may come by while it is held
_shared: dict[tuple[Any, ...], Servers] = {}


def servers(urls: str | Sequence[str], *, token: str | None = None, timeout: float = TIMEOUT) -> Servers:
    """The `Servers` of this process for the URLs, made or shared; to be closed by each who asked. See there."""
    key = (*split_urls(urls), token, timeout)
    with _lock:
        shared = _shared.get(key)
        if shared is None:
            shared = _shared[key] = Servers(urls, token=token, timeout=timeout)
        else:
            shared.users += 1
        return shared


def _forget() -> None:
    """In a forked child, which has none of its parent's threads and must leave its sessions alone."""
    global _lock
    _lock = threading.RLock()
    _shared.clear()


os.register_at_fork(after_in_child=_forget)
