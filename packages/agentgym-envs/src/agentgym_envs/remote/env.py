"""`agentgym/Remote-v0`: an environment on a server with the interface of a local one."""

from __future__ import annotations

import concurrent.futures
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsFloat

import gymnasium
from gymnasium.error import ResetNeeded

from agentgym_envs.core.action_schema import Function
from agentgym_envs.core.tasks import Task, TaskSet
from agentgym_envs.core.text_env import Feedback, TextEnv
from agentgym_envs.pool.calls import Ask, Call, Reset, Result, Step, WorldSpec
from agentgym_envs.remote.servers import TIMEOUT, Servers, servers
from agentgym_envs.remote.slots import RemoteSlot

_CLOSE_TIMEOUT = 5.0  # seconds for closing the session


class RemoteEnv(TextEnv):
    """The environment `env` on the server at `url`: `gymnasium.make("agentgym/Remote-v0", url="http://127.0.0.1:8000",
    env="agentgym/TextCraft-v0")`. Observations, renderings and limits are those of the server's environment.

    The connection opens on first use and is shared by the environments of this process. A lost session (the server is
    unreachable, or the lease expired during an episode) raises an `EnvFault`; the next `reset` opens a new session on
    any reachable server. Retried calls carry an idempotency key, so that no action is executed twice.

    Args:
        url: One or several servers with the same environments, as a sequence or separated by commas. Sessions are
            balanced across them. Proxy environment variables are ignored.
        env: Gymnasium id of the environment on the server.
        token: Access token, unless the URLs contain it: `http://:TOKEN@HOST:PORT`.
        timeout: Seconds without a response after which an attempt fails; there are four attempts.
        horizon: Turns after which the server truncates an episode, instead of the environment's own limit. (Gymnasium's
            `max_episode_steps` adds a limit on the client side.)
        render_mode: A render mode of the environment.
        **options: Environment options that clients may set.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012 - as Gymnasium has it
    package: ClassVar[str] = "agentgym_envs.remote"
    secret_options = frozenset({"token"})
    step_waits: ClassVar[bool] = True
    oracle_replans: ClassVar[bool] = False  # unknown: the server doesn't tell

    def __init__(
        self,
        *,
        url: str | Sequence[str],
        env: str,
        token: str | None = None,
        timeout: float = TIMEOUT,
        horizon: int | None = None,
        render_mode: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(render_mode=render_mode)
        # every environment renders text; an image mode is listed if the caller requested it
        self.metadata = self.metadata | {"render_modes": sorted({"ansi", render_mode or "ansi"})}
        set_here = {"max_episode_steps": horizon, "render_mode": render_mode}
        options |= {name: value for name, value in set_here.items() if value is not None}
        self._world = WorldSpec(env, options)
        self._address = (url, token, timeout)
        self._connection: _Connection | None = None
        self._outcome: Result | None = None

    @property
    def tasks(self) -> TaskSet:
        """The environment's tasks. Fetches all ids, and tasks page by page on access. Raises the errors of `reset`."""
        connection = self._connected()
        tasks = connection.tasks = connection.tasks or self._call(Ask("tasks")).value
        return tasks

    @property
    def task(self) -> Task:
        """See `TextEnv.task`."""
        return self.tasks[self._info()["task_id"]]

    @property
    def instructions(self) -> str:
        """See `TextEnv.instructions`. Raises the errors of `reset`."""
        connection = self._connected()
        text = connection.instructions = connection.instructions or self._call(Ask("instructions")).value
        return text

    @property
    def has_screenshots(self) -> bool:
        """Whether `info` has screenshots: those that the option `screenshot` asks for."""
        return self._world.options.get("screenshot") is True

    @property
    def functions(self) -> tuple[Function, ...]:
        """See `TextEnv.functions`. Raises the errors of `reset`."""
        return self._call(Ask("functions")).value

    @property
    def lists_actions(self) -> bool:
        """True: the server doesn't tell before an episode."""
        return True

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """See `TextEnv.reset`. The server draws the task; without a seed, its environment's generator continues.

        Raises:
            ValueError: If an option, split or environment is unknown, the split is empty, or clients can't set an
                option.
            KeyError: If the task id is unknown.
            PermissionError: If the token is missing or wrong.
            EnvFault: If no server opens a session, or the environment fails to start.
        """
        gymnasium.Env.reset(self, seed=seed)
        chosen: dict[str, Any] = {"task": None, "split": "train"} | dict(options or {})
        if unknown := chosen.keys() - {"task", "split"}:
            raise ValueError(f"Unknown reset option {sorted(unknown)}; reset takes 'task' and 'split'.")
        self._outcome = self._call(Reset(chosen["task"], chosen["split"], seed))
        return self._outcome.observation, self._outcome.info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """See `TextEnv.step`. After an `EnvFault`, the action may or may not have been executed."""
        self._check_reset()
        if not isinstance(action, str):
            raise TypeError(f"An action must be a str, not {type(action).__name__}.")
        result = self._outcome = self._call(Step(action))
        return result.observation, result.reward, result.terminated, result.truncated, result.info

    def render(self) -> Any:
        """Render the environment: text in mode `ansi`, an array of shape (height, width, 3) in `rgb_array`."""
        return self._call(Ask("render")).value

    def oracle(self) -> str:
        """See `TextEnv.oracle`."""
        return self._call(Ask("oracle")).value

    def oracle_thought(self) -> str:
        """See `TextEnv.oracle_thought`."""
        return self._call(Ask("oracle_thought")).value

    def oracle_plan(self) -> str:
        """See `TextEnv.oracle_plan`."""
        return self._call(Ask("oracle_plan")).value

    def scene(self) -> dict[str, Any] | None:
        """See `TextEnv.scene`."""
        return self._call(Ask("scene")).value

    def close(self) -> None:
        """Close the session. A later `reset` opens a new one."""
        if self._connection is not None:
            self._connection.finalizer()
            self._connection.slot.join(_CLOSE_TIMEOUT)
            self._connection = self._outcome = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the session: a copy or unpickled environment opens its own."""
        return self.__dict__ | {"_connection": None, "_outcome": None}

    def _connected(self) -> _Connection:
        """Return the connection of this process. A forked child must not use its parent's."""
        if self._connection is None or not self._connection.servers.loop.alive:
            if self._connection is not None:
                self._connection.finalizer.detach()
            url, token, timeout = self._address
            shared = servers(url, token=token, timeout=timeout)
            slot = RemoteSlot(0, self._world, shared)
            self._connection = _Connection(shared, slot, weakref.finalize(self, _close, shared, slot))
        return self._connection

    def _call(self, call: Call) -> Result:
        """Carry out `call`. Raises the error of its result."""
        slot = self._connected().slot
        future: concurrent.futures.Future[Result] = concurrent.futures.Future()
        slot.submit(call, future.set_result)
        try:
            result = future.result()
        except BaseException:  # Ctrl-C: the state of the server's environment is unknown
            slot.replace()
            raise
        if result.error is not None:
            raise result.error
        return result

    # The hooks of `TextEnv`. `reset` and `step` don't use them, since the server's environment has its own.

    def _start(self, task: Task) -> str:
        return self.reset(options={"task": task.id})[0]

    def _act(self, action: str) -> Feedback:
        observation, _, terminated, truncated, info = self.step(action)
        return Feedback(observation, info["valid"], terminated, truncated)

    def _standing(self) -> tuple[float, bool]:
        return self._info()["score"], self._info()["success"]

    def _state(self) -> str:
        return self._info()["state_key"]

    def _info(self) -> dict[str, Any]:
        self._check_reset()
        assert self._outcome is not None
        return self._outcome.info

    def _check_reset(self) -> None:
        if self._outcome is None:
            raise ResetNeeded("No episode is running; call reset() first.")


@dataclass(slots=True)
class _Connection:
    """The resources of an environment between its first call and `close`."""

    servers: Servers
    slot: RemoteSlot
    finalizer: weakref.finalize[..., RemoteEnv]
    """Closes the session, at the latest when the environment is garbage-collected or the process ends."""
    tasks: TaskSet | None = None
    instructions: str | None = None


def _close(shared: Servers, slot: RemoteSlot) -> None:
    slot.close()
    shared.close()
