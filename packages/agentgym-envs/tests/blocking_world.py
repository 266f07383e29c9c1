"""The door environment for tests of servers, with an action that blocks as long as a test wants."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
from agentgym_envs import Feedback
from door_world import Door

ENV_ID = "held/Held-v0"


class BlockingDoor(Door):
    """A door with the actions `hold FOLDER` and `nap`.

    `hold` creates FOLDER/begun and returns once FOLDER/go exists; `nap` takes some milliseconds. `raw` has the id of
    the process.
    """

    step_seconds: ClassVar[float] = 1.0
    step_waits: ClassVar[bool] = True

    def _act(self, action: str) -> Feedback:
        word, _, folder = action.partition(" ")
        if word == "nap":
            time.sleep(0.02)
            return super()._act("knock")
        if word != "hold":
            return super()._act(action)
        Path(folder, "begun").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.01)
        return Feedback("You waited.")

    def _raw(self) -> dict[str, Any]:
        return super()._raw() | {"pid": os.getpid()}


gymnasium.register(ENV_ID, BlockingDoor, disable_env_checker=True)
