"""The candidate actions on a page for policies without a language model.

Actions that need text or a point are left out, and so are those that are rarely of use: `wait`, `hover`, and double and
right clicks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, permutations

from agentgym_envs.worlds.webarena.page.marks import CLICKABLE
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot

_DRAGGABLE_CLASSES = frozenset(("ui-draggable", "ui-sortable-handle"))
_MOST_DRAGGABLE = 10


def candidate_actions(page: Snapshot, tabs: int) -> list[str]:
    """List clicks, selections and drags of visible elements, moves between pages and `tabs` tabs, and `stop`."""
    actions = [action for node in page.nodes if node.visible for action in _actions_on(node, page)]
    draggable = [node.id for node in page.nodes if node.visible and _is_draggable(node, page)][:_MOST_DRAGGABLE]
    actions += [f"drag [{one}] [{other}]" for one, other in permutations(draggable, 2)]
    actions += [f"tab_focus [{index}]" for index in range(tabs) if tabs > 1]
    return [*actions, "scroll [down]", "scroll [up]", "go_back", "stop []"]


def _is_draggable(node: Node, page: Snapshot) -> bool:
    """Whether the element is marked as draggable, or its parent, since a text's element may not be in the tree."""
    layout = page.layout
    return any(
        layout.attribute(element, "draggable") == "true"
        or not _DRAGGABLE_CLASSES.isdisjoint((layout.attribute(element, "class") or "").split())
        for element in islice(layout.ancestors(node.backend_id), 2)
    )


def _actions_on(node: Node, page: Snapshot) -> Iterator[str]:
    if node.property("disabled"):
        return
    if node.role == "option" and page.layout.tag(node.backend_id) == "OPTION":
        owner = page.node(node.parent or 0)
        while owner is not None and owner.role not in ("combobox", "listbox"):
            owner = page.node(owner.parent or 0)
        if owner is not None and not node.property("selected"):
            yield f"select_option [{owner.id}] [{node.name}]"
    elif node.role in CLICKABLE or node.role == "option":
        yield f"click [{node.id}]"
