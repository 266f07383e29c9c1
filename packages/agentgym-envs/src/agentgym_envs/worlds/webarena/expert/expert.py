"""The expert on the embedded sites: follows a task's plan, which names elements by role and name, on the page as it is.

A plan is a list of steps as `sites.tasks` writes them. The expert reads the whole page, scrolls what it
wants into view, and begins the plan again from the task's start page when a step can't be taken where it finds itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot

_MOST_SCROLLS = 8


class Expert:
    """Follows one plan. `next` says the next action and changes nothing; `played` tells what was played."""

    def __init__(self, plan: Sequence[Mapping[str, Any]], start_url: str) -> None:
        self._plan = plan
        self._start = f"goto [{start_url}]"
        self._at = 0
        self._scrolls = 0

    @property
    def left(self) -> Sequence[Mapping[str, Any]]:
        """The steps that are still to come."""
        return self._plan[self._at :]

    def next(self, page: Snapshot) -> str:
        """The next action on `page`."""
        step = self._plan[self._at]
        match step["do"]:
            case "goto":
                return f"goto [{step['url']}]"
            case "back":
                return "go_back"
            case "press":
                return f"press [{step['keys']}]"
            case "stop":
                return f"stop [{step['answer']}]"
            case _:
                return self._on_element(step, page)

    def played(self, action: str, page: Snapshot, *, valid: bool) -> None:
        """`action` was played on `page`; what counts is whether it was the expert's own."""
        if not (valid and self._plan and action == self.next(page)):
            return
        if action == self._start and self._plan[self._at].get("url") != self._start[6:-1]:
            self._at = self._scrolls = 0
        elif action.startswith("scroll ["):
            self._scrolls += 1
        else:
            self._at += 1
            self._scrolls = 0

    def _on_element(self, step: Mapping[str, Any], page: Snapshot) -> str:
        found = page.find(step["role"], step["name"])
        if len(found) <= step["nth"]:
            return self._start
        node = found[step["nth"]]
        if not node.visible and self._scrolls < _MOST_SCROLLS and (direction := _towards(node)):
            return f"scroll [{direction}]"
        match step["do"]:
            case "click":
                return f"click [{node.id}]"
            case "type":
                return f"type [{node.id}] [{step['text']}] [{int(step['enter'])}]"
            case "select":
                return f"select_option [{node.id}] [{step['option']}]"
            case other:
                raise ValueError(f"A plan has a step {other!r} that nobody can take.")


def _towards(node: Node) -> str | None:
    """Where to scroll to get a node into sight; None where scrolling the page doesn't help."""
    return {"above": "up", "below": "down"}.get(node.place)
