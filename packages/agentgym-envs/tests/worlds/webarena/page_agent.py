"""An agent that acts on test pages with actions as text and reads the resulting snapshots."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from agentgym_envs.worlds.webarena.actions.grammar import parse
from agentgym_envs.worlds.webarena.actions.perform import perform
from agentgym_envs.worlds.webarena.browser.session import Session
from agentgym_envs.worlds.webarena.page.observation import tree
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot, take_snapshot
from pages_server import PagesServer

Run = Callable[[Coroutine[Any, Any, Any]], Any]
LOG = "<script>var log = [], say = what => log.push(what)</script>"
"""A script that defines `say(what)`, which appends to a log; see `PageAgent.log`."""


def page_text(session: Session, run: Run) -> str:
    """Return the text of the active tab."""
    return run(session.guard(session.tab.page.inner_text("body")))


class PageAgent:
    """An agent in `session` on pages of `server`. `run` runs a coroutine on the browser's event loop."""

    page: Snapshot

    def __init__(self, server: PagesServer, session: Session, run: Run) -> None:
        self.server = server
        self.session = session
        self.run = run

    @property
    def log(self) -> list[str]:
        """The log of a page with the script `LOG`."""
        return self.js("log")

    def open(self, html: str, path: str = "/page") -> Snapshot:
        """Serve a page and open it."""
        self.server.pages[path] = html
        assert self.run(self.session.goto(f"http://shop.example{path}")) is None
        return self.look()

    def look(self) -> Snapshot:
        """Wait until the page is idle and take a snapshot."""
        self.run(self.session.settle())
        self.page = self.run(take_snapshot(self.session.tab))
        return self.page

    def text(self, *, whole: bool = True, max_chars: int = 100_000) -> str:
        """Return the text of the last snapshot."""
        return tree(self.page, whole, max_chars)

    def find_one(self, role: str | None, name: str | None = None) -> Node:
        """Return the only node with the given role and name."""
        found = self.page.find(role, name)
        assert len(found) == 1, (role, name, self.text())
        return found[0]

    def do(self, action: str, role: str | None = None, name: str | None = None) -> str | None:
        """Perform an action and take a snapshot. `#` stands for the id of the only node with the given role and name.

        Returns:
            The message of a refused action, or None.
        """
        if "#" in action:
            action = action.replace("#", str(self.find_one(role, name).id), 1)
        parsed = parse(action)
        assert not isinstance(parsed, str), parsed
        message = self.run(perform(self.session, self.page, parsed))
        self.look()
        return message

    def js(self, script: str) -> Any:
        """Evaluate a JavaScript expression in the active tab."""
        return self.run(self.session.tab.page.evaluate(script))
