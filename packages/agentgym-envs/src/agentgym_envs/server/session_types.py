"""The nouns of a server: a session, and a call that was begun in it. They do nothing by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from agentgym_envs.core.text_env import Malformed
from agentgym_envs.pool import Ask, Result, Step, WorldSpec
from agentgym_envs.pool.calls import Call
from agentgym_envs.pool.slots import Slot
from agentgym_envs.server.wire import OutcomeWriter
from agentgym_envs.server.workers import Worker


@dataclass(slots=True, eq=False)
class Play:
    """A call that was begun."""

    call: Call
    key: str | None
    began: float
    result: Result | None = None
    """What came of it; its error, where there is one, is a `Refusal`."""
    listeners: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Called once there is a result."""
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class Session:
    """A world of a client's."""

    id: str
    world: str
    spec: WorldSpec
    worker: Worker
    slot: Slot
    expires: float
    instructions: str = ""
    last: Result | None = None
    """The last outcome."""
    play: Play | None = None
    """The call that is on its way."""
    keyed: Play | None = None
    """The last call that had a key."""
    closed: bool = False
    written: OutcomeWriter = field(default_factory=OutcomeWriter)


def kind_of(call: Call) -> str:
    """What metrics call it: a name out of few."""
    match call:
        case Ask("instructions"):
            return "create"
        case Ask():
            return call.name
        case _:
            return type(call).__name__.lower()


def same(call: Call, other: Call) -> bool:
    """Whether they ask for the same; a `Malformed` equals the text that it was made of, and isn't the same action."""
    return call == other and hint_of(call) == hint_of(other)


def hint_of(call: Call) -> str | None:
    """The hint of a reply in which no action was found."""
    return call.action.hint if isinstance(call, Step) and isinstance(call.action, Malformed) else None
