"""What creations remember: a session that was asked for under a key is made once, however often it is asked for."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, NamedTuple

from agentgym_envs.server.errors import Refusal
from agentgym_envs.server.session_types import Session
from agentgym_envs.server.wire import written

_MEMORY = 600.0  # seconds
_MOST = 4_096


class Key(NamedTuple):
    """What a creation can be repeated under: the same name from another client is another key."""

    client: str
    name: str


@dataclass(frozen=True, slots=True)
class _Creation:
    """A session that was asked for."""

    wanted: bytes
    task: asyncio.Task[Session]
    until: float


class Creations:
    """The last creations that had keys."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._made: dict[Key, _Creation] = {}

    async def once(self, key: Key, wanted: object, create: Callable[[], Coroutine[Any, Any, Session]]) -> Session:
        """The session that was made, or is being made, under `key`; else that of `create()`, which goes on when its
        caller leaves. A creation that failed, and a session that was closed or has expired, free their key.

        Raises:
            Refusal: `invalid` when something else than `wanted` was asked for under this key.
        """
        digest = hashlib.sha256(written(wanted)).digest()
        made = self._made.get(key)
        if made is None or self._is_over(made):
            made = self._made[key] = _Creation(digest, asyncio.create_task(create()), self._clock() + _MEMORY)
            if len(self._made) > _MOST:
                del self._made[next(iter(self._made))]
        elif made.wanted != digest:
            raise Refusal(422, "invalid", f"The key {key.name!r} was used for another session; take a new one.")
        try:
            return await asyncio.shield(made.task)
        except Exception:
            if self._made.get(key) is made:
                del self._made[key]
            raise

    def sweep(self) -> None:
        """Forget what was made some minutes ago."""
        now = self._clock()
        done = [(key, made) for key, made in self._made.items() if made.task.done()]
        for key in [key for key, made in done if made.until <= now or self._is_over(made)]:
            del self._made[key]

    def _is_over(self, made: _Creation) -> bool:
        """Whether nobody can play in the session any more."""
        task = made.task
        if not task.done() or task.cancelled() or task.exception() is not None:
            return False
        session = task.result()
        return session.closed or (session.play is None and session.expires <= self._clock())
