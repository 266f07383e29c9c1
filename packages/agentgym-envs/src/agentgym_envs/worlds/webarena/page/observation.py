"""The text observation: a snapshot in WebArena's accessibility-tree format, and the text around it.

Everything from a page (names, values, titles, URLs) is written as a literal on one line, so that no page can forge a
line of the surrounding text or a second node.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from agentgym_envs.worlds.webarena.page.axtree import PropertyValue
from agentgym_envs.worlds.webarena.page.snapshot import Node, Snapshot

_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_MORE = "scroll [down] or scroll [up] shows other parts"
_CUT = f"(Cut here, too long: {{shown}} of {{all}} elements are shown; {_MORE}.)"
_FEW = 10
_TITLE, _LONG = 200, 1_000  # characters; limits that keep the objective within the observation
_FEWER = f"(Of long lists only {_FEW} options are shown; select_option [id] [option] takes any.)"
_BOUNDED = f"(This page is too large to be read whole: only what is near the viewport is known; {_MORE}.)"

_UNREAD = "(This page has {elements:,} elements, which is too many to be read; go_back or goto [url] leaves it.)"


def id_and_name(node: Node) -> str:
    """Return what a node's line begins with: `[id] role 'name'`."""
    return f"[{node.id}] {node.role} {literal(node.name)}"


def tree(
    snapshot: Snapshot,
    whole_page: bool,
    max_chars: int,
    positions: bool = False,
    label: Callable[[Node], str] = id_and_name,
) -> str:
    """Format the nodes of a snapshot, one line each, indented by tabs: `[id] role 'name' property: value`.

    Args:
        snapshot: The page.
        whole_page: Whether to include all nodes, or only the visible ones.
        max_chars: Maximum length; longer text is cut after a complete line, with a final line that reports it.
        positions: Whether lines of visible nodes end in the center of what is visible, in pixels: `at: 120,45`.
        label: Returns what a node's line begins with.
    """
    if snapshot.unread:
        return _UNREAD.format(elements=snapshot.unread)
    shown = [node for node in snapshot.nodes if whole_page or node.visible or node.parent is None]
    lines = list(_lines(snapshot, shown, positions, label))
    notes = [_BOUNDED] if snapshot.bounded else []
    if len("\n".join(lines + notes)) > max_chars and (few := _without_long_lists(shown)) != shown:
        shown, notes = few, [_FEWER, *notes]
        lines = list(_lines(snapshot, shown, positions, label))
    if len("\n".join(lines + notes)) > max_chars:
        lines, notes = _cut(lines, max_chars - len("\n".join([_CUT, *notes, ""]))), [_CUT, *notes]
        notes[0] = _CUT.format(shown=len(lines), all=len(shown))
    return "\n".join(lines + notes)


def frame(
    tabs: Sequence[str],
    active: int,
    url: str,
    objective: str,
    previous_action: str,
    notices: Sequence[str],
    tree: str,
) -> str:
    """Format the whole observation: tab titles, tree, URL, objective, previous action and notices.

    Args:
        tabs: The titles of the open tabs.
        active: Index of the active tab.
        url: The active tab's URL.
        objective: The task's objective.
        previous_action: The agent's last action, `None` before the first.
        notices: Events since the last observation, a sentence each.
        tree: The text of the accessibility tree, from `tree`.
    """
    marks = (" (current)" if i == active else "" for i in range(len(tabs)))
    titles = (f"Tab {i}{mark}: {literal(shortened(tabs[i], _TITLE))}" for i, mark in enumerate(marks))
    noticed = "".join(f"\nNOTICE: {shortened(one_line(notice))}" for notice in notices)
    return (
        f"{' | '.join(titles)}\n\n{tree}\n\nURL: {shortened(_address(url))}\nOBJECTIVE: {one_line(objective)}\n"
        f"PREVIOUS ACTION: {shortened(one_line(previous_action))}{noticed}"
    )


def literal(text: str) -> str:
    """Quote text as a Python literal on one line: `'Sign In'`, `"Today's deals"`. Removes invisible characters."""
    return repr(" ".join(_INVISIBLE.sub("", text).split()))


def shortened(text: str, most: int = _LONG) -> str:
    """Shorten text to at most `most` characters, ending in an ellipsis if it was longer."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def one_line(text: str) -> str:
    """Write text on one line without quotes; unprintable characters are escaped."""
    line = " ".join(text.split())
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def _address(url: str) -> str:
    """Percent-encode blanks and unprintable characters in a URL."""
    return "".join(c if c.isprintable() and c != " " else "".join(f"%{b:02X}" for b in _utf8(c)) for c in url)


def _utf8(character: str) -> bytes:
    return character.encode("utf-8", errors="replace")


def _without_long_lists(shown: Sequence[Node]) -> list[Node]:
    """Keep only the first `_FEW` and the selected options of each list."""
    counts: Counter[int | None] = Counter()
    kept: list[Node] = []
    for node in shown:
        if node.role == "option":
            counts[node.parent] += 1
        if node.role != "option" or counts[node.parent] <= _FEW or node.property("selected"):
            kept.append(node)
    return kept


def _cut(lines: Sequence[str], max_chars: int) -> list[str]:
    ends = accumulate(len(line) + 1 for line in lines)
    return [line for line, end in zip(lines, ends, strict=True) if end <= max_chars]


def _lines(snapshot: Snapshot, shown: Sequence[Node], positions: bool, label: Callable[[Node], str]) -> Iterator[str]:
    """Yield a line for each node, indented below its nearest ancestor that is shown."""
    depths: dict[int, int] = {}
    for node in shown:
        above = node.parent
        while above is not None and above not in depths:
            above = snapshot.nodes[above - 1].parent
        depths[node.id] = 0 if above is None else depths[above] + 1
        yield "\t" * depths[node.id] + label(node) + _properties(node) + (_position(node) if positions else "")


def _properties(node: Node) -> str:
    return "".join(f" {name}: {_formatted(name, value)}" for name, value in node.properties)


def _position(node: Node) -> str:
    if node.seen is None:
        return ""
    x, y = node.seen.centre
    return f" at: {int(x)},{int(y)}"


def _formatted(name: str, value: PropertyValue) -> str:
    if isinstance(value, str) and (name == "value" or not _PLAIN.fullmatch(value)):
        return literal(value)
    return str(value)
