"""The expert on the embedded sites: it follows a task's plan, which names elements by role and name.

A plan is a list of steps as built by `sites.tasks`. The expert reads the whole page and scrolls elements into view. If
the current page lacks the step's element, it restarts the plan from the task's start page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot

_MAX_SCROLLS = 8


class Expert:
    """Follows one plan. `next` returns the next action without side effects; `record` takes the performed action."""

    def __init__(self, plan: Sequence[Mapping[str, Any]], start_url: str) -> None:
        self._plan = plan
        self._start = f"goto [{start_url}]"
        self._at = 0
        self._scrolls = 0

    @property
    def remaining(self) -> Sequence[Mapping[str, Any]]:
        """The remaining steps."""
        return self._plan[self._at :]

    def next(self, page: Snapshot) -> str:
        """Return the next action on `page`."""
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

    def record(self, action: str, page: Snapshot, *, valid: bool) -> None:
        """Advance the plan if `action`, which was performed on `page`, is the expert's own next action."""
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
        if not node.visible and self._scrolls < _MAX_SCROLLS and (direction := _scroll_direction(node)):
            return f"scroll [{direction}]"
        match step["do"]:
            case "click":
                return f"click [{node.id}]"
            case "type":
                return f"type [{node.id}] [{step['text']}] [{int(step['enter'])}]"
            case "select":
                return f"select_option [{node.id}] [{step['option']}]"
            case other:
                raise ValueError(f"The plan has an unknown step {other!r}.")


def _scroll_direction(node: Node) -> str | None:
    """Return the direction to scroll to reach a node; None if scrolling the page doesn't help."""
    return {"above": "up", "below": "down"}.get(node.place)
