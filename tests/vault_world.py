"""An environment that takes every secret option, and puts all of them into its error messages and logs."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

import gymnasium
from agentgym_envs import WORLDS, EnvFault, Feedback, Task, Tasks, TaskSet, TextEnv
from agentgym_envs.core.registration import REMOTE
from agentgym_envs.core.registry import world_class

ENV = "vault_world:vault/Vault-v0"
DECLARED = {
    name
    for world in (*(world.id for world in WORLDS), REMOTE)
    for name in getattr(world_class(world), "secret_options", ())
}
_log = logging.getLogger("agentgym_envs.vault")


def _tasks(split: Any) -> Tasks:
    ids = [f"vault/{split}/{number}" for number in range(3)]
    return Tasks(ids, lambda task_id: Task(task_id, "vault/Vault-v0", split, "only", 0, {}))


class Vault(TextEnv):
    package: ClassVar[str] = "vault_world"
    secret_options = frozenset(DECLARED)

    def __init__(self, *, render_mode: str | None = None, **options: Any) -> None:
        super().__init__(render_mode=render_mode)
        lines = [f"{name}={value}\n{ ({name: value}) }" for name, value in options.items()]
        self._secrets = "made with\n" + "\n".join(lines)
        self._tasks = TaskSet(train=_tasks("train"), dev=_tasks("dev"), test=_tasks("test"))
        self._open = False

    @property
    def instructions(self) -> str:
        return "Say `open`."

    @property
    def tasks(self) -> TaskSet:
        return self._tasks

    def _start(self, task: Task) -> str:
        self._open = False
        _log.warning("The vault is %s.", self._secrets)
        if task.id.endswith("/1"):
            raise EnvFault(f"The vault jammed, {self._secrets}.")
        return "A door."

    def _act(self, action: str) -> Feedback:
        if action == "kick":
            raise RuntimeError(self._secrets)
        self._open = action == "open"
        return Feedback("Open." if self._open else "Shut.", terminated=self._open)

    def _standing(self) -> tuple[float, bool]:
        return float(self._open), self._open

    def _state(self) -> str:
        return str(self._open)

    def oracle(self) -> str:
        return "open"


gymnasium.register("vault/Vault-v0", "vault_world:Vault", max_episode_steps=3, disable_env_checker=True)
