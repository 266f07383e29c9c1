"""Words for icons: what a page's markup calls an element that is a picture without a text or a label.

A person sees that a nameless button shows a star or a bin. Its class or id often says the same: `star`, `trash`,
`ql-bold`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentgym_envs.worlds.webarena.page.axtree import KeptNode
from agentgym_envs.worlds.webarena.page.geometry import Layout

_ROLES = frozenset(("button", "image", "img", "link"))
_PREFIX = re.compile(r"(?:ql|fa|icon|glyphicon)-")  # of libraries of icons and editors
_WORDS = re.compile(r"[a-z]+(?:[-_][a-z]+)*")


def with_icons(kept: Sequence[KeptNode], layout: Layout) -> list[KeptNode]:
    """Return the nodes; those of icons have the property `icon` first, where the page's markup has a word for them."""
    parents = {node.parent for node in kept}
    return [
        replace(node, properties=(("icon", word), *node.properties))
        if node.raw.role in _ROLES and not node.name and i not in parents and (word := icon_word(node, layout))
        else node
        for i, node in enumerate(kept)
    ]


def icon_word(node: KeptNode, layout: Layout) -> str:
    """Return the word of an element's only class, without the prefix of a library, or else its id; empty if there is
    neither, or if it isn't made of words. A drawing (`<svg>`) is no icon.
    """
    if layout.tag(node.backend_id).casefold() == "svg":
        return ""
    return next(filter(_WORDS.fullmatch, _candidates(node, layout)), "")


def _candidates(node: KeptNode, layout: Layout) -> Iterator[str]:
    classes = (layout.attribute(node.backend_id, "class") or "").casefold().split()
    if len(classes) == 1:
        yield _PREFIX.sub("", classes[0], count=1)
    yield (layout.attribute(node.backend_id, "id") or "").casefold()
