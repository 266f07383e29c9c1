"""The expert's world in words: things, places as the agent stands, and deeds. Says nothing of what was never seen."""

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
    """Names and places at one moment."""

    def __init__(self, simulator: Simulator, view: View) -> None:
        self._at = simulator.at
        self._here = simulator.position
        self._facing = AHEAD[simulator.level.agent_dir]
        self.names = {thing.cell: thing.name for thing in view.things}
        """What the things in sight are called, by cell."""

    def thing(self, cell: Cell) -> str:
        """The thing in a cell that was seen: by the name it has in sight, or as one from before."""
        if cell in self.names:
            return self.names[cell]
        thing = self._at(cell)
        return "that place" if thing is None else f"the {kind_of(thing)} I saw before"

    def place(self, cell: Cell) -> str:
        """Where a cell lies: `3 steps ahead and 2 to my left`."""
        (x, y), (fx, fy) = self._here, self._facing
        dx, dy = cell[0] - x, cell[1] - y
        depth, side = dx * fx + dy * fy, dy * fx - dx * fy
        along = f"{_steps(depth)} {'ahead' if depth > 0 else 'behind me'}" if depth else ""
        hand = f"to my {'right' if side > 0 else 'left'}"
        across = "" if not side else f"{abs(side)} {hand}" if along else f"{_steps(side)} {hand}"
        return " and ".join(filter(None, (along, across)))


def deed(clause: Instr) -> str:
    """What one part of a mission asks for: `put a red ball next to the blue box`."""
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
            raise NotImplementedError(f"Minigrid's {type(clause).__name__} is no deed the expert knows.")


def described(wanted: ObjDesc) -> str:
    """What a mission calls the things it means: `the red ball`, `a door`, `the key that was on your left`."""
    article = "a" if len(wanted.obj_set) > 1 else "the"
    place = {"front": "in front of me", "behind": "behind me"}.get(str(wanted.loc), f"on my {wanted.loc}")
    words = (article, wanted.color, wanted.type or "object", f"that was {place} at first" if wanted.loc else None)
    return " ".join(filter(None, words))


def _steps(count: int) -> str:
    return f"{abs(count)} step{'s' if abs(count) > 1 else ''}"
