"""The expert: reads the simulator's state and says the next action, in macro actions where it can.

It remembers nothing but which cells were seen, so it may be asked in any state, after whatever moves of whomever. Of
the grid it uses what was seen so far: it explores as a good player must, which is what makes it worth imitating.
Every answer takes a bounded number of searches. (Minigrid's own bot keeps a stack of plans, which moves of others
upset; it speaks in primitive moves, and on some levels it plans for ever.)

Obstacles have a price: the cheapest way to a goal is found first, then the first obstacle on it is dealt with.
Whatever must be carried somewhere is picked up only when the way there is clear. Were it carried up to an obstacle, it
would have to be put down there, and then be picked up again as the next thing to do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from agentgym_envs.worlds.babyai.actions import Plan, opens
from agentgym_envs.worlds.babyai.simulator import (
    AHEAD,
    Box,
    Cell,
    Door,
    GoToInstr,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
    Simulator,
    WorldObj,
)
from agentgym_envs.worlds.babyai.view import View
from agentgym_envs.worlds.babyai.ways import Colors, Ways, around

_NONE: Colors = frozenset()


class Expert:
    """Decides on one action in one state. Every method below answers with an action, or None where it has none."""

    def __init__(self, simulator: Simulator, view: View, menu: dict[str, Plan], seen: Collection[Cell]) -> None:
        self._simulator = simulator
        self._menu = menu
        self._names = {thing.cell: thing.name for thing in view.things}
        self._carrying = simulator.carrying
        self._ways = Ways(simulator, seen)
        self._kept: set[Cell] = set()
        """Cells of the ways considered on the way to a decision: what is put down there is in the way again."""

    def action(self) -> str:
        """The next action. Where the goal is out of reach for good, as when its box was opened, a step or a turn."""
        action = self._pursue()
        if action in self._menu:
            return action
        return "move forward" if "move forward" in self._menu else "turn left"

    def _pursue(self) -> str | None:
        match self._simulator.clause():
            case GoToInstr() as clause:
                return self._go_to(clause.desc.obj_poss)
            case OpenInstr() as clause:
                return self._open(clause.desc.obj_set)
            case PickupInstr() as clause:
                return self._drop() if self._holds(clause.desc.obj_set) else self._pick_up(clause.desc.obj_set)
            case PutNextInstr() as clause:
                return self._put_next(clause.desc_move.obj_set, clause.desc_fixed.obj_set)
            case clause:
                raise NotImplementedError(f"Minigrid's {type(clause).__name__} is no deed the expert knows.")

    # The four deeds.

    def _go_to(self, cells: Iterable[Cell]) -> str | None:
        way = self._ways.to(self._ways.seen(cells))
        if way is None:
            return self._explore() or self._drop()
        if not self._facing(way):
            return self._follow(way)
        # Already there: Minigrid looks only after a move.
        return f"go to {self._names[way[-1]]}" if way[-1] in self._names else "turn left"

    def _open(self, doors: list[WorldObj]) -> str | None:
        shut = [door for door in doors if isinstance(door, Door) and not door.is_open]
        way = self._ways.to(self._ways.known(shut)) or self._ways.to(self._ways.known(doors))
        if way is None:
            return self._explore()
        door = self._ways.at(way[-1])
        if (aside := self._clear(way)) is not None:
            return aside
        if isinstance(door, Door) and door.is_locked and not opens(self._carrying, door):
            return self._fetch_key(door.color, _NONE)
        return "toggle" if self._facing(way) else self._walk(way)

    def _pick_up(self, things: Iterable[WorldObj], avoid: Colors = _NONE) -> str | None:
        way = self._ways.to(self._ways.known(things), avoid)
        if way is None:
            return self._explore(avoid) or self._drop()
        if (aside := self._clear(way, avoid)) is not None:
            return aside
        if self._carrying is not None and not self._unlocks(way):
            return self._drop()
        pick_up = f"pick up {self._names.get(way[-1])}"
        return pick_up if pick_up in self._menu else self._walk(way)

    def _put_next(self, movable: list[WorldObj], fixed: list[WorldObj]) -> str | None:
        places = self._ways.known(fixed)
        way = self._ways.to(cell for place in places for cell in around(place) if self._ways.at(cell) is None)
        if way is None:
            return self._explore() or self._pick_up(movable)
        if (aside := self._clear(way)) is not None:
            return aside
        if not self._holds(movable):
            return self._pick_up(movable)
        return "drop" if self._facing(way) else self._walk(way)

    # What stands in the way.

    def _explore(self, avoid: Colors = _NONE) -> str | None:
        way = self._ways.to(self._ways.unseen, avoid)
        return None if way is None else self._follow(way, avoid)

    def _follow(self, way: list[Cell], avoid: Colors = _NONE) -> str:
        return self._clear(way, avoid) or self._walk(way)

    def _clear(self, way: list[Cell], avoid: Colors = _NONE) -> str | None:
        """What to do about the first obstacle before the end of a way; None when there is none."""
        self._kept.update(way)
        for cell in way[:-1]:
            thing = self._ways.at(cell)
            if not isinstance(thing, Door):
                if thing is not None:
                    return self._pick_up([thing], avoid)
            elif thing.is_locked and not opens(self._carrying, thing):
                return self._fetch_key(thing.color, avoid)
        return None

    def _fetch_key(self, color: str, avoid: Colors) -> str | None:
        keys = [thing for _, thing in self._ways.things if _is_key(thing, color)]
        boxes = [cell for cell, thing in self._ways.things if isinstance(thing, Box) and _is_key(thing.contains, color)]
        way = self._ways.to(boxes, avoid | {color})
        if keys or way is None:
            return self._pick_up(keys, avoid | {color})
        return "toggle" if self._facing(way) else self._follow(way, avoid | {color})

    def _drop(self) -> str | None:
        """Towards a place where what is held is in nobody's way."""
        if self._carrying is None:
            return None
        free = set(self._ways.free())
        aside = free - self._kept
        way = self._ways.to(filter(self._ways.spare, aside)) or self._ways.to(aside) or self._ways.to(free)
        if way is None:
            return "turn left"
        return "drop" if self._facing(way) else self._walk(way)

    # One step of a way.

    def _walk(self, way: list[Cell]) -> str:
        """The action that gets farthest along a way without obstacles."""
        go_to = f"go to {self._names.get(way[-1])}"
        if go_to in self._menu:
            return go_to
        door = next((cell for cell in way[:-1] if isinstance(self._ways.at(cell), Door)), None)
        if door is not None:
            for verb in ("go through", "toggle and go through"):
                through = f"{verb} {self._names.get(door)}"
                if through in self._menu:
                    return through
        (x, y), (i, j) = self._simulator.position, way[0]
        turn = (AHEAD.index((i - x, j - y)) - self._simulator.level.agent_dir) % len(AHEAD)
        return "turn left" if turn == 3 else "turn right" if turn else "move forward"

    def _facing(self, way: list[Cell]) -> bool:
        return way[-1] == self._simulator.ahead

    def _holds(self, things: Iterable[WorldObj]) -> bool:
        return any(thing is self._carrying for thing in things)

    def _unlocks(self, way: list[Cell]) -> bool:
        """Whether what is held is the key to a door on the way."""
        things = map(self._ways.at, way[:-1])
        return any(isinstance(thing, Door) and thing.is_locked and opens(self._carrying, thing) for thing in things)


def _is_key(thing: WorldObj | None, color: str) -> bool:
    return thing is not None and thing.type == "key" and thing.color == color
