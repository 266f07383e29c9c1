"""Site backends, which prepare sites for an episode and clean up after it: the embedded sites, or real ones by URL."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agentgym_envs.worlds.webarena.browser.login import Accounts, OpenSession, shared_logins
from agentgym_envs.worlds.webarena.browser.site_urls import Sites, needed
from agentgym_envs.worlds.webarena.sites import process
from agentgym_envs.worlds.webarena.sites.directory import EPISODE_HEADER, PLACES, SESSION_COOKIE, SKIN_HEADER
from agentgym_envs.worlds.webarena.tasks.reset_hook import ResetHook
from agentgym_envs.worlds.webarena.tasks.site_health import check_health

_CHANGE_COUNTER = slice(24, 28)  # bytes in a SQLite file's header: incremented by each transaction that writes


@dataclass(frozen=True, slots=True)
class EpisodeSetup:
    """What the browser needs to begin an episode, and the evaluator to score it."""

    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of the browser session: headers, cookies, stored state."""
    databases: Mapping[str, Path] | None = None
    """The SQLite file of each site, if they are accessible."""

    def write_counters(self) -> str:
        """Return the databases' change counters, which differ once a transaction has written."""
        files = sorted(set((self.databases or {}).values()))
        return " ".join(_change_counter(file).hex() for file in files)


def _change_counter(file: Path) -> bytes:
    with file.open("rb") as database:
        return database.read(_CHANGE_COUNTER.stop)[_CHANGE_COUNTER]


class SiteBackend(Protocol):
    """A set of sites that serves one episode after another."""

    @property
    def sites(self) -> Sites:
        """The sites' URLs."""
        ...

    @property
    def hosts(self) -> Mapping[str, str | None]:
        """The hosts that a browser may reach, in the form that `browser.acquire` takes."""
        ...

    async def prepare(self, task: Mapping[str, Any], open_session: OpenSession) -> EpisodeSetup:
        """Prepare the sites for an episode of a task.

        Raises:
            ValueError: if the task needs a site that isn't configured.
            EnvFault: if a site is down, refuses its account or can't be reset; the message names the site.
        """
        ...

    def ensure_running(self) -> None:
        """Restart what has died. Called before each action.

        Raises:
            EnvFault: if the restart fails.
        """
        ...

    def end_episode(self) -> None:
        """Clean up after the episode. May be called twice."""
        ...

    def close(self) -> None:
        """Release the sites. May be called twice."""
        ...


class EmbeddedSites:
    """The sites of `agentgym_envs.worlds.webarena.sites`, with a copy of the databases for each episode."""

    def __init__(self) -> None:
        self._server: process.SitesServer | None = process.enter()
        self._copy: process.Copy | None = None

    @property
    def sites(self) -> Sites:
        """The sites' canonical URLs."""
        return Sites.of({key: place.url for key, place in PLACES.items()})

    @property
    def hosts(self) -> Mapping[str, str | None]:
        """Each site's host, mapped to the address of this process's server."""
        assert self._server is not None  # not used after `close`
        return {place.host: f"127.0.0.1:{self._server.port}" for place in PLACES.values()}

    async def prepare(self, task: Mapping[str, Any], open_session: OpenSession) -> EpisodeSetup:
        """Create fresh databases, and the cookies and headers that sign the agent in, to the sites of the task only."""
        assert self._server is not None
        self.end_episode()
        self._copy = await asyncio.to_thread(self._server.open)
        cookies = [
            {"name": SESSION_COOKIE, "value": place.account.session, "url": place.url, "httpOnly": True}
            for place in map(PLACES.__getitem__, needed(task))
            if place.account is not None
        ]
        headers = {EPISODE_HEADER: self._copy.token, SKIN_HEADER: task.get("skin", "plain")}
        return EpisodeSetup({"headers": headers, "cookies": cookies}, self._copy.files())

    def ensure_running(self) -> None:
        """Restart the server if it died. The episode continues, as its databases are files."""
        if self._server is not None:
            self._server.ensure()

    def end_episode(self) -> None:
        """Delete the episode's databases."""
        if self._copy is not None:
            self._copy.discard()
            self._copy = None

    def close(self) -> None:
        """Release the server."""
        self.end_episode()
        server, self._server = self._server, None
        if server is not None:
            process.leave(server)


class RealSites:
    """Externally hosted sites. All episodes share them: changes persist across episodes until the next reset."""

    def __init__(
        self, sites: Sites, accounts: Accounts, reset_hook: ResetHook | None, extra_hosts: tuple[str, ...] = ()
    ) -> None:
        self.sites = sites
        self.hosts: Mapping[str, str | None] = dict.fromkeys((*sites.hosts, *extra_hosts))
        self._logins = shared_logins(accounts)
        self._reset_hook = reset_hook

    async def prepare(self, task: Mapping[str, Any], open_session: OpenSession) -> EpisodeSetup:
        """Reset the sites if the hook applies to the task, check that they are up, and log in if the task needs it."""
        self.sites.demand(task, str(task["task_id"]))
        keys = needed(task)
        if self._reset_hook is not None and self._reset_hook.wanted(task):
            await self._reset_hook.run(keys)
            self._logins.forget()
        await check_health(self.sites, keys)
        options: dict[str, Any] = {"geolocation": task.get("geolocation")}
        if task.get("require_login"):
            options["storage_state"] = await self._logins.state(keys, self.sites, open_session)
        return EpisodeSetup(options)

    def ensure_running(self) -> None:
        """Do nothing: the sites are not managed by this process."""

    def end_episode(self) -> None:
        """Do nothing: an episode leaves no local files."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""
