"""What a game looks like from inside, as plain data for whoever draws it. Knows no JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def draw(room: str, inventory: str, progress: str) -> dict[str, Any]:
    """The scene of kind `text`: `parts`, each with a `title` and `text`.

    Args:
        room: What looking around says.
        inventory: What looking into the inventory says.
        progress: ScienceWorld's table of the task's subgoals.
    """
    parts = {"Room": room, "Inventory": inventory, "Subgoals": "\n".join(_subgoals(progress))}
    return {"kind": "text", "parts": [{"title": title, "text": text.strip()} for title, text in parts.items()]}


def _subgoals(progress: str) -> Iterator[str]:
    """Each subgoal on a line, ticked when it is reached; those that may be skipped stand below."""
    for line in progress.splitlines():
        match line.split("\t"):
            case [_, reached, _, what]:
                yield f"{'☑' if reached == 'true' else '☐'} {what.strip()}"
            case [heading] if heading.startswith("Unordered"):
                yield "On the way, perhaps:"
            case _:
                pass
