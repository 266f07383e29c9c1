"""Data types of the server: a session, and a call that was started in it."""

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
class CallRecord:
    """A started call, and its result once there is one."""

    call: Call
    key: str | None
    began: float
    result: Result | None = None
    """The result; its error, if any, is a `Refusal`."""
    listeners: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """Callbacks for the moment when the result is set."""
    timer: asyncio.TimerHandle | None = None


@dataclass(slots=True, eq=False)
class Session:
    """A client's environment."""

    id: str
    world: str
    spec: WorldSpec
    worker: Worker
    slot: Slot
    expires: float
    instructions: str = ""
    last: Result | None = None
    """The result of the last reset or step."""
    pending: CallRecord | None = None
    """The call without a result yet."""
    keyed: CallRecord | None = None
    """The last call with an idempotency key."""
    closed: bool = False
    written: OutcomeWriter = field(default_factory=OutcomeWriter)


def kind_of(call: Call) -> str:
    """Return the call's kind as a metrics label."""
    match call:
        case Ask("instructions"):
            return "create"
        case Ask():
            return call.name
        case _:
            return type(call).__name__.lower()


def same(call: Call, other: Call) -> bool:
    """Return whether two calls are equal. A `Malformed` equals its text, so hints are compared as well."""
    return call == other and hint_of(call) == hint_of(other)


def hint_of(call: Call) -> str | None:
    """Return the hint of a step's `Malformed` action, or None."""
    return call.action.hint if isinstance(call, Step) and isinstance(call.action, Malformed) else None
