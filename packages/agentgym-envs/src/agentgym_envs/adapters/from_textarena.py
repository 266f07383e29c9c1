"""Games of TextArena for one player as text environments: `textarena:GuessTheNumber-v0`."""

from __future__ import annotations

import random
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from gymnasium.error import DependencyNotInstalled

from agentgym_envs.adapters.external import ExternalEnv
from agentgym_envs.core.feedback import EnvFault, Feedback, writable
from agentgym_envs.core.tasks import Task
from agentgym_envs.util.installation import install

try:
    import textarena  # pyright: ignore[reportMissingImports]
    from textarena.envs.registration import ENV_REGISTRY  # pyright: ignore[reportMissingImports]
except ModuleNotFoundError as missing:
    raise DependencyNotInstalled(
        f"TextArena's games need the package textarena. Install it: {install('textarena')}"
    ) from missing

_RAW = "-raw"  # the version of a game that returns new messages alone, and not all of them again
_LOCK = threading.RLock()
"""Held while a game runs: it draws from Python's global random generator, which no two may do at a time."""


class TextArenaEnv(ExternalEnv):
    """A game for one player. It has a random generator of its own, although TextArena uses the global one."""

    scheme: ClassVar[str] = "textarena"

    def __init__(self, source: str, *, settings: Mapping[str, Any] | None = None, **options: Any) -> None:
        """Create the environment without starting the game.

        Args:
            source: The game's id.
            settings: Keyword arguments of the game.
            options: See `ExternalEnv`.

        Raises:
            ValueError: if there is no such game, or options are out of range.
        """
        super().__init__(source, **options)
        names = (f"{source}{_RAW}", source)
        found = [name for name in names if name in ENV_REGISTRY]
        if not found:
            near = [name for name in ENV_REGISTRY if name.lower().startswith(source.lower()[:5]) and _RAW not in name]
            there_are = f" Similar ones: {', '.join(near[:5])}." if near else ""
            raise ValueError(f"TextArena has no game {source!r}.{there_are}")
        self._id, self._settings = found[0], dict(settings or {})
        self._game: Any = None
        self._random: Any = None

    def _described(self) -> str:
        return "You play a game. Its rules are in your first observation."

    def _begin(self, task: Task) -> str:
        seed = task.payload["seed"]
        self._random = random.Random(seed).getstate()
        with self._drawing():
            self._game = textarena.make(self._id, **self._settings)
            try:
                self._game.reset(num_players=1, seed=seed)
            except AssertionError as error:
                raise ValueError(f"{self.source} isn't a game for one player, as supported here: {error}") from error
            return self._news()

    def _take(self, action: str) -> Feedback:
        with self._drawing():
            done, _ = self._game.step(action)
            news = self._news()
            rewards, info = self._game.close() if done else ({}, {})
        if done:
            self._earn(float((rewards or {}).get(0, 0.0)))
            news = "\n\n".join(filter(None, [news, str(info.get(0, {}).get("reason") or "")]))
        wrong = getattr(self._game.state, "error_count", 0) > 0 or bool(info.get(0, {}).get("invalid_move"))
        return Feedback(news, valid=not wrong, terminated=bool(done))

    def _news(self) -> str:
        """Return the messages since the last ones, without the player's own."""
        _, messages = self._game.get_observation()
        if isinstance(messages, str):
            return writable(messages)
        own = textarena.ObservationType.PLAYER_ACTION
        return writable("\n\n".join(str(text).strip() for _, text, kind in messages if kind != own))

    @contextmanager
    def _drawing(self) -> Generator[None]:
        """Let the game draw from the global generator in a state of its own, which is kept."""
        if self._random is None:
            raise EnvFault(f"{self.name} has no game.")
        with _LOCK:
            outside = random.getstate()
            random.setstate(self._random)
            try:
                yield
            finally:
                self._random = random.getstate()
                random.setstate(outside)
