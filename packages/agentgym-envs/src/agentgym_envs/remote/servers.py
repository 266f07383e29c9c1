"""One or several servers that offer the same environments, with sessions balanced across them.

An unreachable server is avoided until it is back. Its sessions are lost, and their owners open new ones. This module
does not depend on slots or environments.
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
from typing import Any, TypeVar

import httpx

from agentgym_envs.core.action_schema import Function
from agentgym_envs.core.json_actions import function_of
from agentgym_envs.core.loop_thread import LoopThread
from agentgym_envs.core.registry import is_external
from agentgym_envs.core.tasks import TaskSet
from agentgym_envs.core.text_env import EnvFault, Malformed, writable
from agentgym_envs.pool.calls import Reset, Step, WorldSpec
from agentgym_envs.remote import tasks
from agentgym_envs.remote.answers import SessionLost, foreign
from agentgym_envs.remote.batches import Batches, PendingCall
from agentgym_envs.remote.client import PAUSES, Client, Server, split_urls

TIMEOUT = 150.0
"""Seconds without a response after which an attempt fails. The server's deadline for an environment is shorter."""
MAX_ACTION_CHARS = 65_536
"""Longest action that a server accepts; longer ones are truncated."""
_MAX_CONCURRENT_OPENS = 32  # sessions that are opened or closed concurrently
_MAX_TRIED_SESSIONS = 3  # existing sessions that are tried before a new one is opened
_LOAD_TTL = 5.0  # seconds for which a server's reported load is used
_CLOSE_TIMEOUT = 10.0  # seconds

_T = TypeVar("_T")
OnOutcome = Callable[[dict[str, Any] | Exception], None]


@dataclass(eq=False, slots=True)
class Session:
    """An environment on a server."""

    server: Server
    id: str
    spec: WorldSpec
    instructions: str
    lost: bool = field(default=False)
    """Whether the session was closed or is gone."""


