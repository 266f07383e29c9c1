"""The expert: computes the next action from the simulator's state, as a macro action where possible.

Its only memory is the set of cells seen, so it works in any state, no matter which policy acted before. Of the grid it
uses only these cells, so it has to explore like any policy, which makes its actions suitable for imitation.
Each decision takes a bounded number of searches. (Minigrid's own bot keeps a stack of plans that breaks when another
policy acts; it acts in primitive moves, and on some levels its planning doesn't terminate.)

Obstacles have costs: the cheapest path to a goal is found first, then its first obstacle is removed. An object that
must be carried somewhere is picked up only when the path is clear: otherwise it would be put down at the obstacle and
picked up again right after.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from agentgym_envs.worlds.babyai.actions import Plan, opens
from agentgym_envs.worlds.babyai.path_finding import Colors, Paths, around
from agentgym_envs.worlds.babyai.reasons import Words, described, subgoal
from agentgym_envs.worlds.babyai.simulator import (
    AHEAD,
    Box,
    Cell,
    Door,
    GoToInstr,
    Instr,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
    Simulator,
    WorldObj,
)
from agentgym_envs.worlds.babyai.view import View, kind_of

_NONE: Colors = frozenset()


@dataclass(frozen=True, slots=True)
class Intent:
    """The expert's next action and its reasons."""

    action: str
    reasons: tuple[str, ...]
    """Sentences, from the goal down to what is seen."""

    @property
    def thought(self) -> str:
        """The reasons on one line."""
        return " ".join(self.reasons)


