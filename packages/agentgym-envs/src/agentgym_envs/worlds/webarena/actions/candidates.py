"""The candidate actions on a page for policies without a language model. Actions that need text are left out."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot

_CLICKABLE = frozenset((
    "button", "checkbox", "combobox", "gridcell", "link", "menuitem", "menuitemcheckbox", "menuitemradio", "radio",
    "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem",
))  # fmt: skip


def candidate_actions(page: Snapshot, tabs: int) -> list[str]:
    """List clicks and selections on visible elements, moves between pages and `tabs` tabs, and an empty `stop`."""
    actions = [action for node in page.nodes if node.visible for action in _actions_on(node, page)]
    actions += [f"tab_focus [{index}]" for index in range(tabs) if tabs > 1]
    return [*actions, "scroll [down]", "scroll [up]", "go_back", "stop []"]


def _actions_on(node: Node, page: Snapshot) -> Iterator[str]:
    if node.property("disabled"):
        return
    if node.role == "option":
        owner = page.node(node.parent or 0)
        while owner is not None and owner.role not in ("combobox", "listbox"):
            owner = page.node(owner.parent or 0)
        if owner is not None and not node.property("selected"):
            yield f"select_option [{owner.id}] [{node.name}]"
    elif node.role in _CLICKABLE:
        yield f"click [{node.id}]"