class Servers:
    """A client for the servers at `urls`, with its own event-loop thread. Thread-safe, but unusable after a fork.

    Environments of a process share instances through `servers(urls)`; each user calls `close`.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        token: str | None = None,
        timeout: float = TIMEOUT,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        """Prepare the client without connecting.

        Args:
            urls: One or several URLs, also separated by commas: `http://HOST:PORT` or `http://:TOKEN@HOST:PORT`.
            token: Access token for servers whose URLs contain none.
            timeout: Seconds without a response after which an attempt fails.
            pauses: Backoff in seconds before each retry.

        Raises:
            ValueError: If a URL, the token or the timeout is invalid, or there is no URL.
        """
        if not timeout > 0:
            raise ValueError(f"The timeout must be above 0 seconds, not {timeout:g}.")
        self._servers = [Server.at(url, token) for url in split_urls(urls)]
        self.loop = LoopThread(f"The server {' or '.join(server.url for server in self._servers)}")
        self.users = 1
        tls = any(server.url.startswith("https:") for server in self._servers)
        self._client = Client(timeout=timeout, pauses=pauses, tls=tls)
        self._batches = Batches(self.loop, self._client)
        self._keys = map(f"{uuid.uuid4().hex}-{{}}".format, itertools.count())
        self._sessions: set[Session] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._task_sets: dict[str, TaskSet] = {}
        self._functions: dict[str, tuple[Function, ...]] = {}
        self._gate = asyncio.Semaphore(_MAX_CONCURRENT_OPENS)
        self._health_lock = asyncio.Lock()
        self._health_checked = -_LOAD_TTL

    def close(self) -> None:
        """Release this client. The last user's call closes the sessions and ends the thread."""
        with _lock:
            self.users -= 1
            if self.users > 0:
                return
            for key in [key for key, shared in _shared.items() if shared is self]:
                del _shared[key]
        if self.loop.current:  # garbage collection may call this on any thread, including the loop's
            threading.Thread(target=self._stop, daemon=True).start()
        else:
            self._stop()

    def _stop(self) -> None:
        if self.loop.alive:
            with suppress(EnvFault):
                self.loop.run(self._close_all(), _CLOSE_TIMEOUT)
            self.loop.stop()

    async def _close_all(self) -> None:
        self._batches.close()
        await asyncio.gather(*(self.close_session(session) for session in list(self._sessions)), *self._closing)
        await self._client.close()

    # Sessions.

    async def open(self, spec: WorldSpec) -> Session:
        """Open a session of the environment on the reachable server with the fewest sessions of this client.

        Raises:
            SessionLost: If no server opens a session.
            ValueError: If the environment does not exist or does not take the options.
            PermissionError: If the token is missing or wrong.
        """
        body = {
            "world": spec.id if is_external(spec.id) else spec.id.rpartition(":")[2],
            "options": _sendable(spec),
            "key": next(self._keys),
        }
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
        server.sessions += 1  # before the request, so that concurrent calls choose other servers
        try:
            answer = await self._client.request(server, "POST", "/v1/sessions", body, pauses=())
            try:
                made = answer.json()
                session = Session(server, made["id"], spec, made["instructions"])
            except (ValueError, KeyError, TypeError) as error:
                raise foreign(server.url, answer) from error
        except BaseException:
            server.sessions -= 1
            raise
        self._sessions.add(session)
        return session

    def mark_lost(self, session: Session) -> None:
        """Mark a session as lost and stop tracking it."""
        if not session.lost:
            session.lost = True
            session.server.sessions -= 1
            self._sessions.discard(session)

    async def close_session(self, session: Session) -> None:
        """Close a session. If the server can't be reached, the session ends when its lease expires."""
        if not session.lost:
            self.mark_lost(session)
            task = asyncio.create_task(self._delete(session))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
            await task

    async def _delete(self, session: Session) -> None:
        async with self._gate:
            with suppress(EnvFault, TimeoutError):
                request = self._client.request(session.server, "DELETE", f"/v1/sessions/{session.id}", pauses=())
                await asyncio.wait_for(request, _CLOSE_TIMEOUT / 2)

    def submit(self, session: Session, call: Reset | Step, on_outcome: OnOutcome) -> None:
        """Submit `call` from any thread. `on_outcome` gets its outcome or an error, on the loop's thread.

        Raises:
            RuntimeError: If this client is closed.
            TypeError: If an action is not text.
        """
        kind, fields = _request_fields(call)
        body = json.dumps({"session": session.id, "key": next(self._keys), **fields})
        self._batches.send(PendingCall(session.server, f"/v1/{kind}", body, on_outcome))

    async def get(self, session: Session, route: str, *, pauses: Sequence[float] | None = None) -> httpx.Response:
        """Send a GET request to `route` below the session.

        Args:
            session: A session of this client.
            route: A route such as `oracle`.
            pauses: Backoff in seconds before each retry, if not the client's.

        Raises:
            SessionLost: If the session is gone or its server is unreachable.
            Exception: The error that the server responded with.
        """
        try:
            return await self._client.request(
                session.server, "GET", f"/v1/sessions/{session.id}/{route}", pauses=pauses
            )
        except SessionLost:
            self.mark_lost(session)
            raise

    async def get_json(
        self, session: Session, route: str, read: Callable[[Any], _T], *, pauses: Sequence[float] | None = None
    ) -> _T:
        """Return what `read` makes of the JSON value that a GET request to `route` gets; it raises the errors of `get`.

        Raises:
            SessionLost: Also if it is another answer than `read` expects, such as the page of a proxy.
        """
        answer = await self.get(session, route, pauses=pauses)
        try:
            return read(answer.json())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise foreign(session.server.url, answer) from error

    async def tasks(self, spec: WorldSpec) -> TaskSet:
        """Return the tasks of the environment, which are fetched once. Raises the errors of `open` and `get`."""

        async def fetch(route: str) -> tasks.Page:
            return await self._get_from_any(spec, route, tasks.read_page)

        def fetch_now(route: str) -> tasks.Page:
            return self.loop.run(fetch(route), TIMEOUT)

        key = _key(spec)
        if key not in self._task_sets:
            self._task_sets[key] = await tasks.load(fetch, fetch_now)
        return self._task_sets[key]

    async def functions(self, spec: WorldSpec) -> tuple[Function, ...]:
        """Return the environment's action functions, which are fetched once. Raises the errors of `open` and `get`."""
        key = _key(spec)
        if key not in self._functions:
            self._functions[key] = await self._get_from_any(spec, "functions", _read_functions)
        return self._functions[key]

    async def _get_from_any(self, spec: WorldSpec, route: str, read: Callable[[Any], _T]) -> _T:
        """Send a GET request to an existing session of the environment, or to a temporary one."""
        for existing in [session for session in self._sessions if session.spec == spec][:_MAX_TRIED_SESSIONS]:
            with suppress(EnvFault):  # it is busy or lost
                return await self.get_json(existing, route, read, pauses=())
        session = await self.open(spec)
        try:
            return await self.get_json(session, route, read)
        finally:
            await self.close_session(session)

    # Choice of the server.

    async def _by_preference(self) -> list[Server]:
        if len(self._servers) > 1:
            async with self._health_lock:
                if time.monotonic() >= self._health_checked + _LOAD_TTL:
                    await asyncio.gather(*map(self._check_health, self._servers))
                    self._health_checked = time.monotonic()
        return sorted(self._servers, key=lambda server: (server.away, server.sessions, server.load))

    async def _check_health(self, server: Server) -> None:
        """Update a server's load and reachability."""
        try:
            health = (await asyncio.wait_for(self._client.request(server, "GET", "/healthz", pauses=()), 2)).json()
            server.load, ok = health["sessions"], health["status"] == "ok"
        except (SessionLost, TimeoutError, ValueError, KeyError, TypeError):  # the last three: another kind of server
            ok = False
        server.away_until = 0.0
        if not ok:
            server.missed()


