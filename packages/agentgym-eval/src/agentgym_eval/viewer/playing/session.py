"""A game on a thread of its own, where its world and the policies that play it live and are closed.

Whoever looks reads `state`, which is replaced as a whole; whoever plays awaits a method, from any event loop. A policy
that goes on plays in the background until it is done, stopped or can't. Knows no pages.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from agentgym_envs import EnvFault, Player, Policy
from agentgym_envs.core.loop_thread import LoopThread

from agentgym_eval.policies.policies import find_policy
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import RunStopped, UsageError
from agentgym_eval.viewer.playing.game import Game, Standing

_PARTING = 10.0  # seconds for a world to close
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class State:
    """What there is to see."""

    version: int
    """Grows with every change."""
    standing: Standing
    playing: str
    """The policy that goes on just now; empty when it is the person's turn."""
    notice: str
    """Why what was asked for last could not be had; empty when it could."""


class Session:
    """One game, begun by `open`. Its methods may be called from any thread."""

    # Everything below the public methods runs on the session's own thread, one thing after the other.

    state: State
    """Where it stands now."""

    def __init__(self, settings: PlaySettings, environment: Mapping[str, str], idle: float) -> None:
        """Nothing is begun yet; see `open`."""
        self.settings = settings
        self._environment, self._idle = environment, idle
        self._players: dict[tuple[str, float], Policy | Player] = {}
        self._thread = LoopThread("The game")
        self._going: asyncio.Task[None] | None = None
        self._used = time.monotonic()

    @classmethod
    async def open(
        cls, settings: PlaySettings, environment: Mapping[str, str] | None = None, *, idle: float = 1800.0
    ) -> Session:
        """Begin a game.

        Args:
            settings: What is played; see `Game`.
            environment: Where policies find keys and addresses; see `find_policy`.
            idle: Seconds without a turn after which the game is left.

        Raises:
            UsageError, EnvFault: as `Game`.
        """
        session = cls(settings, environment or {}, idle)
        try:
            await session._call(session._begin())
        except BaseException:
            await asyncio.to_thread(session._thread.stop)
            raise
        return session

    async def say(self, text: str, thought: str = "") -> None:
        """The person's turn; see `Game.say`."""
        await self._call(self._say(text, thought))

    async def go_on(self, spec: str, turns: int | None = None, temperature: float = 1.0) -> None:
        """Let a policy play on; returns at once.

        Args:
            spec: The policy, as `find_policy` takes it.
            turns: The most replies that it gives; None plays to the end.
            temperature: Of language models.
        """
        await self._call(self._start(spec, turns, temperature))

    async def stop(self) -> None:
        """It is the person's turn again. A reply that a policy waits for is given up."""
        await self._call(self._stop())

    async def note(self, notice: str) -> None:
        """Say in the state why something could not be had."""
        await self._call(self._note(notice))

    async def leave(self) -> None:
        """End the game here; its world and policies are freed."""
        await self._call(self._leave())

    def close(self) -> None:
        """Leave, and end the thread. Waits some seconds for that. May be called twice."""
        with contextlib.suppress(EnvFault):  # a world that hangs is left behind with its thread, a daemon
            self._thread.run(self._leave(), _PARTING)
            self._thread.stop()

    async def _call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        self._used = time.monotonic()
        return await asyncio.wrap_future(self._thread.start(coroutine))

    async def _begin(self) -> None:
        self._game = Game(self.settings)
        self._tell(version=1)
        self._watch = asyncio.create_task(self._leave_when_idle())

    def _tell(self, notice: str = "", *, playing: str = "", version: int | None = None) -> None:
        self.state = State(version or self.state.version + 1, self._game.standing(), playing, notice)

    async def _note(self, notice: str) -> None:
        self._tell(notice, playing=self.state.playing)

    async def _say(self, text: str, thought: str) -> None:
        if self._going is not None:
            return self._tell(f"{self.state.playing} is playing; stop it first.", playing=self.state.playing)
        try:
            self._game.say(text, thought)
        except UsageError as error:
            return self._tell(str(error))
        await self._free_if_over()
        return self._tell()

    async def _start(self, spec: str, turns: int | None, temperature: float) -> None:
        if self._going is None:
            self._tell(playing=spec)
            self._going = asyncio.create_task(self._go_on(spec, turns, temperature))
            self._going.add_done_callback(self._gone)

    async def _go_on(self, spec: str, turns: int | None, temperature: float) -> None:
        if (spec, temperature) not in self._players:
            make = find_policy(spec, environment=self._environment)
            seed, most = self.settings.seed, self.settings.max_tokens
            # A model takes a while to load, which is not to keep the person from stopping it.
            made = await asyncio.to_thread(make, temperature=temperature, seed=seed, max_tokens=most)
            self._players[spec, temperature] = made
        left = turns
        while not self._game.over and left != 0:
            await self._game.ask(self._players[spec, temperature])
            left = None if left is None else left - 1
            self._used = time.monotonic()
            self._tell(playing=spec)
            await asyncio.sleep(0)  # neither an expert nor most worlds ever wait, and nobody could stop them
        await self._free_if_over()

    def _gone(self, task: asyncio.Task[None]) -> None:
        self._going = None
        error = None if task.cancelled() else task.exception()
        known = isinstance(error, UsageError | RunStopped | EnvFault)
        self._tell("" if error is None else str(error) if known else f"{self.state.playing} broke: {error!r}")

    async def _stop(self) -> None:
        if self._going is not None:
            self._going.cancel()
            await asyncio.wait([self._going])

    async def _leave(self) -> None:
        await self._stop()
        if not self._game.over:
            self._game.leave()
            await self._free_if_over()
            self._tell()

    async def _leave_when_idle(self) -> None:
        while not self._game.over:
            rest = self._used + self._idle - time.monotonic()
            if rest <= 0:
                await self._leave()
            else:
                await asyncio.sleep(rest)

    async def _free_if_over(self) -> None:
        while self._game.over and self._players:
            _, player = self._players.popitem()
            if isinstance(player, Player):
                player.leave(self._game.key)
                await player.close()
