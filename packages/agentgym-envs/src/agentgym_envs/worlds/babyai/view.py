"""The agent's view as objects with positions and as text. Limited to Minigrid's 7x7 window.

Sets of cells are bit masks: cell (depth, column) is bit `8 * depth + column`, where depth 0 is the agent's row and
column 3 its column. Column 7 stays empty, so that shifting by one never wraps into another row.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import cache, cached_property

from agentgym_envs.worlds.babyai.simulator import AHEAD, Cell, Door, Move, Simulator, WorldObj

_SIZE = 7
_MIDDLE = 3
_ROW = 0b1111111
_HERE = 1 << _MIDDLE
_WINDOW = sum(_ROW << 8 * depth for depth in range(_SIZE))
# Directions within the window: ahead, right, back, left; turning right adds one.
_STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))


@dataclass(frozen=True, slots=True)
class Thing:
    """A visible object."""

    name: str
    """The kind and a number, counted from the nearest, such as `red ball 1` or `purple closed door 2`."""
    thing: WorldObj
    cell: Cell
    """Its cell on the grid."""
    depth: int
    """Rows ahead of the agent."""
    side: int
    """Columns to the right of the agent; negative to the left."""

    @property
    def bit(self) -> int:
        """The bit of its cell in the window."""
        return 1 << (8 * self.depth + _MIDDLE + self.side)


@dataclass(slots=True)
class _Window:
    """The visible cells, the walkable ones among them as a bit mask, and the objects in them."""

    cells: list[Cell] = field(default_factory=list[Cell])
    free: int = _HERE
    found: list[tuple[int, int, int, Cell, WorldObj]] = field(
        default_factory=list[tuple[int, int, int, Cell, WorldObj]]
    )
    facing: tuple[str, int] | None = None
    """The kind of the nearest object straight ahead, walls included, and its distance in steps."""


class View:
    """The agent's view in the current state."""

    def __init__(self, simulator: Simulator) -> None:
        window = _look(simulator)
        self.cells = window.cells
        """The visible cells of the grid."""
        self._free = window.free
        self._facing = window.facing
        self.carrying = simulator.carrying
        self.things = _numbered(window)
        """The visible objects, nearest first."""
        self.ahead = next((thing for thing in self.things if thing.depth == 1 and thing.side == 0), None)
        """The object directly in front of the agent."""

    @cached_property
    def _next_to_reach(self) -> int:
        """The cells that can be walked to over visible cells, and their neighbours."""
        reach, before = _HERE, 0
        while reach != before:
            before, reach = reach, _spread(reach) & self._free | reach
        return _spread(reach)

    @property
    def can_step(self) -> bool:
        """Whether the cell ahead is walkable."""
        return bool(self._free & (_HERE << 8))

    @property
    def can_drop(self) -> bool:
        """Whether the agent carries something and the cell ahead is empty."""
        return self.carrying is not None and self.can_step and self.ahead is None

    def reachable(self, thing: Thing) -> bool:
        """Whether the agent can get next to `thing` over visible cells."""
        return bool(thing.bit & self._next_to_reach)

    def path(self, thing: Thing) -> list[Move]:
        """Return the shortest moves after which a reachable `thing` is directly in front of the agent.

        Raises:
            ValueError: if `thing` isn't reachable.
        """
        start, goal = (_HERE, 0), thing.bit
        previous: dict[tuple[int, int], tuple[tuple[int, int], Move] | None] = {start: None}
        queue = deque([start])
        while queue:
            state = queue.popleft()
            cell, facing = state
            front = _shift(cell, *_STEPS[facing])
            if front == goal:
                return _trace(previous, state)
            for after, move in (
                ((front & self._free, facing), Move.FORWARD),
                ((cell, (facing + 3) % 4), Move.LEFT),
                ((cell, (facing + 1) % 4), Move.RIGHT),
            ):
                if after[0] and after not in previous:
                    previous[after] = (state, move)
                    queue.append(after)
        raise ValueError(f"{thing.name} can't be reached over visible cells; check `reachable` first.")

    def text(self) -> str:
        """Describe the view in AgentGym's sentences, on one line."""
        sentences = ["In front of you in this room, you can see several objects:"]
        sentences += [f"There is a {thing.name} {_where(thing)}." for thing in self.things]
        sentences.append("The room has walls around you.")
        if self._facing is not None:
            name, steps = self._facing
            sentences.append(f"You are facing a {name} {steps} steps away.")
        if self.carrying is None:
            sentences.append("You are not carrying anything.")
        else:
            sentences.append(f"You are carrying a {self.carrying.color} {self.carrying.type}.")
        return " ".join(sentences)


