"""Text actions and the primitive moves they expand to.

A macro action walks only over visible cells, so the available actions depend on the current view alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from agentgym_envs.worlds.babyai.simulator import Door, Move, WorldObj
from agentgym_envs.worlds.babyai.view import Thing, View

_VERBS = ("go to", "pick up", "go through", "toggle and go through")
GRAMMAR = "turn left, turn right, move forward, toggle, drop, " + ", ".join(f"{verb} <object> <id>" for verb in _VERBS)
_MAX_ECHO = 60


@dataclass(frozen=True, slots=True)
class Plan:
    """An available action: walk up to a thing, then make these moves."""

    thing: Thing | None
    then: tuple[Move, ...]

    def moves(self, view: View) -> list[Move]:
        """Return the primitive moves, at least one: Minigrid checks whether the goal is reached only after a move."""
        path = view.path(self.thing) if self.thing is not None else []
        return [*path, *self.then] or [Move.DONE]


def menu(view: View) -> dict[str, Plan]:
    """Return all available actions."""
    plans = {"turn left": Plan(None, (Move.LEFT,)), "turn right": Plan(None, (Move.RIGHT,))}
    if view.can_step:
        plans["move forward"] = Plan(None, (Move.FORWARD,))
    if view.ahead is not None and _toggles(view.ahead.thing, view.carrying):
        plans["toggle"] = Plan(None, (Move.TOGGLE,))
    if view.can_drop:
        plans["drop"] = Plan(None, (Move.DROP,))
    for thing in view.things:
        if view.reachable(thing):
            verbs = _verbs_for(thing.thing, view.carrying)
            plans |= {f"{verb} {thing.name}": Plan(thing, then) for verb, then in verbs}
    return plans


def normalise(action: str) -> str:
    """Lower-case the action, collapse spaces and strip full stops; AgentGym's `pickup` becomes `pick up`."""
    return re.sub(r"^pickup\b", "pick up", " ".join(action.lower().split()).rstrip(" ."))


def refusal(action: str, view: View) -> str:
    """Return the reason why a normalized action isn't available."""
    verb = next((verb for verb in _VERBS if action.startswith(f"{verb} ")), None)
    if action in ("move forward", "drop", "toggle"):
        return f"You can't {action} now: {_blocked(action, view)}."
    if verb is None:
        return f"{action[:_MAX_ECHO]!a} is not an action. The actions are: {GRAMMAR}."
    name = action[len(verb) + 1 :]
    thing = next((thing for thing in view.things if thing.name == name), None)
    if thing is None:
        return f"You see no {name[:_MAX_ECHO]!a}; objects are named with color and id, such as red ball 1."
    return f"You can't {verb} {name} now: {_out_of_reach(verb, thing, view)}."


def _verbs_for(thing: WorldObj, carrying: WorldObj | None) -> Iterator[tuple[str, tuple[Move, ...]]]:
    yield "go to", ()
    if not isinstance(thing, Door):
        if carrying is None:
            yield "pick up", (Move.PICK_UP,)
    elif thing.is_open:
        yield "go through", (Move.FORWARD, Move.FORWARD)
    elif _toggles(thing, carrying):
        yield "toggle and go through", (Move.TOGGLE, Move.FORWARD, Move.FORWARD)


def _toggles(thing: WorldObj, carrying: WorldObj | None) -> bool:
    if isinstance(thing, Door):
        return not thing.is_locked or opens(carrying, thing)
    return thing.type == "box"


def opens(carrying: WorldObj | None, door: Door) -> bool:
    """Whether the carried object is the key to a door."""
    return carrying is not None and carrying.type == "key" and carrying.color == door.color


def _blocked(action: str, view: View) -> str:
    if action == "move forward":
        return "the way ahead is blocked"
    if action == "drop":
        return "there is no room ahead" if view.carrying is not None else "you are not carrying anything"
    if view.ahead is not None and isinstance(view.ahead.thing, Door):
        return f"the {view.ahead.name} is locked, and you don't carry a {view.ahead.thing.color} key"
    return "there is no door or box right in front of you"


def _out_of_reach(verb: str, thing: Thing, view: View) -> str:
    if not view.reachable(thing):
        return "the way there is blocked or out of sight"
    door = thing.thing if isinstance(thing.thing, Door) else None
    if verb == "pick up":
        return "doors stay where they are" if door is not None else "your hands are full"
    if door is None:
        return "it is not a door"
    if door.is_locked:
        return f"it is locked, and you don't carry a {door.color} key"
    return "it is open, so go through it" if door.is_open else "it is closed, so toggle and go through it"
