"""The resources that an environment holds open: a share of the browser, a site backend, and the episode's session."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Coroutine, Mapping
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.worlds.webarena.browser.browser import acquire
from agentgym_envs.worlds.webarena.browser.page_idle import IdleTimeouts
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.tasks.site_backend import EpisodeSetup, SiteBackend
from agentgym_envs.worlds.webarena.tasks.task_files import start_urls
from agentgym_envs.worlds.webarena.tasks.verified import is_verified

T = TypeVar("T")
_CLOSE_TIMEOUT = 60.0  # seconds


class EpisodeSession:
    """A site backend and a browser that reaches it, for one episode after another. Belongs to the creating process."""

    def __init__(
        self,
        backend: SiteBackend,
        viewport: tuple[int, int],
        executable_path: str | None,
        timeouts: IdleTimeouts | None = None,
    ) -> None:
        self.backend = backend
        self.setup = EpisodeSetup()
        """What the backend prepared for the current episode."""
        self.har: Path | None = None
        """The HAR file to which closing the session writes the episode's requests; None if no evaluator needs it."""
        self._session: Session | None = None
        self._recordings: tempfile.TemporaryDirectory[str] | None = None
        self._viewport = viewport
        self._timeouts = timeouts or IdleTimeouts()
        self._pid = os.getpid()
        self._browser = acquire(backend.hosts, executable_path)

    @property
    def in_this_process(self) -> bool:
        """Whether this process created it. A forked child must not touch its parent's session."""
        return self._pid == os.getpid()

    @property
    def in_episode(self) -> bool:
        """Whether an episode is in progress."""
        return self._session is not None

    @property
    def session(self) -> Session:
        """The browser session of the current episode.

        Raises:
            EnvFault: if there is none.
        """
        if self._session is None:
            raise EnvFault("The browser session is closed; call reset() to start another.")
        return self._session

    def run(self, work: Coroutine[Any, Any, T], timeout: float) -> T:
        """Run a coroutine on the browser's loop, with a timeout in seconds."""
        return self._browser.loop.run(work, timeout)

    async def begin(self, task: Mapping[str, Any]) -> None:
        """Prepare the sites for `task` and open its start pages.

        Raises:
            ValueError: if the task needs a site that isn't configured.
            EnvFault: if a site or the browser fails.
        """
        self.setup = await self.backend.prepare(task, self._open)
        if is_verified(task):
            self._recordings = tempfile.TemporaryDirectory(prefix="agentgym-har-")
            self.har = Path(self._recordings.name, "trace.har")
        self._session = session = await self._open(**self.setup.options, record_har_path=self.har)
        for number, url in enumerate(self.start_urls(task)):
            if number:
                await session.settle()  # the observation has the titles of all tabs
                await session.new_tab()
            if (refusal := await session.goto(url)) is not None:
                raise EnvFault(f"The task's start page can't be opened: {refusal}")
        if len(session.tabs) > 1:
            await session.settle()
        await session.focus(0)

    def start_urls(self, task: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the URLs of a task's start pages, one tab each; the first tab is the active one."""
        return start_urls(self.backend.sites.fill(dict(task)))

    async def _open(self, storage_state: Mapping[str, Any] | None = None, **options: Any) -> Session:
        return await self._browser.session(
            storage_state=storage_state, viewport=self._viewport, timeouts=self._timeouts, **options
        )

    def end(self) -> None:
        """End the current episode, if there is one."""
        session, self._session = self._session, None
        recordings, self._recordings, self.har = self._recordings, None, None
        try:
            if session is not None:
                self.run(session.close(), _CLOSE_TIMEOUT)
        finally:
            if recordings is not None:
                recordings.cleanup()
            self.backend.end_episode()

    def close(self) -> None:
        """End the episode and release browser and backend. Must be called once, by the process that created it."""
        try:
            self.end()
        finally:
            try:
                self._browser.release()
            finally:
                self.backend.close()

    def close_in_background(self) -> None:
        """Call `close` on a new thread: the finalizer of an environment, which may run on any thread."""
        if self.in_this_process:
            Thread(target=self.close, name="agentgym-closing", daemon=True).start()
