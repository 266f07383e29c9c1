"""What is known of the grid and the cheapest ways over it. Knows cells, prices and doors, and nothing of missions."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable
from functools import cached_property

from agentgym_envs.worlds.babyai.actions import opens
from agentgym_envs.worlds.babyai.simulator import AHEAD, Cell, Door, Simulator, WorldObj

Colors = frozenset[str]
"""Colors of locked doors that a way must not lead through, because their key is what it leads to."""

_STEP, _DOOR, _THING, _LOCKED = 1, 3, 20, 40
"""Prices: a step, a door to open, a thing to carry away, a door whose key must be fetched."""
_RING: tuple[Cell, ...] = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))


class Ways:
    """The grid as far as it was seen, and the ways from where the agent stands."""

    def __init__(self, simulator: Simulator, seen: Collection[Cell]) -> None:
        self._simulator = simulator
        self._seen = seen
        self._here = simulator.position
        self._carrying = simulator.carrying
        self.at = simulator.at

    @cached_property
    def things(self) -> list[tuple[Cell, WorldObj]]:
        """The known objects and doors and where they are."""
        return [(cell, thing) for cell, thing in self._simulator.things() if cell in self._seen]

    def known(self, things: Iterable[WorldObj]) -> list[Cell]:
        """Where those of `things` are that are known."""
        wanted = {id(thing) for thing in things}
        return [cell for cell, thing in self.things if id(thing) in wanted]

    def is_seen(self, cell: Cell) -> bool:
        """Whether the cell has been seen."""
        return cell in self._seen

    def seen(self, cells: Iterable[tuple[int, int]]) -> list[Cell]:
        """Those of `cells` that have been seen."""
        return [(x, y) for x, y in cells if (x, y) in self._seen]

    @cached_property
    def unseen(self) -> list[Cell]:
        """The cells never seen. Walls don't count: rooms are alike, and nobody needs to look into every corner."""
        grid = self._simulator.level.grid
        cells = ((x, y) for y in range(grid.height) for x in range(grid.width))
        return [cell for cell in cells if cell not in self._seen and not is_wall(self.at(cell))]

    def free(self) -> list[Cell]:
        """Known cells where something could be put."""
        return [cell for cell in self._seen if self.at(cell) is None]

    def spare(self, cell: Cell) -> bool:
        """Whether a thing in this free cell would neither cut a way nor stand before a door."""
        if any(isinstance(self.at(beside), Door) for beside in around(cell)):
            return False
        ring = [not is_wall(self.at((cell[0] + x, cell[1] + y))) for x, y in _RING]
        return sum(ring[i] != ring[i - 1] for i in range(len(ring))) <= 2

    def to(self, goals: Iterable[Cell], avoid: Colors = frozenset()) -> list[Cell] | None:
        """The cheapest way over known cells to one of `goals`, from the next cell to the goal itself; or None."""
        wanted = set(goals) - {self._here}
        came: dict[Cell, Cell] = {}
        heap = [(0, self._here, self._here)] if wanted else []
        while heap:
            cost, cell, before = heapq.heappop(heap)
            if cell in came:
                continue
            came[cell] = before
            if cell in wanted:
                return self._trace(came, cell)
            if cell not in self._seen:
                continue
            for after in around(cell):
                price = _STEP if after in wanted else self._price(after, avoid)
                if after not in came and price is not None:
                    heapq.heappush(heap, (cost + price, after, cell))
        return None

    def _price(self, cell: Cell, avoid: Colors) -> int | None:
        thing = self.at(cell)
        if thing is None:
            return _STEP
        if not isinstance(thing, Door):
            return None if is_wall(thing) else _THING
        if thing.is_open:
            return _STEP
        if not thing.is_locked or opens(self._carrying, thing):
            return _DOOR
        return None if thing.color in avoid else _LOCKED

    def _trace(self, came: dict[Cell, Cell], cell: Cell) -> list[Cell]:
        way: list[Cell] = []
        while cell != self._here:
            way.append(cell)
            cell = came[cell]
        return way[::-1]


def around(cell: Cell) -> list[Cell]:
    """The four neighbours of a cell inside the outer walls."""
    return [(cell[0] + x, cell[1] + y) for x, y in AHEAD]


def is_wall(thing: WorldObj | None) -> bool:
    """Whether a wall stands there."""
    return thing is not None and thing.type == "wall"
