"""Worlds of the server's tests: Door, and whatever a world may do to a server that holds it."""

from __future__ import annotations

import os
import threading
import time
from typing import Any, ClassVar

import gymnasium
import numpy as np
from agentgym_envs import EnvFault, Feedback, Task
from door_world import Door
from numpy.typing import NDArray
from patience import PATIENCE, eventually

QUICK, WAITING, BOUND = "strange/Quick-v0", "strange/Waiting-v0", "strange/Bound-v0"
WORLDS = tuple(f"strange_worlds:{world}" for world in (QUICK, WAITING, BOUND))

gates: dict[str, threading.Event] = {}
"""What `wait NAME` waits for, in the server's own process."""
begun: dict[str, threading.Event] = {}
"""Set once it does."""
living: set[int] = set()
"""The worlds that were made and not closed."""


def picture() -> NDArray[np.uint8]:
    """What worlds show: (2, 3, 3)."""
    return np.arange(18, dtype=np.uint8).reshape(2, 3, 3) * 14


def forget() -> None:
    """Begin as if nothing had happened."""
    gates.clear()
    begun.clear()
    living.clear()


def wait_for(name: str) -> None:
    """Return once a world waits for `name`."""
    assert begun.setdefault(name, threading.Event()).wait(PATIENCE)


def let_go_on(name: str) -> None:
    """Whoever waits for `name`, or will, goes on."""
    gates.setdefault(name, threading.Event()).set()


def let_go() -> None:
    """Whoever waits has waited long enough."""
    for gate in gates.values():
        gate.set()


def all_closed() -> bool:
    """Whether every world is closed, by and by: one that was let go of while it hung closes when it comes back."""
    return eventually(lambda: not living)


class Quick(Door):
    """Door, played in the server's thread, with some actions that no world should have."""

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    client_options: ClassVar[frozenset[str]] = frozenset({"mood"})
    step_seconds: ClassVar[float] = 1e-5

    def __init__(self, *, mood: str = "fine", secret: str = "", render_mode: str | None = None) -> None:
        super().__init__(render_mode=render_mode)
        if mood == "broken":
            raise EnvFault("This world is in no mood.")
        if mood not in ("fine", "raw", "knotted"):
            raise ValueError(f"mood is fine or raw, not {mood!r}.")
        self.mood = mood
        self.acted: list[str] = []
        living.add(id(self))

    def _start(self, task: Task) -> str:
        self.acted = []
        return super()._start(task)

    def _act(self, action: str) -> Feedback:
        self.acted.append(action)
        match action.split():
            case ["wait", name]:
                gate = gates.setdefault(name, threading.Event())
                begun.setdefault(name, threading.Event()).set()
                gate.wait(PATIENCE)
                return Feedback(f"You waited for {name}.")
            case ["dawdle"]:
                time.sleep(0.006)
                return Feedback("You dawdled.")
            case ["fault"]:
                raise EnvFault("The door fell off.")
            case ["bug"]:
                raise KeyError("a mistake of the world's")
            case ["die"]:
                os._exit(3)
            case ["half"]:
                return Feedback("half a \ud83e")
            case _:
                return super()._act(action)

    def _raw(self) -> dict[str, Any]:
        odd = {"nan": float("nan"), "half": "\ud83e", "seven": np.int64(7), "list": np.arange(2), "set": {1}}
        knot: dict[str, Any] = {}
        knot["knot"] = knot
        return {"acted": len(self.acted)} | {"raw": odd, "knotted": knot}.get(self.mood, {})

    def render(self) -> Any:
        return picture() if self.render_mode == "rgb_array" else super().render()

    def close(self) -> None:
        living.discard(id(self))


class Waiting(Quick):
    """The same in a thread of its own."""

    step_seconds: ClassVar[float] = 1.0
    step_waits: ClassVar[bool] = True


class Bound(Waiting):
    """The same, and no other thread may touch it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.thread = threading.get_ident()

    def _act(self, action: str) -> Feedback:
        assert threading.get_ident() == self.thread, "another thread plays"
        return super()._act(action)

    @property
    def instructions(self) -> str:
        assert threading.get_ident() == self.thread, "another thread asks"
        return super().instructions

    def oracle(self) -> str:
        assert threading.get_ident() == self.thread, "another thread asks"
        return super().oracle()

    def close(self) -> None:
        assert threading.get_ident() == self.thread, "another thread closes"
        super().close()


gymnasium.register(QUICK, Quick, max_episode_steps=50, disable_env_checker=True)
gymnasium.register(WAITING, Waiting, disable_env_checker=True)
gymnasium.register(BOUND, Bound, disable_env_checker=True)
