"""The open environments of AgentGym clients: small integers, each mapped to a session.

Numbers are never reused. This module does not depend on payloads or HTTP.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from agentgym_envs import agentgym_ids
from agentgym_envs.core.tasks import Split
from agentgym_envs.pool import Ask, Reset, Result, Step
from agentgym_envs.server.errors import Refusal
from agentgym_envs.server.session_types import Session
from agentgym_envs.server.sessions import Sessions

Numbering = Split | None
"""How a client numbers tasks: by index in a split of agentgym-envs, or, if None, by AgentGym's numbers."""
Options = Callable[[Numbering, str | None], Mapping[str, Any]]
"""Returns the options of an environment for a numbering and, if it matters, a task."""


@dataclass(slots=True, eq=False)
class Environment:
    """An environment of a client."""

    number: int
    session: Session
    options: Mapping[str, Any]
    """The options for its numbering and task."""
    first: Result | None = None
    """The result of the last reset."""


class Environments:
    """The open environments of one type."""

    def __init__(self, sessions: Sessions, name: str, options: Options) -> None:
        """Start without open environments.

        Args:
            sessions: The server's sessions.
            name: AgentGym's name of the environment.
            options: See `Options`.
        """
        self.name = name
        self._sessions = sessions
        self._options = options
        self._numbers = count()
        self._open: dict[int, Environment] = {}

    async def create(self, numbering: Numbering) -> Environment:
        """Open an environment. Raises the refusals of `Sessions.create`."""
        self._open = {number: one for number, one in self._open.items() if not one.session.closed}
        options = self._options(numbering, None)
        environment = Environment(next(self._numbers), await self._session(options), options)
        self._open[environment.number] = environment
        return environment

    def get(self, number: int) -> Environment:
        """Return the environment of that number and renew its lease.

        Raises:
            Refusal: `unknown_session` if it does not exist or was closed, `closing`.
        """
        environment = self._open.get(number)
        try:
            if environment is not None and self._sessions.get(environment.session.id):
                return environment
        except Refusal as refusal:
            if refusal.kind != "unknown_session":
                raise
            del self._open[number]
        raise Refusal(
            404,
            "unknown_session",
            f"There is no environment {number} of {self.name}: it was closed, its lease of "
            f"{self._sessions.settings.lease:g} s expired, or it never existed. Create a new one: "
            f"POST /compat/{self.name}/create.",
        )

    async def reset(self, environment: Environment, numbering: Numbering, index: int) -> Result:
        """Start an episode of the task with number `index` in `numbering`.

        Raises:
            Refusal: `unknown_task` if agentgym-envs has no such task; the refusals of `Sessions.create` and
                `Sessions.call`.
        """
        task = self._task(index) if numbering is None else None
        options = self._options(numbering, task)
        if environment.options != options:
            try:
                session = await self._session(options)
            except Refusal as refusal:
                if refusal.kind != "too_many_sessions":
                    raise
                self._sessions.close(environment.session)  # on a full server, the new session needs its place
                session = await self._session(options)
            self._sessions.close(environment.session)  # read again, since a concurrent reset may have changed it
            environment.session, environment.options = session, options
        if numbering is not None:
            task = await self._task_at(environment.session, numbering, index)
        environment.first = await self._sessions.call(environment.session, Reset(task))
        return environment.first

    async def step(self, environment: Environment, action: str) -> Result:
        """Take an action. After the end of the episode, return the last result again with a reward of 0.

        Raises:
            Refusal: The refusals of `Sessions.call`.
        """
        last = environment.session.last
        if last is not None and last.over:
            return last._replace(reward=0.0)
        return await self._sessions.call(environment.session, Step(action))

    def close(self, environment: Environment) -> None:
        """Close an environment."""
        self._open.pop(environment.number, None)
        self._sessions.close(environment.session)

    async def _session(self, options: Mapping[str, Any]) -> Session:
        return await self._sessions.create(agentgym_ids.WORLDS[self.name], {}, own=options)

    def _task(self, number: int) -> str:
        try:
            return agentgym_ids.task_id(f"{self.name}_{number}")
        except KeyError as error:
            raise Refusal(
                404,
                "unknown_task",
                f"{error.args[0]} The tasks of agentgym-envs are at /compat/{self.name}/train and "
                f"/compat/{self.name}/test.",
            ) from error

    async def _task_at(self, session: Session, split: Split, index: int) -> str:
        page = (await self._sessions.call(session, Ask("task_page", (split, index, 1, False)))).value
        if not page["tasks"]:
            raise Refusal(
                404,
                "unknown_task",
                f"There is no task {index} in the split {split} of {self.name}, which has {page['total']:,} tasks, "
                "numbered from 0.",
            )
        return page["tasks"][0]
