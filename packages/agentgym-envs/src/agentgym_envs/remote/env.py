"""`agentgym/Remote-v0`: a world on a server, played as if it were here. Knows no world and nothing of HTTP."""

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

_PARTING = 5.0  # seconds for giving the session back


class RemoteEnv(TextEnv):
    """The world `env` on the server at `url`: `gymnasium.make("agentgym/Remote-v0", url="http://127.0.0.1:8000",
    env="agentgym/TextCraft-v0")`. What the world says, draws and limits comes from there, as it would be here.

    The connection is made when it is first needed, and shared by the environments of this process. A session that is
    lost (its server went, its lease ended in an episode) is an `EnvFault`; the next `reset` opens another, on whichever
    server is there. A call that is repeated because no answer came is never played twice.

    Args:
        url: One or several servers of the same worlds, as a sequence or with commas; sessions are shared out. Proxy
            settings of the environment aren't followed.
        env: Gymnasium id of the world there.
        token: What the servers want to see, unless their URLs have it: `http://:TOKEN@HOST:PORT`.
        timeout: Seconds without an answer after which an attempt counts as failed; there are four.
        horizon: Turns after which the world there truncates, in place of its own limit. (Gymnasium's
            `max_episode_steps` puts a further limit on this side.)
        render_mode: One that the world has.
        **options: Options of the world, as far as a client may set them.
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi", "rgb_array"], "render_fps": 4}  # noqa: RUF012 - as Gymnasium has it
    package: ClassVar[str] = "agentgym_envs.remote"
    secret_options = frozenset({"token"})
    step_waits: ClassVar[bool] = True

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
        # text is what every world shows; whether this one has pictures is known to those who ask for them
        self.metadata = self.metadata | {"render_modes": sorted({"ansi", render_mode or "ansi"})}
        set_here = {"max_episode_steps": horizon, "render_mode": render_mode}
        options |= {name: value for name, value in set_here.items() if value is not None}
        self._world = WorldSpec(env, options)
        self._address = (url, token, timeout)
        self._connection: _Connection | None = None
        self._outcome: Result | None = None

    @property
    def tasks(self) -> TaskSet:
        """The tasks of the world; their ids come at once, they themselves by the page. Raises as `reset`."""
        connection = self._connected()
        tasks = connection.tasks = connection.tasks or self._call(Ask("tasks")).value
        return tasks

    @property
    def task(self) -> Task:
        """See `TextEnv.task`."""
        return self.tasks[self._info()["task_id"]]

    @property
    def instructions(self) -> str:
        """See `TextEnv.instructions`. Raises as `reset`."""
        connection = self._connected()
        text = connection.instructions = connection.instructions or self._call(Ask("instructions")).value
        return text

    @property
    def functions(self) -> tuple[Function, ...]:
        """See `TextEnv.functions`. Raises as `reset`."""
        return self._call(Ask("functions")).value

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """See `TextEnv.reset`. The server draws the task; without a seed, from what its world drew before.

        Raises:
            ValueError: for an unknown option, split or world, an empty split, or an option that a client can't set.
            KeyError: for an unknown task id.
            PermissionError: without the right token.
            EnvFault: when no server gives a world, or it can't be brought up.
        """
        gymnasium.Env.reset(self, seed=seed)
        asked: dict[str, Any] = {"task": None, "split": "train"} | dict(options or {})
        if unknown := asked.keys() - {"task", "split"}:
            raise ValueError(f"Unknown reset option {sorted(unknown)}; reset takes 'task' and 'split'.")
        self._outcome = self._call(Reset(asked["task"], asked["split"], seed))
        return self._outcome.observation, self._outcome.info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """See `TextEnv.step`. A fault leaves it open whether the action was played."""
        if self._outcome is None:
            raise ResetNeeded("No task is being played yet: call reset() before step().")
        if not isinstance(action, str):
            raise TypeError(f"An action is text (str), not {type(action).__name__}.")
        result = self._outcome = self._call(Step(action))
        return result.observation, result.reward, result.terminated, result.truncated, result.info

    def render(self) -> Any:
        """The world's: text in mode `ansi`, an array (height, width, 3) in `rgb_array`."""
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
        """Give the session back; a later `reset` opens another."""
        if self._connection is not None:
            self._connection.part()
            self._connection.slot.join(_PARTING)
            self._connection = self._outcome = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy, here or in another process, is a world of its own in which nothing is played yet."""
        return self.__dict__ | {"_connection": None, "_outcome": None}

    def _connected(self) -> _Connection:
        """The connection of this process: a fork must not speak on its parent's."""
        if self._connection is None or not self._connection.servers.loop.alive:
            if self._connection is not None:
                self._connection.part.detach()
            url, token, timeout = self._address
            shared = servers(url, token=token, timeout=timeout)
            slot = RemoteSlot(0, self._world, shared)
            self._connection = _Connection(shared, slot, weakref.finalize(self, _part, shared, slot))
        return self._connection

    def _call(self, call: Call) -> Result:
        """What comes of `call`; raises its error."""
        slot = self._connected().slot
        answer: concurrent.futures.Future[Result] = concurrent.futures.Future()
        slot.submit(call, answer.set_result)
        try:
            result = answer.result()
        except BaseException:  # Ctrl-C: what the world has played is unknown
            slot.replace()
            raise
        if result.error is not None:
            raise result.error
        return result

    # The hooks of `TextEnv`, for whoever calls one: the world on the server has done their work.

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
        if self._outcome is None:
            raise ResetNeeded("No task is being played yet: call reset() first.")
        return self._outcome.info


@dataclass(slots=True)
class _Connection:
    """What an environment holds between its first call and `close`."""

    servers: Servers
    slot: RemoteSlot
    part: weakref.finalize[..., RemoteEnv]
    """Gives the session back, at the latest when the environment is collected or the process ends."""
    tasks: TaskSet | None = None
    instructions: str | None = None


def _part(shared: Servers, slot: RemoteSlot) -> None:
    slot.close()
    shared.close()
