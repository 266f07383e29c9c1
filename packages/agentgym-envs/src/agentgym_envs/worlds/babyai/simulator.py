"""A Minigrid level as a simulator: primitive moves in, plain state out. Independent of text and macro actions."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from enum import IntEnum
from typing import Any, cast

import gymnasium
from gymnasium.error import DependencyNotInstalled

from agentgym_envs.util.installation import install

try:
    # pygame prints a greeting to stdout on import.
    with contextlib.redirect_stdout(io.StringIO()):
        from minigrid.core.constants import COLOR_NAMES
        from minigrid.core.world_object import Box, Door, WorldObj
        from minigrid.envs.babyai.core import roomgrid_level
        from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
        from minigrid.envs.babyai.core.verifier import (
            ActionInstr,
            AfterInstr,
            GoToInstr,
            Instr,
            ObjDesc,
            OpenInstr,
            PickupInstr,
            PutNextInstr,
            SeqInstr,
        )
except ImportError as error:
    raise DependencyNotInstalled(
        f"The environment agentgym/BabyAI-v0 needs Minigrid: {install('agentgym-envs[babyai]')}"
    ) from error

__all__ = [
    "AHEAD",
    "COLOR_NAMES",
    "Box",
    "Cell",
    "Door",
    "GoToInstr",
    "Instr",
    "Move",
    "ObjDesc",
    "OpenInstr",
    "PickupInstr",
    "PutNextInstr",
    "Simulator",
    "WorldObj",
]

Cell = tuple[int, int]
"""A cell of the grid as (column, row), from the top left."""

AHEAD: tuple[Cell, ...] = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""The step forward for each of Minigrid's four directions: right, down, left, up."""


def _print_nothing(*_: object) -> None:
    """Stand in for `print`."""


# Levels that reject a sampled layout print a message. Redirecting stdout instead would affect all threads.
roomgrid_level.__dict__["print"] = _print_nothing


class Move(IntEnum):
    """Minigrid's primitive actions."""

    LEFT = 0
    RIGHT = 1
    FORWARD = 2
    PICK_UP = 3
    DROP = 4
    TOGGLE = 5
    DONE = 6


class Simulator:
    """A Minigrid level without Minigrid's own observations, which are unused here."""

    def __init__(self, level_id: str) -> None:
        self.level = cast(RoomGridLevel, gymnasium.make(level_id, disable_env_checker=True).unwrapped)
        # Minigrid encodes the view as an array after every move, which takes three quarters of a step's time.
        self.level.gen_obs = dict[str, Any]
        self.terminated = False
        self.truncated = False
        self.reward = 0.0

    def reset(self, seed: int) -> None:
        """Build the level of that seed."""
        self.level.reset(seed=seed)
        self.terminated = self.truncated = False
        self.reward = 0.0
        self._marks = self._mark()

    def do(self, move: Move) -> bool:
        """Make one move and return whether the episode continues."""
        _, reward, terminated, truncated, _ = self.level.step(move)
        self.reward, self.terminated = float(reward), terminated
        self.truncated = truncated and not terminated
        return not (terminated or truncated)

    @property
    def position(self) -> Cell:
        """The agent's cell."""
        x, y = self.level.agent_pos
        return int(x), int(y)

    @property
    def ahead(self) -> Cell:
        """The cell the agent faces."""
        (x, y), (dx, dy) = self.position, AHEAD[self.level.agent_dir]
        return x + dx, y + dy

    @property
    def carrying(self) -> WorldObj | None:
        """The object that the agent carries."""
        return self.level.carrying

    @property
    def _instructions(self) -> Instr:
        return vars(self.level)["instrs"]

    @property
    def mission(self) -> str:
        """The goal in Minigrid's words, including words of order such as `then`."""
        return self.level.mission

    def at(self, cell: Cell) -> WorldObj | None:
        """Return a cell's content: wall, door, ball, box, key or None."""
        return self.level.grid.grid[cell[1] * self.level.grid.width + cell[0]]

    def things(self) -> Iterator[tuple[Cell, WorldObj]]:
        """Yield everything on the grid except walls, row by row."""
        width = self.level.grid.width
        for index, thing in enumerate(self.level.grid.grid):
            if thing is not None and thing.type != "wall":
                yield (index % width, index // width), thing

    def clauses(self) -> list[Instr]:
        """Return the remaining atomic clauses of the mission, in order; the last one once all are done."""
        return _remaining(self._instructions)

    def _mark(self) -> list[tuple[WorldObj, str]]:
        """Return the objects in the mission with their roles: two red balls may differ in nothing else."""
        marks: list[tuple[WorldObj, str]] = []
        clauses = (part for part in _parts(self._instructions) if isinstance(part, ActionInstr))
        roles = (role for clause in clauses for name, role in vars(clause).items() if name.startswith("desc"))
        for number, role in enumerate(roles):
            for thing in role.obj_set:
                marks.append((thing, f"{number},"))
        return marks

    def state(self) -> str:
        """Return the full state as text, except the number of moves made."""
        progress = [part for part in _parts(self._instructions) if isinstance(part, SeqInstr)]
        done = [(vars(part)["a_done"], vars(part)["b_done"]) for part in progress]
        grid = [(cell, self._describe(thing)) for cell, thing in self.things()]
        held = self._describe(self.carrying) if self.carrying is not None else None
        return repr((self.mission, self.position, int(self.level.agent_dir), held, done, grid))

    def _describe(self, thing: WorldObj) -> str:
        mark = "".join(role for marked, role in self._marks if marked is thing)
        if isinstance(thing, Door):
            return f"{thing.color} door {thing.is_open} {thing.is_locked} {mark}"
        inside = self._describe(thing.contains) if isinstance(thing, Box) and thing.contains is not None else ""
        return f"{thing.color} {thing.type} {mark} {inside}"


def _remaining(instruction: Any) -> list[Instr]:
    if not isinstance(instruction, SeqInstr):
        return [instruction]
    progress: dict[str, Any] = vars(instruction)
    halves = "ba" if isinstance(instruction, AfterInstr) else "ab"
    open_ones = [half for half in halves if progress[f"{half}_done"] != "success"] or [halves[1]]
    return [clause for half in open_ones for clause in _remaining(progress[f"instr_{half}"])]


def _parts(instruction: Any) -> Iterator[Any]:
    """Yield an instruction and all its parts, recursively."""
    yield instruction
    if isinstance(instruction, SeqInstr):
        yield from _parts(instruction.instr_a)
        yield from _parts(instruction.instr_b)
