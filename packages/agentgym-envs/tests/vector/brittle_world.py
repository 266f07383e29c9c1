"""A door environment that breaks on command, during an episode or at its start."""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

import gymnasium
from agentgym_envs import EnvFault, Feedback, Task
from door_world import Door

ENV_ID = "brittle/Door-v0"


class BrittleDoor(Door):
    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012
    step_seconds: ClassVar[float] = 1e-5
    key: ClassVar[threading.Event] = threading.Event()
    """The event that the action `hang` waits for."""

    def __init__(self, *, render_mode: str | None = None, chars: int | None = None) -> None:
        super().__init__(render_mode=render_mode)
        self.broken_starts = 0
        self.starts = 0
        if chars is not None:
            self.observation_space.max_length = chars  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def pid(self) -> int:
        return os.getpid()

    def _start(self, task: Task) -> str:
        self.starts += 1
        if self.broken_starts:
            self.broken_starts -= 1
            raise EnvFault("the frame is bent")
        return super()._start(task)

    def _act(self, action: str) -> Feedback:
        match action:
            case "crash":
                raise EnvFault("the hinges gave way")
            case "die":
                os._exit(3)
            case "hang":
                self.key.wait()
                return Feedback("At last.")
            case "explode":
                raise ZeroDivisionError("a mistake in the world itself")
            case _:
                return super()._act(action)

    def _raw(self) -> dict[str, Any]:
        odd = self.knocks % 2 == 1
        return super()._raw() | {"parity": {"odd": odd}} | ({"echo": f"{self.knocks}!"} if odd else {})

    def break_starts(self, count: int, *, more: int = 0) -> int:
        """Make the next `count + more` starts fail, and return their number."""
        self.broken_starts = count + more
        return self.broken_starts


gymnasium.register(
    ENV_ID,
    "brittle_world:BrittleDoor",
    max_episode_steps=6,
    disable_env_checker=True,
    vector_entry_point=f"agentgym_envs.vector.vector_env:{ENV_ID}",
)
