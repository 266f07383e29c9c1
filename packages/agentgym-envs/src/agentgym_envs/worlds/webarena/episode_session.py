"""What a world holds open: a place in the process's browser, its venue, and the session of the episode being played."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Coroutine, Mapping
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.browser import acquire
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.tasks.site_backend import Entry, Venue
from agentgym_envs.worlds.webarena.tasks.task_files import start_urls
from agentgym_envs.worlds.webarena.tasks.verified import is_verified

T = TypeVar("T")
_CLOSING = 60.0  # seconds


class Stage:
    """A venue and a browser that reaches it, for one episode after another. Belongs to the process that made it."""

    def __init__(self, venue: Venue, viewport: tuple[int, int], executable_path: str | None) -> None:
        self.venue = venue
        self.entry = Entry()
        """How the episode began."""
        self.har: Path | None = None
        """Where the episode's requests are recorded when its session closes, if its judge asks for them."""
        self._session: Session | None = None
        self._recordings: tempfile.TemporaryDirectory[str] | None = None
        self._viewport = viewport
        self._pid = os.getpid()
        self._browser = acquire(venue.hosts, executable_path)

    @property
    def ours(self) -> bool:
        """Whether it belongs to this process; a forked child must leave its parent's alone."""
        return self._pid == os.getpid()

    @property
    def playing(self) -> bool:
        """Whether an episode is being played."""
        return self._session is not None

    @property
    def session(self) -> Session:
        """The episode's session.

        Raises:
            EnvFault: when there is none.
        """
        if self._session is None:
            raise EnvFault("The browser's session is over; reset() begins another.")
        return self._session

    def run(self, work: Coroutine[Any, Any, T], patience: float) -> T:
        """Have something done on the browser's loop, within `patience` seconds."""
        return self._browser.loop.run(work, patience)

    async def begin(self, task: Mapping[str, Any]) -> None:
        """Prepare the venue for `task` and open its first pages.

        Raises:
            ValueError: when the task needs a site that there isn't.
            EnvFault: when a site or the browser fails.
        """
        self.entry = await self.venue.enter(task, self._open)
        if is_verified(task):
            self._recordings = tempfile.TemporaryDirectory(prefix="agentgym-har-")
            self.har = Path(self._recordings.name, "trace.har")
        self._session = session = await self._open(**self.entry.options, record_har_path=self.har)
        for number, url in enumerate(start_urls(self.venue.sites.fill(dict(task)))):
            if number:
                await session.new_tab()
            if (refusal := await session.goto(url)) is not None:
                raise EnvFault(f"The task's first page can't be opened: {refusal}")
        await session.focus(0)

    async def _open(self, storage_state: Mapping[str, Any] | None = None, **options: Any) -> Session:
        return await self._browser.session(storage_state=storage_state, viewport=self._viewport, **options)

    def end(self) -> None:
        """End the episode, if there is one."""
        session, self._session = self._session, None
        recordings, self._recordings, self.har = self._recordings, None, None
        try:
            if session is not None:
                self.run(session.close(), _CLOSING)
        finally:
            if recordings is not None:
                recordings.cleanup()
            self.venue.leave()

    def close(self) -> None:
        """End the episode and give back browser and venue. To be called once, by the process that made it."""
        try:
            self.end()
        finally:
            try:
                self._browser.release()
            finally:
                self.venue.close()

    def forsake(self) -> None:
        """`close` without waiting for it: for a world that nobody knows any more, wherever it is collected."""
        if self.ours:
            Thread(target=self.close, name="agentgym-closing", daemon=True).start()
