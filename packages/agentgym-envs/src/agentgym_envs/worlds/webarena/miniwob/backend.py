"""The site backend of MiniWoB++: the process's page server, and scripts that make a page's problem reproducible."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from agentgym_envs.worlds.webarena.browser.login import OpenSession
from agentgym_envs.worlds.webarena.browser.site_urls import Sites
from agentgym_envs.worlds.webarena.miniwob import page_server
from agentgym_envs.worlds.webarena.tasks.site_backend import EpisodeSetup

# Before a page's own scripts: the clock starts at a fixed time, and what is drawn while the page loads is seeded, too.
_BEFORE: Final = """(() => {
  const Real = Date, loaded = Real.now(), begin = Real.UTC(2025, 5, 16, 9, 30);
  const now = () => begin + Real.now() - loaded;
  window.Date = new Proxy(Real, {
    construct: (_, args, target) => Reflect.construct(Real, args.length ? args : [now()], target),
    apply: () => new Real(now()).toString(),
    get: (_, name) => name === 'now' ? now : Reflect.get(Real, name),
  });
  let state = SEED + 1;
  Math.random = () => (state = state * 48271 % 2147483647) / 2147483647;
})()"""


class MiniWobPages:
    """Serves the pages of MiniWoB++; no other host can be reached."""

    def __init__(self) -> None:
        self._server: page_server.PageServer | None = page_server.enter()

    @property
    def sites(self) -> Sites:
        """None of WebArena's sites."""
        return Sites()

    @property
    def hosts(self) -> Mapping[str, str | None]:
        """The host of the pages, mapped to the address of this process's server."""
        assert self._server is not None  # not used after `close`
        return {page_server.HOST: self._server.address}

    async def prepare(self, task: Mapping[str, Any], open_session: OpenSession) -> EpisodeSetup:
        """Return the scripts that run before those of the task's page."""
        return EpisodeSetup({"init_scripts": (_BEFORE.replace("SEED", str(task["seed"])),)})

    def ensure_running(self) -> None:
        """Do nothing: the server is a thread of this process."""

    def end_episode(self) -> None:
        """Do nothing: an episode leaves nothing behind."""

    def close(self) -> None:
        """Release the server."""
        server, self._server = self._server, None
        if server is not None:
            page_server.leave(server)
