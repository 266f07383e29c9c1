"""Episodes of a harness: an agent of another program plays, and the gateway records what it samples."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from agentgym_envs import EnvFault, EnvPool, Episode, EpisodeSpec, ReplyWrapper, StopReason, Task, WorldSpec, text_env
from agentgym_envs.core.feedback import writable
from agentgym_envs.util.redaction import redacted

from agentgym_trainer.gateway.harness import HarnessFailure, HarnessTask, Outcome
from agentgym_trainer.gateway.recording import EpisodeLimits, EpisodeRecord, first_system, first_tools
from agentgym_trainer.gateway.server import Gateway


class TaskSource(Protocol):
    """An environment as harnesses need it."""

    @property
    def wrapped(self) -> ReplyWrapper:
        """A local instance, which has the tasks."""
        ...

    @property
    def pool(self) -> EnvPool:
        """A pool with the environment's id and options; nothing is played in it."""
        ...


class RunHarness(Protocol):
    """Runs one episode of a harness."""

    async def __call__(self, task: HarnessTask, base_url: str, api_key: str) -> Outcome:
        """Return the outcome.

        Raises:
            HarnessFailure: if there is none.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Result:
    outcome: Outcome | None
    error: str
    seconds: float


class HarnessPlayer:
    """Plays episodes with a harness, a limited number of them concurrently."""

    def __init__(
        self, run: RunHarness, gateway: Gateway, limits: EpisodeLimits, *, timeout: float, slots: asyncio.Semaphore
    ) -> None:
        """Set up the player.

        Args:
            run: Runs the harness.
            gateway: The gateway, on the event loop in which `play` is called.
            limits: Token limits and sampling of each episode; the horizon of an episode limits its requests.
            timeout: Seconds after which an episode has failed.
            slots: Held by each episode that is played.
        """
        self._run, self._gateway, self._limits = run, gateway, limits
        self._timeout, self._slots = timeout, slots

    async def play(self, world: TaskSource, spec: EpisodeSpec, horizon: int | None) -> Episode:
        """Play an episode; see `play_task`."""
        return await self.play_task(world.wrapped, world.pool.specs[0], spec, horizon)

    async def play_task(self, env: ReplyWrapper, made: WorldSpec, spec: EpisodeSpec, horizon: int | None) -> Episode:
        """Play an episode.

        Args:
            env: A local instance of the environment, which has the tasks.
            made: The environment's id and options.
            spec: What is played.
            horizon: Maximum number of requests; None sets no limit.

        Crashes, timeouts and harnesses that make no request are failed episodes. If a harness raises or takes too
        long after it has reached a limit on tokens or requests, the episode ends there with reward 0: otherwise a
        policy could have episodes left out that it loses.

        Raises:
            EngineGone: if the engine can't be brought back.
            Exception: whatever else the engine or the endpoint raises.
        """
        if spec.task_id is None:
            raise ValueError("An episode of a harness names its task; choose one of the environment's tasks.")
        task = text_env(env).tasks[spec.task_id]
        asked = HarnessTask(
            env=made.id,
            options=_options(made.options, horizon),
            id=task.id,
            split=task.split,
            category=task.category,
            difficulty=task.difficulty,
            payload=task.payload,
            seed=spec.seed or 0,
            sample=spec.sample,
            horizon=horizon,
            model=self._gateway.model,
        )
        limits = replace(self._limits, calls=horizon or 0)
        rng = np.random.default_rng([spec.seed or 0, spec.sample, *bytes(task.id, "utf-8")])
        async with self._slots:
            opened = self._gateway.open_episode(limits, rng, task=task.id, sample=spec.sample)
            try:
                result = await self._result(asked, opened.base_url, opened.api_key)
            finally:
                self._gateway.close_episode(opened)
        record = opened.record
        if record.error is not None and not isinstance(record.error, EnvFault):
            raise record.error
        return self._episode(task, spec, record, result)

    async def _result(self, task: HarnessTask, base_url: str, api_key: str) -> _Result:
        began, outcome, error = time.perf_counter(), None, ""
        try:
            async with asyncio.timeout(self._timeout):
                outcome = await self._run(task, base_url, api_key)
        except TimeoutError:
            error = f"The harness did not end within {self._timeout:g} seconds."
        except HarnessFailure as failure:
            error = str(failure)
        return _Result(outcome, error, time.perf_counter() - began)

    def _episode(self, task: Task, spec: EpisodeSpec, record: EpisodeRecord, result: _Result) -> Episode:
        stop, error = _stop(record, result)
        failed = stop == "failed"
        reward = result.outcome.reward if result.outcome else 0.0
        sampling = min(record.seconds, result.seconds)
        return Episode(
            env=task.env,
            task_id=task.id,
            split=task.split,
            category=task.category,
            difficulty=task.difficulty,
            policy=self._gateway.model,
            sample=spec.sample,
            instructions=first_system(record.calls),
            turns=record.turns(0.0 if failed else reward),
            final_observation="",
            stop=stop,
            score=None if failed else reward,
            success=None if failed else bool(result.outcome and result.outcome.solved),
            error=redacted(writable(error)) if error else None,
            seconds={"world": round(result.seconds - sampling, 6), "policy": round(sampling, 6)},
            tools=first_tools(record.calls),
            cluster=task.cluster,
        )


def _stop(record: EpisodeRecord, result: _Result) -> tuple[StopReason, str]:
    """Return why an episode ended, and the error of one that failed."""
    if record.error is not None:
        return "failed", str(record.error)
    limited: StopReason | None = "truncated" if record.exhausted else "length" if record.cut else None
    if not record.calls:
        reason = "no token is left for a reply to its first messages" if limited else "it made no request"
        return "failed", result.error or f"The harness ended without a reply of the model: {reason}."
    if result.outcome is None and limited is None:
        return "failed", result.error
    if limited is None and result.outcome is not None and result.outcome.truncated:
        return "truncated", ""
    return limited or "terminated", ""


def _options(options: Mapping[str, Any], horizon: int | None) -> dict[str, Any]:
    """Return the environment's options, with the episode's horizon as the limit on its turns."""
    limits = ("max_episode_steps", "horizon")  # the second is that of environments on servers
    limited = {name: horizon for name in limits if horizon is not None and name in options}
    return {**options, **limited}
