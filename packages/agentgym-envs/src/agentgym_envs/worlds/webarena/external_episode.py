"""Episodes of the embedded tasks in a browser that somebody else starts, such as BrowserGym's. No module of this
folder imports it.

The browser reaches the sites through their server, as an HTTP proxy that knows no other hosts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from agentgym_envs.core.tasks import Task, TaskSet
from agentgym_envs.util.extras import brought_by

with brought_by("webarena"):
    from agentgym_envs.worlds.webarena.browser.login import State
    from agentgym_envs.worlds.webarena.browser.session import Session
    from agentgym_envs.worlds.webarena.evaluation import Verdict, evaluate_ending
    from agentgym_envs.worlds.webarena.evaluation.url_match import CANONICAL_SCRIPT
    from agentgym_envs.worlds.webarena.options import SKINS
    from agentgym_envs.worlds.webarena.tasks.site_backend import EmbeddedSites, EpisodeSetup
    from agentgym_envs.worlds.webarena.tasks.task_files import start_urls
    from agentgym_envs.worlds.webarena.tasks.task_sets import EMBEDDED, task_set

__all__ = ["CANONICAL_SCRIPT", "ExternalEpisode", "Opening", "external_tasks"]
T = TypeVar("T")


def external_tasks() -> TaskSet:
    """Return the embedded tasks. The first call on a machine generates them, which takes some seconds."""
    return task_set(EMBEDDED, judged=False)


@dataclass(frozen=True, slots=True)
class Opening:
    """What the browser needs for an episode."""

    headers: Mapping[str, str]
    """HTTP headers of every request, which select the episode's databases and the skin."""
    cookies: Sequence[Mapping[str, Any]]
    """The cookies that sign the agent in, in the form that Playwright's `add_cookies` takes."""
    start_urls: Sequence[str]
    """The start pages, one tab each; the first tab is the active one."""


class ExternalEpisode:
    """The embedded sites for one episode after another. The server is that of all environments of the process.

    Raises:
        EnvFault: if the server doesn't start.
    """

    def __init__(self) -> None:
        self._backend = EmbeddedSites()
        self._setup = EpisodeSetup()
        self._payload: Mapping[str, Any] = {}

    @property
    def proxy(self) -> str:
        """The URL of the proxy through which the browser reaches the sites, and nothing else."""
        (address,) = set(self._backend.hosts.values())
        return f"http://{address}"

    def start(self, task: Task, skin: str = "plain") -> Opening:
        """Prepare fresh databases for an episode of `task`, and end the previous one.

        Raises:
            ValueError: if there is no such skin.
        """
        if skin not in SKINS:
            raise ValueError(f"skin must be {' or '.join(map(repr, SKINS))}, not {skin!r}.")
        self._payload = self._backend.sites.fill(dict(task.payload))
        self._setup = _completed(self._backend.prepare({**task.payload, "skin": skin}, _no_session))
        options = self._setup.options
        return Opening(options["headers"], options["cookies"], start_urls(self._payload))

    def ensure_running(self) -> None:
        """Restart the server if it died; the episode goes on.

        Raises:
            EnvFault: if it doesn't start.
        """
        self._backend.ensure_running()

    def evaluate(self, answer: str, url: str, canonical: str) -> Verdict:
        """Judge the episode by the agent's answer, its last page and the databases.

        Args:
            answer: The agent's answer, or an empty text.
            url: The URL of its last page.
            canonical: The result of the JavaScript `CANONICAL_SCRIPT` on that page.

        Raises:
            EnvFault: if a database can't be read.
        """
        return _completed(evaluate_ending(self._payload, answer, url, canonical, database=self._setup.databases))

    def close(self) -> None:
        """Delete the episode's databases and release the server. May be called twice."""
        self._backend.close()


async def _no_session(state: State | None) -> Session:
    raise NotImplementedError("The embedded sites sign the agent in by cookies, without a session of their own.")


def _completed(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on a thread of its own: Playwright's synchronous interface runs a loop on the caller's."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
