"""Where tasks are done: on the embedded sites, or on real ones by URL. Knows how an episode begins and ends there, and
nothing of pages, actions or answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agentgym_envs.worlds.webarena.browser.login import Accounts, OpenSession, shared_logins
from agentgym_envs.worlds.webarena.browser.site_urls import Sites, needed
from agentgym_envs.worlds.webarena.sites import process
from agentgym_envs.worlds.webarena.sites.directory import EPISODE_HEADER, PLACES, SESSION_COOKIE
from agentgym_envs.worlds.webarena.tasks.reset_hook import ResetHook
from agentgym_envs.worlds.webarena.tasks.site_health import check_health

_CHANGES = slice(24, 28)  # of a SQLite file: a counter of the transactions that wrote to it


@dataclass(frozen=True, slots=True)
class Entry:
    """What a browser needs to begin an episode, and a judge to end it."""

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the browser's session: its headers, cookies, stored state."""
    databases: Mapping[str, Path] | None = None
    """The SQLite file of each site, where they can be looked into."""

    def changes(self) -> str:
        """Tells apart states in which other numbers of transactions have been written."""
        files = sorted(set((self.databases or {}).values()))
        return " ".join(_changes(file).hex() for file in files)


def _changes(file: Path) -> bytes:
    with file.open("rb") as database:
        return database.read(_CHANGES.stop)[_CHANGES]


class Venue(Protocol):
    """Some sites for one episode after another."""

    @property
    def sites(self) -> Sites:
        """Where they are."""
        ...

    @property
    def hosts(self) -> Mapping[str, str | None]:
        """What a browser may reach, as `browser.acquire` takes it."""
        ...

    async def enter(self, task: Mapping[str, Any], open_session: OpenSession) -> Entry:
        """Prepare the sites for a task.

        Raises:
            ValueError: when the task needs a site that there isn't.
            EnvFault: when a site is down, refuses its account or can't be reset; names it.
        """
        ...

    def look_after(self) -> None:
        """Before each action: mend what can be mended.

        Raises:
            EnvFault: when something can't.
        """
        ...

    def leave(self) -> None:
        """The episode is over. May be called twice."""
        ...

    def close(self) -> None:
        """No episode follows. May be called twice."""
        ...


class EmbeddedVenue:
    """The sites of `agentgym_envs.worlds.webarena.sites`, with databases of its own for each episode."""

    def __init__(self) -> None:
        self._server: process.SitesServer | None = process.enter()
        self._copy: process.Copy | None = None

    @property
    def sites(self) -> Sites:
        """Their canonical addresses."""
        return Sites.of({key: place.url for key, place in PLACES.items()})

    @property
    def hosts(self) -> Mapping[str, str | None]:
        """Each site's host, led to this process's server."""
        assert self._server is not None  # who closed it asks no more
        return {place.host: f"127.0.0.1:{self._server.port}" for place in PLACES.values()}

    async def enter(self, task: Mapping[str, Any], open_session: OpenSession) -> Entry:
        """Fresh databases, and sessions of those whom the agent is signed in as."""
        assert self._server is not None
        self.leave()
        self._copy = await asyncio.to_thread(self._server.open)
        cookies = [
            {"name": SESSION_COOKIE, "value": place.account.session, "url": place.url, "httpOnly": True}
            for place in PLACES.values()
            if place.account is not None
        ]
        headers = {EPISODE_HEADER: self._copy.token}
        return Entry({"headers": headers, "cookies": cookies}, self._copy.files())

    def look_after(self) -> None:
        """Bring the server back if it died; nothing of the episode is lost with it."""
        if self._server is not None:
            self._server.ensure()

    def leave(self) -> None:
        """Delete the episode's databases."""
        if self._copy is not None:
            self._copy.discard()
            self._copy = None

    def close(self) -> None:
        """Give the server back."""
        self.leave()
        server, self._server = self._server, None
        if server is not None:
            process.leave(server)


class RealVenue:
    """Sites that somebody else serves. All episodes share them: what one writes the next one sees, until a reset."""

    def __init__(
        self, sites: Sites, accounts: Accounts, reset_hook: ResetHook | None, extra_hosts: tuple[str, ...] = ()
    ) -> None:
        self.sites = sites
        self.hosts: Mapping[str, str | None] = dict.fromkeys((*sites.hosts, *extra_hosts))
        self._logins = shared_logins(accounts)
        self._reset_hook = reset_hook

    async def enter(self, task: Mapping[str, Any], open_session: OpenSession) -> Entry:
        """Reset the sites where the hook is for it, see that they are up, and log in where the task says so."""
        self.sites.demand(task, str(task["task_id"]))
        keys = needed(task)
        if self._reset_hook is not None and self._reset_hook.wanted(task):
            await self._reset_hook.run(keys)
            self._logins.forget()
        await check_health(self.sites, keys)
        options: dict[str, Any] = {"geolocation": task.get("geolocation")}
        if task.get("require_login"):
            options["storage_state"] = await self._logins.state(keys, self.sites, open_session)
        return Entry(options)

    def look_after(self) -> None:
        """Nothing here is ours to mend."""

    def leave(self) -> None:
        """Nothing is left behind that is ours."""

    def close(self) -> None:
        """Nothing is open."""
