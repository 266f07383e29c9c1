"""An OpenEnv environment, and a server for OpenEnv clients.

Run it with `uvicorn.run(openenv_app("textcraft"), ...)`. With `agentgym/Remote-v0`, the environment runs on a `serve`
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from gymnasium.error import DependencyNotInstalled
from pydantic import Field

from agentgym_envs.core.registration import full_id
from agentgym_envs.core.registry import text_env
from agentgym_envs.core.tasks import Split
from agentgym_envs.pool.calls import Reset, Result, Step, WorldSpec, carry_out
from agentgym_envs.util.installation import install

try:
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
    from openenv.core.env_server.types import EnvironmentMetadata
except ModuleNotFoundError as missing:
    raise DependencyNotInstalled(
        f"The OpenEnv adapter needs the package openenv-core. Install it: {install('openenv-core')}"
    ) from missing


class TextAction(Action):
    """An action of the environment."""

    text: str = Field(description="The action, as described in the environment's instructions.")


class TextObservation(Observation):
    """The result of a step, besides OpenEnv's `reward` and `done`. The rewards of an episode sum to its score."""

    text: str
    task_id: str
    score: float = Field(description="Score so far, in [0, 1].")
    success: bool
    valid: bool = Field(description="Whether the last action was understood and possible.")
    truncated: bool = Field(description="Whether a limit ended the episode rather than the environment itself.")


class OpenEnvWorld(Environment[TextAction, TextObservation, State]):
    """The environment of one session.

    Args:
        world: The id or short name of the environment.
        options: Options for `gymnasium.make`.

    Raises:
        ValueError, DependencyNotInstalled: see `agentgym_envs.make`.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_SINGLE_THREAD_EXECUTOR = True

    def __init__(self, world: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._spec = WorldSpec(full_id(world), dict(options or {}))
        self._env = self._spec.build()
        self._last: TextObservation | None = None
        self._state = State()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: str | None = None,
        split: Split = "train",
        **kwargs: Any,
    ) -> TextObservation:
        """Start `task`, or a task drawn from `split`.

        Raises:
            ValueError: if an argument or the split is unknown.
            KeyError: if the task is unknown.
            EnvFault: if the environment can't be started.
        """
        if kwargs:
            raise ValueError(f"Unknown argument {sorted(kwargs)}; reset takes seed, episode_id, task and split.")
        self._last = None
        first = self._last = self._observation(carry_out(self._env, 0, Reset(task, split, seed)))
        self._state = State(episode_id=episode_id or first.task_id, step_count=0)
        return first

    def step(self, action: TextAction, timeout_s: float | None = None, **kwargs: Any) -> TextObservation:
        """Play `action`. After the end, also by a limit of turns, nothing changes and rewards are 0.

        Raises:
            ResetNeeded: before the first `reset`.
            EnvFault: if the environment broke.
        """
        if self._last is not None and self._last.done:
            return self._last.model_copy(update={"reward": 0.0})
        self._last = self._observation(carry_out(self._env, 0, Step(action.text)))
        self._state.step_count += 1
        return self._last

    @property
    def state(self) -> State:
        """The episode's id and step count."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """Return the environment's id as the name and its instructions as the description."""
        return EnvironmentMetadata(name=self._spec.id, description=text_env(self._env).instructions)

    def close(self) -> None:
        """Close the environment. May be called twice."""
        self._env.close()

    def _observation(self, result: Result) -> TextObservation:
        if result.error is not None:
            raise result.error
        info = result.info
        return TextObservation(
            text=result.observation,
            reward=result.reward,
            done=result.over,
            truncated=result.truncated,
            **{name: info[name] for name in ("task_id", "score", "success", "valid")},
        )


def openenv_app(world: str, *, sessions: int = 64, **options: Any) -> FastAPI:
    """Return an OpenEnv server of `world`. Each WebSocket connection to `/ws` has its own environment.

    Args:
        world: The id or short name of the environment.
        sessions: The maximum number of concurrent connections.
        **options: Options for `gymnasium.make`.

    Raises:
        ValueError, DependencyNotInstalled: see `OpenEnvWorld`.
    """

    def make() -> OpenEnvWorld:
        return OpenEnvWorld(world, options)

    make().close()  # raise errors now, not at the first client's request
    return create_fastapi_app(make, TextAction, TextObservation, max_concurrent_envs=sessions)