def _read_functions(found: Any) -> tuple[Function, ...]:
    return tuple(map(function_of, found["functions"]))


def _request_fields(call: Reset | Step) -> tuple[str, dict[str, Any]]:
    """Return the route and the JSON fields of a call. Raises TypeError if the action is not text."""
    if isinstance(call, Step):
        if not isinstance(call.action, str):
            raise TypeError(f"An action must be text (str), not {type(call.action).__name__}.")
        action = writable(call.action)[:MAX_ACTION_CHARS]
        if isinstance(call.action, Malformed):
            return "step", {"action": action, "hint": writable(call.action.hint)}
        return "step", {"action": action}
    task = {} if call.task is None else {"task": call.task}
    return "reset", {**task, "split": call.split, **({} if call.seed is None else {"seed": int(call.seed)})}


def _key(spec: WorldSpec) -> str:
    """Return a key that is equal for equal specs."""
    return json.dumps([spec.id, _sendable(spec)], sort_keys=True)


def _sendable(spec: WorldSpec) -> dict[str, Any]:
    """Return the options as JSON values.

    Raises:
        ValueError: If they can't be represented in JSON.
    """
    try:
        return json.loads(json.dumps(dict(spec.options), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The options of {spec.id} are sent to a server as JSON, but {dict(spec.options)} can't be: {error}."
        ) from error


_lock = threading.RLock()  # reentrant, since garbage collection may call `close` while it is held
_shared: dict[tuple[Any, ...], Servers] = {}


def servers(urls: str | Sequence[str], *, token: str | None = None, timeout: float = TIMEOUT) -> Servers:
    """Return the process-wide `Servers` for these arguments. Each caller must call `close` on it."""
    key = (*split_urls(urls), token, timeout)
    with _lock:
        shared = _shared.get(key)
        if shared is None:
            shared = _shared[key] = Servers(urls, token=token, timeout=timeout)
        else:
            shared.users += 1
        return shared


def _after_fork() -> None:
    """Drop the parent's clients: a forked child lacks the parent's threads and must not use its sessions."""
    global _lock
    _lock = threading.RLock()
    _shared.clear()


os.register_at_fork(after_in_child=_after_fork)
