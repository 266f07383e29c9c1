"""A world as an environment of OpenEnv, and a server of them that any OpenEnv client can play on.

`uvicorn.run(openenv_app("textcraft"), ...)`. With `agentgym/Remote-v0` as the world, what is played is on a `serve`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from gymnasium.error import DependencyNotInstalled
from pydantic import Field

from agentgym_envs.core.registry import full_id, text_env
from agentgym_envs.core.tasks import Split
from agentgym_envs.pool.calls import Reset, Result, Step, WorldSpec, carry_out
from agentgym_envs.util.installation import install

try:
    from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app
    from openenv.core.env_server.types import EnvironmentMetadata
except ModuleNotFoundError as missing:
    raise DependencyNotInstalled(f"OpenEnv's environments need its package: {install('openenv-core')}") from missing


class TextAction(Action):
    """An action of the world."""

    text: str = Field(description="The action as the world's instructions have it.")


class TextObservation(Observation):
    """What the world says; `reward` and `done` as OpenEnv has them. Rewards of an episode add up to its score."""

    text: str
    task_id: str
    score: float = Field(description="Earned so far, in [0, 1].")
    success: bool
    valid: bool = Field(description="Whether the last action was understood and possible.")
    truncated: bool = Field(description="Whether a limit ended the episode, and not the world.")


class OpenEnvWorld(Environment[TextAction, TextObservation, State]):
    """One world in one session.

    Args:
        world: Id or short name.
        options: For `gymnasium.make`.

    Raises:
        ValueError, DependencyNotInstalled: see `agentgym_envs.make`.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_SINGLE_THREAD_EXECUTOR = True

    def __init__(self, world: str, options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self._spec = WorldSpec(full_id(world), dict(options or {}))
        self._env = self._spec.build()
        self._state = State()

    def reset(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        task: str | None = None,
        split: Split = "train",
        **kwargs: Any,
    ) -> TextObservation:
        """Begin `task`, or one drawn from `split`.

        Raises:
            ValueError: for arguments that don't exist, or a bad split.
            KeyError: for an unknown task.
            EnvFault: when the world can't be brought up.
        """
        if kwargs:
            raise ValueError(f"Unknown argument {sorted(kwargs)}; reset takes seed, episode_id, task and split.")
        first = self._seen(carry_out(self._env, 0, Reset(task, split, seed)))
        self._state = State(episode_id=episode_id or first.task_id, step_count=0)
        return first

    def step(self, action: TextAction, timeout_s: float | None = None, **kwargs: Any) -> TextObservation:
        """Play `action`.

        Raises:
            ResetNeeded: before the first `reset`.
            EnvFault: when the world broke.
        """
        seen = self._seen(carry_out(self._env, 0, Step(action.text)))
        self._state.step_count += 1
        return seen

    @property
    def state(self) -> State:
        """The episode's id and number of steps."""
        return self._state

    def get_metadata(self) -> EnvironmentMetadata:
        """The world's id, and its instructions as the description."""
        return EnvironmentMetadata(name=self._spec.id, description=text_env(self._env).instructions)

    def close(self) -> None:
        """Close the world. May be called twice."""
        self._env.close()

    def _seen(self, result: Result) -> TextObservation:
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
    """An OpenEnv server of `world`: each WebSocket connection at `/ws` plays one of its own, `sessions` at a time.

    Raises:
        ValueError, DependencyNotInstalled: see `OpenEnvWorld`.
    """

    def make() -> OpenEnvWorld:
        return OpenEnvWorld(world, options)

    make().close()  # what is wrong with the world is said now, and not to the first client
    return create_fastapi_app(make, TextAction, TextObservation, max_concurrent_envs=sessions)
