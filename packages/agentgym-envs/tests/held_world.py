"""The world Door of a server's tests, with an action that takes as long as the test wants it to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import ClassVar

import gymnasium
from agentgym_envs import Feedback
from door_world import Door

ENV_ID = "held/Held-v0"


class Held(Door):
    """Door, and `hold FOLDER`: it makes FOLDER/begun and returns once there is FOLDER/go."""

    step_seconds: ClassVar[float] = 1.0
    step_waits: ClassVar[bool] = True

    def _act(self, action: str) -> Feedback:
        word, _, folder = action.partition(" ")
        if word != "hold":
            return super()._act(action)
        Path(folder, "begun").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.01)
        return Feedback("You waited.")


gymnasium.register(ENV_ID, Held, disable_env_checker=True)
