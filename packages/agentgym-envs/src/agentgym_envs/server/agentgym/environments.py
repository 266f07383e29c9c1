"""The environments that AgentGym's clients have open: small numbers, and our session behind each.

A number is never used again. Knows no payloads and no HTTP.
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
"""How a client counts tasks: by their places in a split of ours, or with None as AgentGym does."""
Options = Callable[[Numbering, str | None], Mapping[str, Any]]
"""The options that a world is made with for a way of counting, and for a task where that matters."""


@dataclass(slots=True, eq=False)
class Environment:
    """What a client plays in."""

    number: int
    session: Session
    options: Mapping[str, Any]
    """What its world was made with on account of its numbering and task."""
    first: Result | None = None
    """What the task began with."""


class Environments:
    """The open environments of one world."""

    def __init__(self, sessions: Sessions, name: str, options: Options) -> None:
        """None are open yet.

        Args:
            sessions: What holds the worlds.
            name: AgentGym's name of the world.
            options: See `Options`.
        """
        self.name = name
        self._sessions = sessions
        self._options = options
        self._numbers = count()
        self._open: dict[int, Environment] = {}

    async def create(self, numbering: Numbering) -> Environment:
        """Open another one. Raises Refusal as `Sessions.create`."""
        self._open = {number: one for number, one in self._open.items() if not one.session.closed}
        options = self._options(numbering, None)
        environment = Environment(next(self._numbers), await self._session(options), options)
        self._open[environment.number] = environment
        return environment

    def get(self, number: int) -> Environment:
        """The one of that number, whose lease begins anew.

        Raises:
            Refusal: `unknown_session` when there is none (any more), `closing`.
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
            f"There is no environment {number} of {self.name}: it was closed, or its lease of "
            f"{self._sessions.settings.lease:g} s ran out, or it never was. POST /compat/{self.name}/create makes one.",
        )

    async def reset(self, environment: Environment, numbering: Numbering, place: int) -> Result:
        """Begin the task that `place` means.

        Raises:
            Refusal: `unknown_task` when it means none of ours, and as `Sessions.create` and `Sessions.call`.
        """
        task = self._task(place) if numbering is None else None
        options = self._options(numbering, task)
        if environment.options != options:
            session = await self._session(options)
            self._sessions.close(environment.session)  # what it is now: meanwhile another reset may have come
            environment.session, environment.options = session, options
        if numbering is not None:
            task = await self._task_at(environment.session, numbering, place)
        environment.first = await self._sessions.call(environment.session, Reset(task))
        return environment.first

    async def step(self, environment: Environment, action: str) -> Result:
        """Play an action; after the end nothing is played, and the end is told again with nothing paid.

        Raises:
            Refusal: as `Sessions.call`.
        """
        last = environment.session.last
        if last is not None and last.over:
            return last._replace(reward=0.0)
        return await self._sessions.call(environment.session, Step(action))

    def close(self, environment: Environment) -> None:
        """Close one."""
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
                f"{error.args[0]} All our tasks are at /compat/{self.name}/train and /compat/{self.name}/test.",
            ) from error

    async def _task_at(self, session: Session, split: Split, place: int) -> str:
        page = (await self._sessions.call(session, Ask("task_page", (split, place, 1, False)))).value
        if not page["tasks"]:
            raise Refusal(
                404,
                "unknown_task",
                f"There is no task {place} in our split {split} of {self.name}, which has {page['total']:,}, from 0.",
            )
        return page["tasks"][0]
