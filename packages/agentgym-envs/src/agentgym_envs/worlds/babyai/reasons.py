"""Wordings for the expert's reasons: objects, positions relative to the agent, and subgoals. Covers seen cells only."""

from __future__ import annotations

from agentgym_envs.worlds.babyai.simulator import (
    AHEAD,
    Cell,
    GoToInstr,
    Instr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
    Simulator,
)
from agentgym_envs.worlds.babyai.view import View, kind_of


class Words:
    """Names of objects and descriptions of cells in one state."""

    def __init__(self, simulator: Simulator, view: View) -> None:
        self._at = simulator.at
        self._here = simulator.position
        self._facing = AHEAD[simulator.level.agent_dir]
        self.names = {thing.cell: thing.name for thing in view.things}
        """The names of the visible objects, by cell."""

    def thing(self, cell: Cell) -> str:
        """Name the object in a seen cell: by its current name if it is visible, else as one seen before."""
        if cell in self.names:
            return self.names[cell]
        thing = self._at(cell)
        return "that place" if thing is None else f"the {kind_of(thing)} I saw before"

    def place(self, cell: Cell) -> str:
        """Describe a cell's position relative to the agent: `3 steps ahead and 2 to my left`."""
        (x, y), (fx, fy) = self._here, self._facing
        dx, dy = cell[0] - x, cell[1] - y
        depth, side = dx * fx + dy * fy, dy * fx - dx * fy
        along = f"{_steps(depth)} {'ahead' if depth > 0 else 'behind me'}" if depth else ""
        hand = f"to my {'right' if side > 0 else 'left'}"
        across = "" if not side else f"{abs(side)} {hand}" if along else f"{_steps(side)} {hand}"
        return " and ".join(filter(None, (along, across)))


def subgoal(clause: Instr) -> str:
    """Describe one clause of a mission: `put a red ball next to the blue box`."""
    match clause:
        case GoToInstr():
            return f"go to {described(clause.desc)}"
        case OpenInstr():
            return f"open {described(clause.desc)}"
        case PickupInstr():
            return f"pick up {described(clause.desc)}"
        case PutNextInstr():
            return f"put {described(clause.desc_move)} next to {described(clause.desc_fixed)}"
        case _:
            raise NotImplementedError(f"The expert doesn't support Minigrid's {type(clause).__name__}.")


def described(wanted: ObjDesc) -> str:
    """Describe the target of a mission: `the red ball`, `a door`, `the key that was on my left at first`."""
    article = "a" if len(wanted.obj_set) > 1 else "the"
    place = {"front": "in front of me", "behind": "behind me"}.get(str(wanted.loc), f"on my {wanted.loc}")
    words = (article, wanted.color, wanted.type or "object", f"that was {place} at first" if wanted.loc else None)
    return " ".join(filter(None, words))


def _steps(count: int) -> str:
    return f"{abs(count)} step{'s' if abs(count) > 1 else ''}"
