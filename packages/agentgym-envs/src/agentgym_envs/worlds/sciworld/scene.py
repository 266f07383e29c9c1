"""The agent's view of a game as plain data for viewers. Does not use the JVM."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def draw(room: str, inventory: str, progress: str) -> dict[str, Any]:
    """Return the scene of kind `text`: `parts`, each with a `title` and `text`.

    Args:
        room: The text of `look around`.
        inventory: The text of `inventory`.
        progress: ScienceWorld's table of the task's subgoals.
    """
    parts = {"Room": room, "Inventory": inventory, "Subgoals": "\n".join(_subgoals(progress))}
    return {"kind": "text", "parts": [{"title": title, "text": text.strip()} for title, text in parts.items()]}


def _subgoals(progress: str) -> Iterator[str]:
    """Yield one line per subgoal with a checkbox; optional subgoals come last."""
    for line in progress.splitlines():
        match line.split("\t"):
            case [_, reached, _, what]:
                yield f"{'☑' if reached == 'true' else '☐'} {what.strip()}"
            case [heading] if heading.startswith("Unordered"):
                yield "Optional:"
            case _:
                pass
