"""Environments for the server tests: Door, with actions that block, fail or return unusual values."""

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
"""The events that `wait NAME` waits for, in the server's own process."""
blocked: dict[str, threading.Event] = {}
"""Events that are set once `wait NAME` waits."""
open_envs: set[int] = set()
"""Ids of the environments that were created and not closed."""


def image() -> NDArray[np.uint8]:
    """Return what environments render, of shape (2, 3, 3)."""
    return np.arange(18, dtype=np.uint8).reshape(2, 3, 3) * 14


def clear_state() -> None:
    """Clear the state that earlier tests left."""
    gates.clear()
    blocked.clear()
    open_envs.clear()


def wait_until_blocked(name: str) -> None:
    """Return once an environment waits for `name`."""
    assert blocked.setdefault(name, threading.Event()).wait(PATIENCE)


def release(name: str) -> None:
    """End all present and future waiting for `name`."""
    gates.setdefault(name, threading.Event()).set()


def release_all() -> None:
    """End all present waiting."""
    for gate in gates.values():
        gate.set()


def all_closed() -> bool:
    """Wait until every environment is closed. A replaced environment closes only after its blocked call returns."""
    return eventually(lambda: not open_envs)


class PanicException(BaseException):
    """Raised by panics of packages in Rust, as this one is no `Exception`."""


class Quick(Door):
    """Door, executed in the server's thread, with actions that block or fail."""

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
        self.actions: list[str] = []
        open_envs.add(id(self))

    def _start(self, task: Task) -> str:
        self.actions = []
        return super()._start(task)

    def _act(self, action: str) -> Feedback:
        self.actions.append(action)
        match action.split():
            case ["wait", name]:
                gate = gates.setdefault(name, threading.Event())
                blocked.setdefault(name, threading.Event()).set()
                gate.wait(PATIENCE)
                return Feedback(f"You waited for {name}.")
            case ["dawdle"]:
                time.sleep(0.006)
                return Feedback("You dawdled.")
            case ["fault"]:
                raise EnvFault("The door fell off.")
            case ["bug"]:
                raise KeyError("a mistake of the world's")
            case ["panic"]:
                raise PanicException("index out of bounds")
            case ["die"]:
                os._exit(3)
            case ["half"]:
                return Feedback("half a \ud83e")
            case _:
                return super()._act(action)

    def _raw(self) -> dict[str, Any]:
        unusual = {"nan": float("nan"), "half": "\ud83e", "seven": np.int64(7), "list": np.arange(2), "set": {1}}
        cyclic: dict[str, Any] = {}
        cyclic["knot"] = cyclic
        return {"acted": len(self.actions)} | {"raw": unusual, "knotted": cyclic}.get(self.mood, {})

    def render(self) -> Any:
        return image() if self.render_mode == "rgb_array" else super().render()

    def close(self) -> None:
        open_envs.discard(id(self))


class Waiting(Quick):
    """`Quick`, executed in a thread of its own."""

    step_seconds: ClassVar[float] = 1.0
    step_waits: ClassVar[bool] = True


class Bound(Waiting):
    """`Waiting`, with a check that only the thread that created it uses it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.thread = threading.get_ident()

    def _act(self, action: str) -> Feedback:
        assert threading.get_ident() == self.thread, "step in another thread"
        return super()._act(action)

    @property
    def instructions(self) -> str:
        assert threading.get_ident() == self.thread, "instructions in another thread"
        return super().instructions

    def oracle(self) -> str:
        assert threading.get_ident() == self.thread, "oracle in another thread"
        return super().oracle()

    def close(self) -> None:
        assert threading.get_ident() == self.thread, "close in another thread"
        super().close()


gymnasium.register(QUICK, Quick, max_episode_steps=50, disable_env_checker=True)
gymnasium.register(WAITING, Waiting, disable_env_checker=True)
gymnasium.register(BOUND, Bound, disable_env_checker=True)
