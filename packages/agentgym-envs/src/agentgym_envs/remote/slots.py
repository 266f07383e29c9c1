"""Slots whose environments run on servers, as sessions. This module does not depend on HTTP."""

from __future__ import annotations

import asyncio
import concurrent.futures
from functools import partial
from operator import itemgetter
from typing import Any

from gymnasium.error import ResetNeeded

from agentgym_envs.pool.calls import Ask, Call, Done, Reset, Result, Step, WorldSpec
from agentgym_envs.remote.answers import SessionLost, result
from agentgym_envs.remote.servers import Servers, Session
from agentgym_envs.util.images import pixels

__all__ = ["RemoteSlot", "Servers"]

_EPISODE_FIELDS = {"oracle": "action", "oracle_thought": "thought", "oracle_plan": "plan", "scene": "scene"}
"""Attributes that need a running episode: the route below a session, and the field of the response."""
_ATTRIBUTES = ("functions", "instructions", *_EPISODE_FIELDS, "render", "tasks")


class _Generation:
    """The session that a slot uses between two calls of `replace`."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.over = False

    @property
    def held(self) -> Session | None:
        """Return the session, or None if there is none or it is lost."""
        return None if self.session is None or self.session.lost else self.session


class RemoteSlot:
    """A slot whose environment is a session on one of `servers`, opened by the first call that needs it.

    `Ask` takes `functions`, `instructions`, `oracle`, `oracle_thought`, `oracle_plan`, `scene`, `render` and `tasks`.
    """

    def __init__(self, number: int, spec: WorldSpec, servers: Servers) -> None:
        self.number = number
        self._spec = spec
        self._servers = servers
        self._generation = _Generation()
        self._closing: list[concurrent.futures.Future[None]] = []

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`."""
        generation = self._generation
        session = generation.held
        try:
            if isinstance(call, Step) and session is not None:  # no coroutine, which would be most of a step's cost
                self._servers.submit(session, call, partial(self._on_outcome, session, done))
            else:
                self._servers.loop.start(self._carry_out(generation, call, done))
        except TypeError as error:
            done(Result(self.number, error=error))
        except RuntimeError as error:
            done(Result(self.number, error=SessionLost(f"The connection to the servers is closed: {error}")))

    def replace(self) -> None:
        """See `Slot.replace`. Closes the session."""
        generation, self._generation = self._generation, _Generation()
        generation.over = True
        session = generation.held
        if session is not None and self._servers.loop.alive:
            self._closing = [future for future in self._closing if not future.done()]
            self._closing.append(self._servers.loop.start(self._servers.close_session(session)))

    def close(self) -> None:
        """See `Slot.close`."""
        self.replace()

    def join(self, timeout: float) -> bool:
        """See `Slot.join`."""
        return not concurrent.futures.wait(self._closing, timeout).not_done

    def _on_outcome(self, session: Session, done: Done, outcome: dict[str, Any] | Exception) -> None:
        if isinstance(outcome, SessionLost):
            self._servers.mark_lost(session)
        done(Result(self.number, error=outcome) if isinstance(outcome, Exception) else result(self.number, outcome))

    async def _carry_out(self, generation: _Generation, call: Call, done: Done) -> None:
        try:
            done(await self._result(generation, call))
        except asyncio.CancelledError:
            done(
                Result(self.number, error=SessionLost("The connection to the servers was closed before they answered."))
            )
            raise
        except Exception as error:  # noqa: BLE001 - the caller gets it in the result
            done(Result(self.number, error=error))

    async def _result(self, generation: _Generation, call: Call) -> Result:
        match call:
            case Reset():
                return await self._reset(generation, call)
            case Ask(name, ()) if name in _ATTRIBUTES:
                return Result(self.number, value=await self._attribute(generation, name))
            case Ask(name, arguments):
                requested = f"{name}{arguments}" if arguments else name
                raise ValueError(
                    f"An environment on a server has no {requested}; it has {', '.join(_ATTRIBUTES)}. "
                    "None of them takes arguments."
                )
            case Step() if generation.session is None:
                raise ResetNeeded("No episode is running; call reset before the first step.")
            case Step():
                raise SessionLost("The session was lost with its environment; reset() opens a new one.")

    async def _reset(self, generation: _Generation, call: Reset) -> Result:
        if (held := generation.held) is not None:
            outcome = await self._send_reset(held, call)
            if not isinstance(outcome.error, SessionLost):
                return outcome
            # the lease ended between episodes or the server went away: a new session is as good for a reset
        return await self._send_reset(await self._session(generation), call)

    async def _send_reset(self, session: Session, call: Reset) -> Result:
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._servers.submit(session, call, partial(self._on_outcome, session, partial(_set_result, future)))
        return await future

    async def _attribute(self, generation: _Generation, name: str) -> Any:
        if name == "tasks":
            return await self._servers.tasks(self._spec)
        if name == "functions":
            return await self._servers.functions(self._spec)
        if name == "render" and self._spec.options.get("render_mode") is None:
            return None  # as for a local environment without a render mode
        session = await self._session(generation)
        if name == "instructions":
            return session.instructions
        if field := _EPISODE_FIELDS.get(name):
            return await self._servers.get_json(session, name, itemgetter(field))
        response = await self._servers.get(session, name)
        return pixels(response.content) if response.headers["content-type"] == "image/png" else response.text

    async def _session(self, generation: _Generation) -> Session:
        """Return the current session, or open a new one."""
        if (held := generation.held) is not None:
            return held
        session = await self._servers.open(self._spec)
        if generation.over:
            await self._servers.close_session(session)
            raise SessionLost("The slot was replaced while its session was opened.")
        generation.session = session
        return session


def _set_result(future: asyncio.Future[Result], result: Result) -> None:
    if not future.done():  # it is cancelled when the loop stops
        future.set_result(result)