def _look(simulator: Simulator) -> _Window:
    """Apply Minigrid's visibility rule row by row: a visible cell that doesn't block sight reveals its neighbours."""
    (x, y), (fx, fy) = simulator.position, AHEAD[simulator.level.agent_dir]
    grid = simulator.level.grid
    window, visible = _Window(), _HERE
    for depth in range(_SIZE):
        row = [(x + fx * depth - fy * side, y + fy * depth + fx * side) for side in range(-_MIDDLE, _MIDDLE + 1)]
        content = [
            grid.grid[j * grid.width + i] if 0 <= i < grid.width and 0 <= j < grid.height else None for i, j in row
        ]
        clear = sum(1 << column for column, thing in enumerate(content) if thing is None or thing.see_behind())
        visible, ahead = _sight(visible, clear)
        for column in range(_SIZE):
            if visible >> column & 1:
                _add(window, depth, column - _MIDDLE, row[column], content[column])
        if not ahead:
            break
        visible = ahead
    return window


@cache
def _sight(visible: int, clear: int) -> tuple[int, int]:
    """Return all visible cells of a row of which `visible` are known, and the visible cells of the next row.

    As in Minigrid, each row is swept once to the right and once to the left. The last column reveals nothing in the
    first sweep, and the first column nothing in the second.
    """
    for _ in range(_SIZE - 1):
        visible |= (visible & clear) << 1 & _ROW
    rightward = visible & clear & 0b0111111
    for _ in range(_SIZE - 1):
        visible |= (visible & clear) >> 1
    leftward = visible & clear & 0b1111110
    return visible, rightward | rightward << 1 | leftward | leftward >> 1


def _add(window: _Window, depth: int, side: int, cell: Cell, thing: WorldObj | None) -> None:
    window.cells.append(cell)
    if thing is None or thing.can_overlap():
        window.free |= 1 << (8 * depth + _MIDDLE + side)
    if depth == 0 and side == 0:
        return
    if thing is not None and thing.type != "wall":
        window.found.append((depth + abs(side), depth, side, cell, thing))
    if thing is not None and side == 0 and window.facing is None:
        window.facing = (kind_of(thing), depth)


def _numbered(window: _Window) -> list[Thing]:
    count: Counter[str] = Counter()
    things: list[Thing] = []
    for _, depth, side, cell, thing in sorted(window.found, key=lambda entry: entry[:3]):
        kind = kind_of(thing)
        count[kind] += 1
        things.append(Thing(f"{kind} {count[kind]}", thing, cell, depth, side))
    return things


def kind_of(thing: WorldObj) -> str:
    """Return an object's name without its number: `red ball`, `purple closed door`, `wall`."""
    if isinstance(thing, Door):
        state = "open" if thing.is_open else "locked" if thing.is_locked else "closed"
        return f"{thing.color} {state} door"
    return "wall" if thing.type == "wall" else f"{thing.color} {thing.type}"


def _where(thing: Thing) -> str:
    if thing.side == 0:
        return f"right in front of you {thing.depth} steps away"
    hand = "right" if thing.side > 0 else "left"
    return f"{thing.depth} steps in front of you and {abs(thing.side)} steps to your {hand}"


def _spread(cells: int) -> int:
    return (cells | cells << 1 | cells >> 1 | cells << 8 | cells >> 8) & _WINDOW


def _shift(cell: int, depth: int, side: int) -> int:
    by = 8 * depth + side
    return (cell << by if by > 0 else cell >> -by) & _WINDOW


def _trace(previous: dict[tuple[int, int], tuple[tuple[int, int], Move] | None], state: tuple[int, int]) -> list[Move]:
    moves: list[Move] = []
    while (step := previous[state]) is not None:
        state, move = step
        moves.append(move)
    return moves[::-1]
