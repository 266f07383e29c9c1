"""The oracle on pages of MiniWoB++: it follows the page's script, and begins it again after another's action."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from agentgym_envs.worlds.webarena.miniwob.page_task import PageTask
from agentgym_envs.worlds.webarena.miniwob.scripts import SCRIPTS
from agentgym_envs.worlds.webarena.miniwob.view import NotFound, View
from agentgym_envs.worlds.webarena.page.snapshot import Snapshot

_LOST = "wait [1]"


class ScriptedExpert:
    """Follows a page's script. `next` returns the next action without side effects on the page."""

    def __init__(self, task: PageTask, objective: str, snapshot: Snapshot) -> None:
        self._name = task.page
        self._view = View(snapshot, objective, task.fields)
        self._script: Iterator[str] | None = None
        self._pending: str | None = None

    def next(self) -> str:
        """Return the next action on the current page: `wait [1]` if the script finds no way on.

        Raises:
            ValueError: if the page has no script.
        """
        if self._name not in SCRIPTS:
            raise ValueError(
                f"The page {self._name} of MiniWoB++ has no script, so it can't be played by the oracle. Leave it out "
                "of `pages`, or play it with another policy."
            )
        if self._pending is None:
            self._pending = self._advance()
        return self._pending

    def record(self, action: str, snapshot: Snapshot, *, valid: bool) -> None:
        """Take note of an action that was performed, and of the page after it."""
        if not valid or action != self._pending:
            self._script = None
        self._pending = None
        self._view.page = snapshot

    def _advance(self) -> str:
        with suppress(NotFound):
            if self._script is not None and (action := next(self._script, None)) is not None:
                return action
        with suppress(NotFound):  # at the start, after another's action, or at the script's end: from here
            self._script = SCRIPTS[self._name](self._view)
            if (action := next(self._script, None)) is not None:
                return action
        self._script = None
        return _LOST
