"""The expert on the embedded sites: it follows a task's plan, which names elements by role and name.

A plan is a list of steps as built by `sites.tasks`. The expert reads the whole page and scrolls elements into view.
What a step takes beyond one action, such as opening the menu that an element is in, is a detour. If an element is
nowhere to be found, the expert restarts the plan from the first of the task's start pages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_envs.worlds.webarena.actions.grammar import on_one_line
from agentgym_envs.worlds.webarena.expert.detours import (
    Detour,
    accept_cookies,
    answer_question,
    choose_option,
    clear_way,
    look_further,
    open_menus,
    scroll_dialog,
)
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot

_MAX_SCROLLS = 8


class Expert:
    """Follows one plan. `next` returns the next action without side effects; `record` takes the performed action."""

    def __init__(self, plan: Sequence[Mapping[str, Any]], start_url: str) -> None:
        self._plan = plan
        self._start = f"goto [{start_url}]"
        self._at = 0
        self._begin_step()
        self._menus: dict[str, frozenset[str]] = {}

    def _begin_step(self) -> None:
        self._scrolls = 0
        self._tried: list[str] = []

    @property
    def remaining(self) -> Sequence[Mapping[str, Any]]:
        """The remaining steps."""
        return self._plan[self._at :]

    def next(self, page: Snapshot) -> str:
        """Return the next action on `page`."""
        move = self._next(page)
        return move.action if isinstance(move, Detour) else move

    def detour(self, page: Snapshot) -> str:
        """Return why the next action on `page` is not yet the plan's next step, as a sentence; else an empty string."""
        move = self._next(page)
        return move.reason if isinstance(move, Detour) else ""

    def record(self, action: str, page: Snapshot, *, valid: bool) -> None:
        """Advance the plan if `action`, which was performed on `page`, is the expert's own next action."""
        self._menus.update(open_menus(page))
        if not self._plan or action != self.next(page):
            return
        move = self._next(page)
        if isinstance(move, Detour):
            self._tried += filter(None, [move.key])
        elif not valid:
            return
        elif action == self._start and self._plan[self._at].get("url") != self._start[6:-1]:
            self._at = 0
            self._begin_step()
        elif action.startswith("scroll ["):
            self._scrolls += 1
        else:
            self._at += 1
            self._begin_step()

    def _next(self, page: Snapshot) -> str | Detour:
        if question := answer_question(page):
            return question
        step = self._plan[self._at]
        match step["do"]:
            case "goto":
                return f"goto [{step['url']}]"
            case "back":
                return "go_back"
            case "press":
                return f"press [{step['keys']}]"
            case "tab":
                return f"tab_focus [{step['index']}]"
            case "stop":
                return f"stop [{step['answer']}]"
            case _:
                return self._on_element(step, page)

    def _on_element(self, step: Mapping[str, Any], page: Snapshot) -> str | Detour:
        if bar := accept_cookies(page):
            return bar
        found = page.find(step["role"], step["name"])
        if len(found) <= step["nth"]:
            detour = look_further(page, step["role"], step["name"], self._tried, self._menus)
            if detour is None:
                return self._start
            return (self._scroll_to(detour.node) if detour.node else None) or detour
        node = found[step["nth"]]
        if move := clear_way(page, node) or scroll_dialog(page, node) or self._scroll_to(node):
            return move
        match step["do"]:
            case "click":
                return f"click [{node.id}]"
            case "type":
                return f"type [{node.id}] [{on_one_line(step['text'])}] [{int(step['enter'])}]"
            case "select":
                return self._select(step["option"], node, page)
            case other:
                raise ValueError(f"The plan has an unknown step {other!r}.")

    def _scroll_to(self, node: Node) -> str | None:
        """Return the scroll that brings a node closer; None if it is visible or scrolling the page doesn't help."""
        direction = {"above": "up", "below": "down"}.get(node.place)
        return f"scroll [{direction}]" if direction and self._scrolls < _MAX_SCROLLS else None

    def _select(self, option: str, node: Node, page: Snapshot) -> str | Detour:
        if page.layout.tag(node.backend_id) == "SELECT":
            return f"select_option [{node.id}] [{option}]"
        move = choose_option(page, node, option, self._tried)
        return f"click [{move.id}]" if isinstance(move, Node) else move or self._start
