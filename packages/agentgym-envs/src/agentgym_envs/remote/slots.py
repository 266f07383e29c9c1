"""Slots whose worlds are on servers. Knows sessions by name, and nothing of HTTP."""

from __future__ import annotations

import asyncio
import concurrent.futures
from functools import partial
from typing import Any

from gymnasium.error import ResetNeeded

from agentgym_envs.pool.calls import Ask, Call, Done, Reset, Result, Step, WorldSpec
from agentgym_envs.remote.answers import SessionLost, pixels, result
from agentgym_envs.remote.servers import Servers, Session

__all__ = ["RemoteSlot", "Servers"]

_SPOKEN = {"oracle": "action", "oracle_thought": "thought", "oracle_plan": "plan", "scene": "scene"}
"""What can be asked of a task in play: routes below a session, and the field of each answer."""
_ASKABLE = ("functions", "instructions", *_SPOKEN, "render", "tasks")


class _Stay:
    """The time between two `replace`s, with the session that is held in it."""

    def __init__(self) -> None:
        self.session: Session | None = None
        self.over = False

    @property
    def held(self) -> Session | None:
        """The session, unless it is lost."""
        return None if self.session is None or self.session.lost else self.session


class RemoteSlot:
    """A slot whose world is a session on one of `servers`, opened by the first call that needs it.

    What can be asked is `functions`, `instructions`, `oracle`, `oracle_thought`, `oracle_plan`, `scene`, `render` and
    `tasks`.
    """

    def __init__(self, number: int, spec: WorldSpec, servers: Servers) -> None:
        self.number = number
        self._spec = spec
        self._servers = servers
        self._stay = _Stay()
        self._leaving: list[concurrent.futures.Future[None]] = []

    def submit(self, call: Call, done: Done) -> None:
        """See `Slot.submit`."""
        stay = self._stay
        session = stay.held
        try:
            if isinstance(call, Step) and session is not None:  # without a coroutine, which would cost most of it
                self._servers.play(session, call, partial(self._settle, session, done))
            else:
                self._servers.loop.start(self._carry_out(stay, call, done))
        except RuntimeError as error:
            done(Result(self.number, error=SessionLost(f"The connection to the servers is closed: {error}")))

    def replace(self) -> None:
        """See `Slot.replace`: the session is given back."""
        stay, self._stay = self._stay, _Stay()
        stay.over = True
        session = stay.held
        if session is not None and self._servers.loop.alive:
            self._leaving = [left for left in self._leaving if not left.done()]
            self._leaving.append(self._servers.loop.start(self._servers.leave(session)))

    def close(self) -> None:
        """See `Slot.close`."""
        self.replace()

    def join(self, patience: float) -> bool:
        """See `Slot.join`."""
        return not concurrent.futures.wait(self._leaving, patience).not_done

    def _settle(self, session: Session, done: Done, said: dict[str, Any] | Exception) -> None:
        if isinstance(said, SessionLost):
            self._servers.forget(session)
        done(Result(self.number, error=said) if isinstance(said, Exception) else result(self.number, said))

    async def _carry_out(self, stay: _Stay, call: Call, done: Done) -> None:
        try:
            done(await self._result(stay, call))
        except asyncio.CancelledError:
            done(
                Result(self.number, error=SessionLost("The connection to the servers was closed before they answered."))
            )
            raise
        except Exception as error:  # noqa: BLE001 - it reaches the caller in the result
            done(Result(self.number, error=error))

    async def _result(self, stay: _Stay, call: Call) -> Result:
        match call:
            case Reset():
                return await self._reset(stay, call)
            case Ask(name, ()) if name in _ASKABLE:
                return Result(self.number, value=await self._answer(stay, name))
            case Ask(name, arguments):
                asked = f"{name}{arguments}" if arguments else name
                raise ValueError(f"A world on a server can't be asked for {asked}; it has {', '.join(_ASKABLE)}.")
            case Step() if stay.session is None:
                raise ResetNeeded("No task is being played yet: reset comes before the first step.")
            case Step():
                raise SessionLost("The session was lost with its world; reset() opens another.")

    async def _reset(self, stay: _Stay, call: Reset) -> Result:
        if (held := stay.held) is not None:
            played = await self._played(held, call)
            if not isinstance(played.error, SessionLost):
                return played
            # a lease that ended between episodes, or a server that went: nothing is lost that reset doesn't bring back
        return await self._played(await self._session(stay), call)

    async def _played(self, session: Session, call: Reset) -> Result:
        settled: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._servers.play(session, call, partial(self._settle, session, partial(_tell, settled)))
        return await settled

    async def _answer(self, stay: _Stay, name: str) -> Any:
        if name == "tasks":
            return await self._servers.tasks(self._spec)
        if name == "functions":
            return await self._servers.functions(self._spec)
        if name == "render" and self._spec.options.get("render_mode") is None:
            return None  # as of any world that was made without
        session = await self._session(stay)
        if name == "instructions":
            return session.instructions
        answer = await self._servers.ask(session, name)
        if name in _SPOKEN:
            return answer.json()[_SPOKEN[name]]
        return pixels(answer.content) if answer.headers["content-type"] == "image/png" else answer.text

    async def _session(self, stay: _Stay) -> Session:
        """The one that is held, or else a new one."""
        if (held := stay.held) is not None:
            return held
        session = await self._servers.open(self._spec)
        if stay.over:
            await self._servers.leave(session)
            raise SessionLost("The slot was replaced while its session was opened.")
        stay.session = session
        return session


def _tell(settled: asyncio.Future[Result], played: Result) -> None:
    """Nobody waits any more when the loop is on its way out."""
    if not settled.done():
        settled.set_result(played)
