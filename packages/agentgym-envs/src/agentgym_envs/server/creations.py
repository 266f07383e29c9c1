"""Idempotent creation of sessions: requests with the same key create one session."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentgym_envs.server.errors import Refusal
from agentgym_envs.server.session_types import Session
from agentgym_envs.server.wire import written

_TTL = 600.0  # seconds
_MAX_KEYS = 4_096


class Key(NamedTuple):
    """The idempotency key of a creation. Equal names from different clients are different keys."""

    client: str
    name: str


@dataclass(frozen=True, slots=True)
class _Creation:
    """A requested session."""

    digest: bytes
    task: asyncio.Task[Session]
    until: float


class Creations:
    """The most recent creations with keys."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._made: dict[Key, _Creation] = {}

    async def once(self, key: Key, request: object, create: Callable[[], Coroutine[Any, Any, Session]]) -> Session:
        """Return the session that was or is being created under `key`, or else the one from `create()`. The creation
        continues if the caller is cancelled. Failed creations and closed or expired sessions free their key.

        Raises:
            Refusal: `invalid` if the key was used with another `request`.
        """
        digest = hashlib.sha256(written(request)).digest()
        made = self._made.get(key)
        if made is None or self._is_over(made):
            made = self._made[key] = _Creation(digest, asyncio.create_task(create()), self._clock() + _TTL)
            if len(self._made) > _MAX_KEYS:
                del self._made[next(iter(self._made))]
        elif made.digest != digest:
            raise Refusal(422, "invalid", f"The key {key.name!r} was used for another session; use a new key.")
        try:
            return await asyncio.shield(made.task)
        except Exception:
            if self._made.get(key) is made:
                del self._made[key]
            raise

    def sweep(self) -> None:
        """Drop finished creations that are older than 10 minutes or whose session is over."""
        now = self._clock()
        done = [(key, made) for key, made in self._made.items() if made.task.done()]
        for key in [key for key, made in done if made.until <= now or self._is_over(made)]:
            del self._made[key]

    def _is_over(self, made: _Creation) -> bool:
        """Return whether the session was closed or has expired."""
        task = made.task
        if not task.done() or task.cancelled() or task.exception() is not None:
            return False
        session = task.result()
        return session.closed or (session.pending is None and session.expires <= self._clock())
