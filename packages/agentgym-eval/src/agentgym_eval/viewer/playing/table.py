"""All open sessions, with a limit on the number of live environments."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path

from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.playing.saving import save
from agentgym_eval.viewer.playing.session import Session

_MAX_LIVE = 8
_MAX_FINISHED = 64


class SessionManager:
    """Opens, saves and closes sessions. Their keys are random, so they can't be guessed."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, *, most: int = _MAX_LIVE) -> None:
        """Create a manager without sessions.

        Args:
            folder: The folder below which games are saved; if it is a file, its parent folder.
            environment: Environment variables with the keys and addresses of policies.
            most: Maximum number of games in progress.
        """
        self.folder = folder.parent if folder.is_file() else folder
        self.sessions: dict[str, Session] = {}
        """The sessions in progress and the most recent finished ones, oldest first."""
        self.saved: dict[str, Path] = {}
        """The run folders of saved games, by session key."""
        self._environment, self._most = environment or {}, most
        self._opening = 0

    async def open(self, settings: PlaySettings) -> str:
        """Start a game and return the key of its session.

        Raises:
            UsageError: if too many games are in progress, and as `Session.open`.
            EnvFault: as `Session.open`.
        """
        live = [key for key, session in self.sessions.items() if not session.state.game.over]
        if len(live) + self._opening >= self._most:
            raise UsageError(f"{self._most} games are in progress, which is the maximum; end one of them first.")
        self._opening += 1
        try:
            session = await Session.open(settings, self._environment)
        finally:
            self._opening -= 1
        key = secrets.token_urlsafe(12)
        self.sessions[key] = session
        await self._evict()
        return key

    async def save(self, key: str) -> Path:
        """Save a finished game once and return its run folder.

        Raises:
            UsageError: if the game isn't over or can't be saved; see `save`.
        """
        session = self.sessions[key]
        game = session.state.game
        if not game.over:
            raise UsageError("This game is still in progress; end it before you save it.")
        if key not in self.saved:
            self.saved[key] = save(self.folder, session.settings, game.episode)
        return self.saved[key]

    async def close(self) -> None:
        """Close all sessions."""
        await asyncio.gather(*(asyncio.to_thread(session.close) for session in self.sessions.values()))
        self.sessions.clear()

    async def _evict(self) -> None:
        finished = [key for key, session in self.sessions.items() if session.state.game.over]
        for key in finished[: max(0, len(finished) - _MAX_FINISHED)]:
            session = self.sessions.pop(key)
            self.saved.pop(key, None)
            await asyncio.to_thread(session.close)
