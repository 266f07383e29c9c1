"""All games that are played at once: so many worlds, and no more of them than a machine bears."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path

from agentgym_eval.runs.settings import PlaySettings
from agentgym_eval.util.errors import UsageError
from agentgym_eval.viewer.playing.saving import save
from agentgym_eval.viewer.playing.session import Session

_MOST_LIVE = 8
_MOST_KEPT = 64


class Table:
    """Sessions by their keys, which nobody can guess."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None, *, most: int = _MOST_LIVE) -> None:
        """No game yet.

        Args:
            folder: Below which games are saved; beside it where it is a file.
            environment: Where policies find keys and addresses.
            most: How many games may be under way.
        """
        self.folder = folder if folder.is_dir() else folder.parent
        self.sessions: dict[str, Session] = {}
        """Those under way and the last that are over, the oldest first."""
        self.saved: dict[str, Path] = {}
        """Where those that are saved lie."""
        self._environment, self._most = environment or {}, most
        self._opening = 0

    async def open(self, settings: PlaySettings) -> str:
        """Begin a game. Returns its key.

        Raises:
            UsageError: when too many are under way, and as `Session.open`.
            EnvFault: as `Session.open`.
        """
        live = [key for key, session in self.sessions.items() if not session.state.standing.over]
        if len(live) + self._opening >= self._most:
            raise UsageError(f"{self._most} games are under way, and no more can be; leave one of them first.")
        self._opening += 1
        try:
            session = await Session.open(settings, self._environment)
        finally:
            self._opening -= 1
        key = secrets.token_urlsafe(12)
        self.sessions[key] = session
        await self._forget()
        return key

    async def save(self, key: str) -> Path:
        """Save the game as it stands; a game that is saved already is not saved again. Returns its run's folder.

        Raises:
            UsageError: when it isn't over or can't be saved; see `save`.
        """
        session = self.sessions[key]
        standing = session.state.standing
        if not standing.over:
            raise UsageError("This game is still under way; end it before you save it.")
        if key not in self.saved:
            self.saved[key] = save(self.folder, session.settings, standing.episode)
        return self.saved[key]

    async def close(self) -> None:
        """Close all games."""
        await asyncio.gather(*(asyncio.to_thread(session.close) for session in self.sessions.values()))
        self.sessions.clear()

    async def _forget(self) -> None:
        over = [key for key, session in self.sessions.items() if session.state.standing.over]
        for key in over[: max(0, len(over) - _MOST_KEPT)]:
            session = self.sessions.pop(key)
            self.saved.pop(key, None)
            await asyncio.to_thread(session.close)
