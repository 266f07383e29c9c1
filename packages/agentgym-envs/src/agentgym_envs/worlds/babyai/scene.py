"""The current grid as plain data for viewers. Independent of rendering and of the observation's wording."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from agentgym_envs.worlds.babyai.simulator import Box, Cell, Door, Simulator, WorldObj

_DIRECTIONS = ("right", "down", "left", "up")


def draw(simulator: Simulator, visible: Collection[Cell], seen: Collection[Cell]) -> dict[str, Any]:
    """Return the scene of kind `grid`. Cells are (column, row) from the top left.

    Args:
        simulator: The current state.
        visible: The cells that the agent sees now.
        seen: The cells that it has seen in this episode.

    Returns:
        `width` and `height`; `walls`, a list of cells; `things`, each with `x`, `y` and the keys of `_thing`; the
        `agent` with `x`, `y` and `direction`; the object it is `carrying`, or None; `visible` and `seen` cells; the
        `mission`.
    """
    grid = simulator.level.grid
    walls = [(i % grid.width, i // grid.width) for i, thing in enumerate(grid.grid) if thing and thing.type == "wall"]
    x, y = simulator.position
    carried = simulator.carrying
    return {
        "kind": "grid",
        "mission": simulator.mission,
        "width": grid.width,
        "height": grid.height,
        "walls": _listed(walls),
        "things": [{"x": cell[0], "y": cell[1], **_thing(thing)} for cell, thing in simulator.things()],
        "agent": {"x": x, "y": y, "direction": _DIRECTIONS[simulator.level.agent_dir]},
        "carrying": None if carried is None else _thing(carried),
        "visible": _listed(visible),
        "seen": _listed(seen),
    }


def _thing(thing: WorldObj) -> dict[str, Any]:
    """Return `type` and `colour`; for doors the `state` (`open`, `closed`, `locked`); for boxes what it `holds`."""
    data: dict[str, Any] = {"type": thing.type, "colour": thing.color}
    if isinstance(thing, Door):
        data["state"] = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
    if isinstance(thing, Box):
        data["holds"] = None if thing.contains is None else _thing(thing.contains)
    return data


def _listed(cells: Collection[Cell]) -> list[list[int]]:
    """Return the cells as lists, sorted by row."""
    return [[x, y] for x, y in sorted(cells, key=lambda cell: (cell[1], cell[0]))]
