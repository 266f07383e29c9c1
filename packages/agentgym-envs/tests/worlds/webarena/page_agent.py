"""Who plays on a page in tests: says actions as text, and reads what stands there afterwards."""

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
"""On a page with this, `say(what)` notes what happened."""


def page_text(session: Session, run: Run) -> str:
    """What stands in the active tab."""
    return run(session.guard(session.tab.page.inner_text("body")))


class PageAgent:
    """Plays in `session` on pages of `server`; `run` runs a coroutine on the browser's loop."""

    page: Snapshot

    def __init__(self, server: PagesServer, session: Session, run: Run) -> None:
        self.server = server
        self.session = session
        self.run = run

    @property
    def log(self) -> list[str]:
        """What has been said on a page with `LOG`."""
        return self.js("log")

    def open(self, html: str, path: str = "/page") -> Snapshot:
        """Serve a page and go there."""
        self.server.pages[path] = html
        assert self.run(self.session.goto(f"http://shop.example{path}")) is None
        return self.look()

    def look(self) -> Snapshot:
        """Wait until the page is at rest and read it."""
        self.run(self.session.settle())
        self.page = self.run(take_snapshot(self.session.tab))
        return self.page

    def text(self, *, whole: bool = True, max_chars: int = 100_000) -> str:
        """What the page says, as last looked at."""
        return tree(self.page, whole, max_chars)

    def one(self, role: str | None, name: str | None = None) -> Node:
        """The one node of that role and name."""
        found = self.page.find(role, name)
        assert len(found) == 1, (role, name, self.text())
        return found[0]

    def do(self, action: str, role: str | None = None, name: str | None = None) -> str | None:
        """Say an action, with `#` standing for the id of the one node of that role and name; then look."""
        if "#" in action:
            action = action.replace("#", str(self.one(role, name).id), 1)
        parsed = parse(action)
        assert not isinstance(parsed, str), parsed
        said = self.run(perform(self.session, self.page, parsed))
        self.look()
        return said

    def js(self, script: str) -> Any:
        """What a JavaScript expression is in the active tab."""
        return self.run(self.session.tab.page.evaluate(script))