class Expert:
    """Decides on one action in one state. The methods below return an intent, or None where they find none."""

    def __init__(self, simulator: Simulator, view: View, menu: dict[str, Plan], seen: Collection[Cell]) -> None:
        self._simulator = simulator
        self._menu = menu
        self._words = Words(simulator, view)
        self._names = self._words.names
        self._carrying = simulator.carrying
        self._ways = Paths(simulator, seen)
        self._kept: set[Cell] = set()
        """Cells of all paths considered so far: an object put down there would be an obstacle again."""

    def intent(self) -> Intent:
        """Return the next action. If the goal is unreachable for good (say, its box was opened), a step or a turn."""
        clause = self._simulator.clauses()[0]
        goal = f"I am to {subgoal(clause)}."
        intent = self._pursue(clause)
        if intent is None or intent.action not in self._menu:
            step = "move forward" if "move forward" in self._menu else "turn left"
            intent = Intent(step, ("I know no way to do it from here, so I just move.",))
        return Intent(intent.action, (goal, *intent.reasons))

    def plan(self) -> str:
        """Return the remaining subgoals, one per line, and what is done about the first."""
        subgoals = [subgoal(clause) for clause in self._simulator.clauses()]
        first = " ".join(self.intent().reasons[1:])
        return "\n".join([*(f"{i}. {s[0].upper()}{s[1:]}." for i, s in enumerate(subgoals, 1)), f"Now: {first}"])

    def _pursue(self, clause: Instr) -> Intent | None:
        match clause:
            case GoToInstr():
                return self._go_to(clause.desc.obj_poss, described(clause.desc))
            case OpenInstr():
                return self._open(clause.desc.obj_set, described(clause.desc))
            case PickupInstr():
                if self._holds(clause.desc.obj_set):
                    return _because("I hold it already, but only picking it up counts.", self._drop())
                return self._pick_up(clause.desc.obj_set, described(clause.desc))
            case PutNextInstr():
                return self._put_next(clause)
            case _:
                return None

    # The four kinds of subgoals.

    def _go_to(self, cells: Iterable[Cell], what: str) -> Intent | None:
        known = self._ways.seen(cells)
        way = self._ways.to(known)
        if way is None:
            return _because(_missing(what, known), self._explore() or self._drop())
        if not self._facing(way):
            return self._follow(way)
        # Already there, but Minigrid checks the goal only after a move.
        go = f"go to {self._names[way[-1]]}" if way[-1] in self._names else "turn left"
        return Intent(go, (f"I stand before {self._words.thing(way[-1])} already, but only a move makes it count.",))

    def _open(self, doors: list[WorldObj], what: str) -> Intent | None:
        shut = [door for door in doors if isinstance(door, Door) and not door.is_open]
        way = self._ways.to(self._ways.known(shut)) or self._ways.to(self._ways.known(doors))
        if way is None:
            return _because(_missing(what, self._ways.known(doors)), self._explore())
        door = self._ways.at(way[-1])
        if (clearing := self._clear(way)) is not None:
            return clearing
        if isinstance(door, Door) and door.is_locked and not opens(self._carrying, door):
            return self._unlock(way[-1], door, _NONE)
        if not self._facing(way):
            return self._walk(way)
        again = "It is open already, so I must close it before I can open it."
        return self._toggle(way) if shut else _because(again, self._toggle(way))

    def _pick_up(self, things: Iterable[WorldObj], what: str, avoid: Colors = _NONE) -> Intent | None:
        known = self._ways.known(things)
        way = self._ways.to(known, avoid)
        if way is None:
            return _because(_missing(what, known), self._explore(avoid) or self._drop())
        if (clearing := self._clear(way, avoid)) is not None:
            return clearing
        if self._carrying is not None and not self._unlocks(way):
            return _because(f"I need my hands for {self._words.thing(way[-1])}.", self._drop(way))
        pick_up = f"pick up {self._names.get(way[-1])}"
        return Intent(pick_up, (self._where(way[-1]),)) if pick_up in self._menu else self._walk(way)

    def _put_next(self, clause: PutNextInstr) -> Intent | None:
        movable, fixed = clause.desc_move.obj_set, clause.desc_fixed.obj_set
        moved, place = described(clause.desc_move), described(clause.desc_fixed)
        places = self._ways.known(fixed)
        beside = [cell for known in places for cell in around(known) if self._ways.at(cell) is None]
        way = self._ways.to(beside)
        if way is None:
            missing = _missing(f"a free cell next to {place}" if places else place, [])
            if (moving := self._explore() or self._step_off(clause, beside)) is not None:
                return _because(missing, moving)
            if places and not beside:
                blocking = self._pick_up(self._ways.movable(places), f"an object next to {place}")
                return _because(f"There is no room next to {place}.", blocking)
            return _because(missing, self._pick_up(movable, moved))
        if self._simulator.position in beside and self._ways.obstacle(way) in places:
            return self._step_off(clause, beside) or self._pick_up(movable, moved)
        if (clearing := self._clear(way)) is not None:
            return clearing
        if not self._holds(movable):
            return self._pick_up(movable, moved)
        neighbour = next(cell for cell in around(way[-1]) if cell in places)
        return _because(f"I carry {moved}, and next to {self._words.thing(neighbour)} there is room.", self._put(way))

    # Exploration and obstacles.

    def _explore(self, avoid: Colors = _NONE) -> Intent | None:
        way = self._ways.to(self._ways.unseen, avoid)
        return None if way is None else self._follow(way, avoid)

    def _follow(self, way: list[Cell], avoid: Colors = _NONE) -> Intent:
        return self._clear(way, avoid) or self._walk(way)

    def _clear(self, way: list[Cell], avoid: Colors = _NONE) -> Intent | None:
        """Remove the first obstacle before the end of a path; None if there is none."""
        self._kept.update(way)
        cell = self._ways.obstacle(way)
        if cell is None:
            return None
        what, thing = self._words.thing(cell), self._ways.at(cell)
        if isinstance(thing, Door):
            return _because(f"{_capital(what)} is in my way.", self._unlock(cell, thing, avoid))
        return thing and _because(f"{_capital(what)} is in my way.", self._pick_up([thing], what, avoid))

    def _unlock(self, cell: Cell, door: Door, avoid: Colors) -> Intent | None:
        needed = f"To open {self._words.thing(cell)} I need a {door.color} key."
        return _because(needed, self._fetch_key(door.color, avoid | {door.color}))

    def _fetch_key(self, color: str, avoid: Colors) -> Intent | None:
        keys = [thing for _, thing in self._ways.things if _is_key(thing, color)]
        boxes = [cell for cell, thing in self._ways.things if isinstance(thing, Box) and _is_key(thing.contains, color)]
        way = self._ways.to(boxes, avoid)
        if keys or way is None:
            return self._pick_up(keys, f"a {color} key", avoid)
        maybe = f"I have seen none, but one may be in {self._words.thing(way[-1])}."
        return _because(maybe, self._toggle(way) if self._facing(way) else self._follow(way, avoid))

    def _step_off(self, clause: PutNextInstr, beside: list[Cell]) -> Intent | None:
        """Leave one of the cells `beside` the place with what is to be put there; None in other states."""
        way = self._ways.to(self._ways.free())
        if way is None or self._simulator.position not in beside or not self._holds(clause.desc_move.obj_set):
            return None
        reason = f"I carry {described(clause.desc_move)}, but the free cell for it is the one that I stand in."
        return _because(reason, self._follow(way))

    def _drop(self, toward: Sequence[Cell] = ()) -> Intent | None:
        """Move towards a cell where the carried object blocks no path, and put it down.

        Args:
            toward: The path to the object for which the hands must be free, if there is one.
        """
        if self._carrying is None:
            return None
        free = set(self._ways.free())
        off_path = free - self._kept
        spare = self._ways.to(filter(self._ways.spare, off_path), clear=True)
        way = spare or self._ways.to(off_path, clear=True) or self._ways.to(free.difference(toward), clear=True)
        held = f"the {kind_of(self._carrying)} that I carry"
        if way is None and len(toward) > 1 and self._ways.at(toward[0]) is None:  # the cell that is left is free then
            return _because(f"Only my own way has room for {held}, so I go on.", self._walk(list(toward[:1])))
        way = way or self._ways.to(free, clear=True)
        if way is None:
            return Intent("turn left", (f"I look for room to put down {held}.",))
        return _because(f"I put down {held} where {'it bars no way' if spare else 'there is room'}.", self._put(way))

    def _put(self, way: list[Cell]) -> Intent:
        """Put the carried object down at the end of a path."""
        return Intent("drop", (self._where(way[-1]),)) if self._facing(way) else self._walk(way, onto=False)

    # One step of a path.

    def _walk(self, way: list[Cell], *, onto: bool = True) -> Intent:
        """Return the action that gets farthest along a path without obstacles.

        Args:
            way: The path.
            onto: Whether the action may end in the last cell of the path, if it is empty, and not only in front of it.
        """
        end = self._where(way[-1])
        go_to = f"go to {self._names.get(way[-1])}"
        if go_to in self._menu:
            return Intent(go_to, (end,))
        door = next((cell for cell in way[:-1] if isinstance(self._ways.at(cell), Door)), None)
        if door is not None:
            leads = f"The way there leads through {self._words.thing(door)}, {self._words.place(door)}."
            verbs = ("go through", "toggle and go through")
            if not onto and door == way[-2]:  # these would end behind the door
                verbs = () if door == way[0] else ("go to",)
            for verb in verbs:
                through = f"{verb} {self._names.get(door)}"
                if through in self._menu:
                    return Intent(through, (end, leads))
        (x, y), (i, j) = self._simulator.position, way[0]
        turn = (AHEAD.index((i - x, j - y)) - self._simulator.level.agent_dir) % len(AHEAD)
        shut = isinstance(ahead := self._ways.at(way[0]), Door) and not ahead.is_open
        step = "turn left" if turn == 3 else "turn right" if turn else "toggle" if shut else "move forward"
        begins = f"The way there begins {self._words.place(way[0])}."
        return Intent(step, (end, begins) if len(way) > 1 else (end,))

    def _toggle(self, way: list[Cell]) -> Intent:
        return Intent("toggle", (self._where(way[-1]),))

    def _where(self, cell: Cell) -> str:
        place = self._words.place(cell)
        if self._ways.is_seen(cell):
            return f"{_capital(self._words.thing(cell))} is {place}."
        return f"The next place that I haven't seen is {place}."

    def _facing(self, way: list[Cell]) -> bool:
        return way[-1] == self._simulator.ahead

    def _holds(self, things: Iterable[WorldObj]) -> bool:
        return any(thing is self._carrying for thing in things)

    def _unlocks(self, way: list[Cell]) -> bool:
        """Whether the carried object is the key to a door on the path."""
        things = map(self._ways.at, way[:-1])
        return any(isinstance(thing, Door) and thing.is_locked and opens(self._carrying, thing) for thing in things)


def _because(reason: str, intent: Intent | None) -> Intent | None:
    """Prepend a reason to an intent, if there is one."""
    return intent and Intent(intent.action, (reason, *intent.reasons))


def _missing(what: str, known: Collection[Cell]) -> str:
    return f"I know no way to {what}." if known else f"I haven't seen {what} yet."


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _is_key(thing: WorldObj | None, color: str) -> bool:
    return thing is not None and thing.type == "key" and thing.color == color
