"""Cheapest paths over the part of the grid that was seen. Does not depend on missions."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

from agentgym_envs.worlds.babyai.actions import opens
from agentgym_envs.worlds.babyai.simulator import AHEAD, Cell, Door, Simulator, WorldObj

Colors = frozenset[str]
"""Colors of locked doors that a path must not cross, because it leads to their key."""

_STEP, _DOOR, _THING, _LOCKED = 1, 3, 20, 40
"""Costs: a step, a door to open, an object to carry away, a door whose key must be fetched."""
_RING: tuple[Cell, ...] = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))


class Paths:
    """The seen part of the grid and the paths from the agent's position."""

    def __init__(self, simulator: Simulator, seen: Collection[Cell]) -> None:
        self._simulator = simulator
        self._seen = seen
        self._here = simulator.position
        self._carrying = simulator.carrying
        self.at = simulator.at

    @cached_property
    def things(self) -> list[tuple[Cell, WorldObj]]:
        """The cells and objects (doors included) that were seen."""
        return [(cell, thing) for cell, thing in self._simulator.things() if cell in self._seen]

    def known(self, things: Iterable[WorldObj]) -> list[Cell]:
        """Return the cells of those `things` that were seen."""
        wanted = {id(thing) for thing in things}
        return [cell for cell, thing in self.things if id(thing) in wanted]

    def is_seen(self, cell: Cell) -> bool:
        """Whether the cell has been seen."""
        return cell in self._seen

    def seen(self, cells: Iterable[tuple[int, int]]) -> list[Cell]:
        """Return those of `cells` that have been seen."""
        return [(x, y) for x, y in cells if (x, y) in self._seen]

    @cached_property
    def unseen(self) -> list[Cell]:
        """The cells never seen, except walls: rooms look alike, so corners needn't be explored."""
        grid = self._simulator.level.grid
        cells = ((x, y) for y in range(grid.height) for x in range(grid.width))
        return [cell for cell in cells if cell not in self._seen and not is_wall(self.at(cell))]

    def free(self) -> list[Cell]:
        """Return the seen cells that are empty."""
        return [cell for cell in self._seen if self.at(cell) is None]

    def spare(self, cell: Cell) -> bool:
        """Whether an object in this free cell would neither cut a path nor block a door."""
        if any(isinstance(self.at(neighbour), Door) for neighbour in around(cell)):
            return False
        ring = [not is_wall(self.at((cell[0] + x, cell[1] + y))) for x, y in _RING]
        return sum(ring[i] != ring[i - 1] for i in range(len(ring))) <= 2

    def movable(self, cells: Iterable[Cell]) -> list[WorldObj]:
        """Return the objects next to `cells` that can be picked up."""
        things = (self.at(near) for cell in cells for near in around(cell))
        return [thing for thing in things if thing is not None and not isinstance(thing, Door) and not is_wall(thing)]

    def obstacle(self, way: Sequence[Cell]) -> Cell | None:
        """Return the first cell before the end of a path that has an object or a locked door; None if there is none."""
        return next((cell for cell in way[:-1] if self._bars(self.at(cell))), None)

    def _bars(self, thing: WorldObj | None) -> bool:
        if isinstance(thing, Door):
            return thing.is_locked and not opens(self._carrying, thing)
        return thing is not None

    def to(self, goals: Iterable[Cell], avoid: Colors = frozenset(), *, clear: bool = False) -> list[Cell] | None:
        """Return the cheapest path over seen cells to one of `goals`, from the next cell to the goal; None if none.

        Args:
            goals: The cells to reach.
            avoid: See `Colors`.
            clear: Whether the path must be without obstacles.
        """
        wanted = set(goals) - {self._here}
        previous: dict[Cell, Cell] = {}
        heap = [(0, self._here, self._here)] if wanted else []
        while heap:
            cost, cell, before = heapq.heappop(heap)
            if cell in previous:
                continue
            previous[cell] = before
            if cell in wanted:
                return self._trace(previous, cell)
            if cell not in self._seen:
                continue
            for after in around(cell):
                step_cost = _STEP if after in wanted else self._cost(after, avoid, clear)
                if after not in previous and step_cost is not None:
                    heapq.heappush(heap, (cost + step_cost, after, cell))
        return None

    def _cost(self, cell: Cell, avoid: Colors, clear: bool) -> int | None:
        thing = self.at(cell)
        if clear and self._bars(thing):
            return None
        if thing is None:
            return _STEP
        if not isinstance(thing, Door):
            return None if is_wall(thing) else _THING
        if thing.is_open:
            return _STEP
        if not thing.is_locked or opens(self._carrying, thing):
            return _DOOR
        return None if thing.color in avoid else _LOCKED

    def _trace(self, previous: dict[Cell, Cell], cell: Cell) -> list[Cell]:
        way: list[Cell] = []
        while cell != self._here:
            way.append(cell)
            cell = previous[cell]
        return way[::-1]


def around(cell: Cell) -> list[Cell]:
    """Return the four neighbours of a cell inside the outer walls."""
    return [(cell[0] + x, cell[1] + y) for x, y in AHEAD]


def is_wall(thing: WorldObj | None) -> bool:
    """Whether a cell's content is a wall."""
    return thing is not None and thing.type == "wall"
