"""One Minigrid level and how it is driven: primitive moves in, bare facts out. Knows no text and no macro action."""

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
    # pygame greets on stdout when it is imported.
    with contextlib.redirect_stdout(io.StringIO()):
        from minigrid.core.world_object import Box, Door, WorldObj
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
        f"The world agentgym/BabyAI-v0 needs Minigrid: {install('agentgym-envs[babyai]')}"
    ) from error

__all__ = [
    "AHEAD",
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
    """A level of Minigrid, reset and moved without its own observations, which nobody here reads."""

    def __init__(self, level_id: str) -> None:
        self.level = cast(RoomGridLevel, gymnasium.make(level_id, disable_env_checker=True).unwrapped)
        # Minigrid encodes what is seen as an array after every move: three quarters of the time of a step.
        self.level.gen_obs = dict[str, Any]
        self.terminated = False
        self.truncated = False
        self.reward = 0.0

    def reset(self, seed: int) -> None:
        """Build the level of that seed."""
        # Levels that reject a draw say so on stdout.
        with contextlib.redirect_stdout(io.StringIO()):
            self.level.reset(seed=seed)
        self.terminated = self.truncated = False
        self.reward = 0.0
        self._marks = self._mark()

    def do(self, move: Move) -> bool:
        """Make one move; returns whether the episode goes on."""
        _, reward, terminated, truncated, _ = self.level.step(move)
        self.reward, self.terminated = float(reward), terminated
        self.truncated = truncated and not terminated
        return not (terminated or truncated)

    @property
    def position(self) -> Cell:
        """Where the agent stands."""
        x, y = self.level.agent_pos
        return int(x), int(y)

    @property
    def ahead(self) -> Cell:
        """The cell the agent faces."""
        (x, y), (dx, dy) = self.position, AHEAD[self.level.agent_dir]
        return x + dx, y + dy

    @property
    def carrying(self) -> WorldObj | None:
        """What the agent holds."""
        return self.level.carrying

    @property
    def _instructions(self) -> Instr:
        return vars(self.level)["instrs"]

    @property
    def mission(self) -> str:
        """The goal in Minigrid's words, order words and all."""
        return self.level.mission

    def at(self, cell: Cell) -> WorldObj | None:
        """What stands in a cell: wall, door, ball, box, key or nothing."""
        return self.level.grid.grid[cell[1] * self.level.grid.width + cell[0]]

    def things(self) -> Iterator[tuple[Cell, WorldObj]]:
        """Everything on the grid but walls, row by row."""
        width = self.level.grid.width
        for index, thing in enumerate(self.level.grid.grid):
            if thing is not None and thing.type != "wall":
                yield (index % width, index // width), thing

    def clauses(self) -> list[Instr]:
        """The parts of the mission that are one deed each and are still to be done, in order; at the end the last."""
        return _left(self._instructions)

    def _mark(self) -> dict[int, str]:
        """For the objects that the mission means, where it does: two red balls may differ in nothing else."""
        marks: dict[int, str] = {}
        deeds = (part for part in _parts(self._instructions) if isinstance(part, ActionInstr))
        roles = (role for deed in deeds for name, role in vars(deed).items() if name.startswith("desc"))
        for number, role in enumerate(roles):
            for thing in role.obj_set:
                marks[id(thing)] = f"{marks.get(id(thing), '')}{number},"
        return marks

    def state(self) -> str:
        """Everything that the future depends on, as text, except the number of moves made."""
        progress = [part for part in _parts(self._instructions) if isinstance(part, SeqInstr)]
        done = [(vars(part)["a_done"], vars(part)["b_done"]) for part in progress]
        grid = [(cell, self._tell(thing)) for cell, thing in self.things()]
        held = self._tell(self.carrying) if self.carrying is not None else None
        return repr((self.mission, self.position, int(self.level.agent_dir), held, done, grid))

    def _tell(self, thing: WorldObj) -> str:
        mark = self._marks.get(id(thing), "")
        if isinstance(thing, Door):
            return f"{thing.color} door {thing.is_open} {thing.is_locked} {mark}"
        inside = self._tell(thing.contains) if isinstance(thing, Box) and thing.contains is not None else ""
        return f"{thing.color} {thing.type} {mark} {inside}"


def _left(instruction: Any) -> list[Instr]:
    if not isinstance(instruction, SeqInstr):
        return [instruction]
    progress: dict[str, Any] = vars(instruction)
    halves = "ba" if isinstance(instruction, AfterInstr) else "ab"
    open_ones = [half for half in halves if progress[f"{half}_done"] != "success"] or [halves[1]]
    return [clause for half in open_ones for clause in _left(progress[f"instr_{half}"])]


def _parts(instruction: Any) -> Iterator[Any]:
    """An instruction and all its parts."""
    yield instruction
    if isinstance(instruction, SeqInstr):
        yield from _parts(instruction.instr_a)
        yield from _parts(instruction.instr_b)
