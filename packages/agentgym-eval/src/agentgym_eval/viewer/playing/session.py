"""A game with its own thread, on which its environment and policies are created, used and closed.

Readers use `state`, which is replaced as a whole; writers await methods, from any event loop. A policy that has taken
over plays in the background until the game is over, its turns are used up, it is stopped, or it fails.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from agentgym_envs import EnvFault, Policy
from agentgym_envs.core.loop_thread import LoopThread

from agentgym_eval.policies.objects import guarded
from agentgym_eval.policies.policies import find_policy
from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import RunStopped, UsageError
from agentgym_eval.viewer.playing.game import Game, GameState

_CLOSE_TIMEOUT_S = 10.0
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class SessionState:
    """A snapshot of a session."""

    version: int
    """Increases with every change."""
    game: GameState
    playing: str
    """The policy that is playing now; empty when it is the human's turn."""
    notice: str
    """Why the last request failed; empty if it succeeded."""


class Session:
    """One game, created by `open`. All methods are thread-safe."""

    # The private coroutines all run on the session's own thread, one at a time.

    state: SessionState
    """The current state."""

    def __init__(self, settings: PlaySettings, environment: Mapping[str, str], idle: float) -> None:
        """Prepare a session without starting it; use `open` instead."""
        self.settings = settings
        self._environment, self._idle = environment, idle
        self._policies: dict[tuple[str, float], Policy] = {}
        self._thread = LoopThread("The game")
        self._policy_task: asyncio.Task[None] | None = None
        self._last_used = time.monotonic()

    @classmethod
    async def open(
        cls, settings: PlaySettings, environment: Mapping[str, str] | None = None, *, idle: float = 1800.0
    ) -> Session:
        """Start a game in a new session.

        Args:
            settings: What to play; see `Game`.
            environment: Environment variables with the keys and addresses of policies; see `find_policy`.
            idle: Seconds without a turn after which the game is ended.

        Raises:
            UsageError, EnvFault: as `Game`.
        """
        session = cls(settings, environment or {}, idle)
        try:
            await session._call(session._start_game())
        except BaseException:
            await asyncio.to_thread(session._thread.stop)
            raise
        return session

    async def reply(self, text: str, thought: str = "") -> None:
        """Play the human's reply; see `Game.reply`."""
        await self._call(self._reply(text, thought))

    async def hand_over(self, spec: str, turns: int | None = None, temperature: float = 1.0) -> None:
        """Let a policy continue the game in the background; returns without waiting for it.

        Args:
            spec: The policy, as `find_policy` takes it.
            turns: The maximum number of replies; None plays to the end.
            temperature: Sampling temperature of language models.
        """
        await self._call(self._hand_over(spec, turns, temperature))

    async def stop(self) -> None:
        """Stop the policy and cancel its pending reply; it is the human's turn again."""
        await self._call(self._stop())

    async def set_notice(self, notice: str) -> None:
        """Set the notice in the state, which tells the human why a request failed."""
        await self._call(self._set_notice(notice))

    async def leave(self) -> None:
        """End the game and free its environment and policies."""
        await self._call(self._leave())

    def close(self) -> None:
        """End the game and stop the thread, waiting up to 10 seconds. Can be called twice."""
        with contextlib.suppress(EnvFault):  # if the environment hangs, its daemon thread is abandoned
            self._thread.run(self._leave(), _CLOSE_TIMEOUT_S)
            self._thread.stop()

    async def _call(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        self._last_used = time.monotonic()
        return await asyncio.wrap_future(self._thread.start(coroutine))

    async def _start_game(self) -> None:
        self._game = Game(self.settings)
        self._update(version=1)
        self._idle_task = asyncio.create_task(self._leave_when_idle())

    def _update(self, notice: str = "", *, playing: str = "", version: int | None = None) -> None:
        self.state = SessionState(version or self.state.version + 1, self._game.state(), playing, notice)

    async def _set_notice(self, notice: str) -> None:
        self._update(notice, playing=self.state.playing)

    async def _reply(self, text: str, thought: str) -> None:
        if self._policy_task is not None:
            return self._update(f"{self.state.playing} is playing; stop it first.", playing=self.state.playing)
        try:
            self._game.reply(text, thought)
        except UsageError as error:
            return self._update(str(error))
        await self._free_policies_if_over()
        return self._update()

    async def _hand_over(self, spec: str, turns: int | None, temperature: float) -> None:
        if self._policy_task is None:
            self._update(playing=spec)
            self._policy_task = asyncio.create_task(self._run_policy(spec, turns, temperature))
            self._policy_task.add_done_callback(self._policy_done)

    async def _run_policy(self, spec: str, turns: int | None, temperature: float) -> None:
        if (spec, temperature) not in self._policies:
            make = find_policy(spec, environment=self._environment)
            seed, max_tokens = self.settings.seed, self.settings.max_tokens
            # Loading a model takes a while; in a worker thread it doesn't block `stop`.
            policy = await asyncio.to_thread(make, temperature=temperature, seed=seed, max_tokens=max_tokens)
            self._policies[spec, temperature] = guarded(policy, spec)
        left = turns
        while not self._game.over and left != 0:
            await self._game.reply_with(self._policies[spec, temperature])
            left = None if left is None else left - 1
            self._last_used = time.monotonic()
            self._update(playing=spec)
            await asyncio.sleep(0)  # experts and most environments never await, so without this `stop` could not run
        await self._free_policies_if_over()

    def _policy_done(self, task: asyncio.Task[None]) -> None:
        self._policy_task = None
        error = None if task.cancelled() else task.exception()
        expected = isinstance(error, UsageError | RunStopped | EnvFault)
        self._update("" if error is None else str(error) if expected else f"{self.state.playing} failed: {error!r}")

    async def _stop(self) -> None:
        if self._policy_task is not None:
            self._policy_task.cancel()
            await asyncio.wait([self._policy_task])

    async def _leave(self) -> None:
        await self._stop()
        if not self._game.over:
            self._game.leave()
            await self._free_policies_if_over()
            self._update()

    async def _leave_when_idle(self) -> None:
        while not self._game.over:
            remaining = self._last_used + self._idle - time.monotonic()
            if remaining <= 0:
                await self._leave()
            else:
                await asyncio.sleep(remaining)

    async def _free_policies_if_over(self) -> None:
        while self._game.over and self._policies:
            _, policy = self._policies.popitem()
            policy.forget(self._game.key)
            await policy.close()
