"""What goes over the wire: the bodies of requests, checked, and of answers, described. Knows no sessions.

Requests are parsed straight from their bytes. Answers are never checked on their way out; their models are here for
`/openapi.json`, and the tests hold the server to them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, JsonValue
from typing_extensions import TypedDict  # pydantic reads no other before Python 3.12

from agentgym_envs.core.tasks import Split
from agentgym_envs.core.text_env import Malformed
from agentgym_envs.pool import Reset, Step

Key = Annotated[
    str,
    Field(
        min_length=1,
        max_length=64,
        description="Whoever repeats a call with its key gets the answer that it got or will get, and plays nothing.",
    ),
]

TaskId = Annotated[str, Field(max_length=1_024)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SessionWanted(_Body):
    """A world to be made."""

    world: str = Field(max_length=256, examples=["agentgym/TextCraft-v0"])
    options: dict[str, JsonValue] = Field(
        default_factory=dict[str, JsonValue],
        description="Those of the world's options that a client may set; `max_episode_steps` and `render_mode` always.",
    )
    key: Key | None = None


class ResetWanted(_Body):
    """A task to begin: that of the id, or one drawn from the split."""

    task: TaskId | None = None
    split: Split = "train"
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    key: Key | None = None

    def call(self) -> Reset:
        """What the world is asked."""
        return Reset(self.task, self.split, self.seed)


class StepWanted(_Body):
    """An action to play."""

    action: str
    hint: str | None = Field(
        default=None,
        description="Says that no action was found in `action`, a reply: the world answers it with this hint.",
    )
    key: Key | None = None

    def call(self) -> Step:
        """What the world is asked."""
        return Step(self.action if self.hint is None else Malformed(self.action, self.hint))


class ResetOf(ResetWanted):
    """A task to begin in one of many sessions."""

    session: str


class StepOf(StepWanted):
    """An action to play in one of many sessions."""

    session: str


class ResetBatch(_Body):
    """Tasks to begin, each in another session."""

    calls: Annotated[list[ResetOf], FailFast()]


class StepBatch(_Body):
    """Actions to play, each in another session."""

    calls: Annotated[list[StepOf], FailFast()]


class Problem(TypedDict):
    """Why there is no answer."""

    type: str
    message: str


class ErrorBody(TypedDict):
    """What every answer holds that isn't a success."""

    error: Problem


class Outcome(TypedDict):
    """What came of a reset or a step."""

    observation: str
    reward: float | None
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class Line(TypedDict, total=False):
    """One line of the answer to a batch: an outcome or an error."""

    index: int
    session: str
    status: int
    outcome: Outcome
    error: Problem


class SessionMade(TypedDict):
    """A session that was just made."""

    id: str
    world: str
    lease: float
    instructions: str


class SessionSeen(TypedDict):
    """A session, and the task that is played in it."""

    id: str
    world: str
    task: str | None
    lease: float


class WorldSeen(TypedDict):
    """A world, and what is missing where it isn't installed."""

    id: str
    max_episode_steps: int | None
    installed: bool
    missing: str | None


class WorldsSeen(TypedDict):
    """The worlds there are."""

    worlds: list[WorldSeen]


class TaskSeen(TypedDict):
    """A task."""

    id: str
    env: str
    split: Split
    category: str
    difficulty: int
    payload: dict[str, Any]
    cluster: str


class TasksSeen(TypedDict):
    """A page of the tasks of a split: ids, or whole tasks."""

    name: str
    split: Split
    total: int
    offset: int
    tasks: list[str] | list[TaskSeen]


class FunctionSeen(TypedDict):
    """A kind of action as a function."""

    name: str
    description: str
    templates: list[str]
    """Texts of the action, with `{name}` for an argument; the one counts that has the arguments that are given."""
    properties: dict[str, dict[str, Any]]
    """JSON schema of each argument."""
    optional: list[str]


class FunctionsSeen(TypedDict):
    """The kinds of actions of a world."""

    functions: list[FunctionSeen]


class ActionSeen(TypedDict):
    """The expert's next action."""

    action: str


class ThoughtSeen(TypedDict):
    """Why the expert's next action is what it is."""

    thought: str
    """Empty where the world's expert gives no reasons."""


class PlanSeen(TypedDict):
    """What the expert intends from here."""

    plan: str
    """Empty where the world's expert says nothing of it."""


class SceneSeen(TypedDict):
    """What a viewer draws of the state."""

    scene: dict[str, Any] | None
    """Null where there is nothing to draw but text."""


class WorkerSeen(TypedDict):
    """A process that plays sessions."""

    pid: int | None
    alive: bool
    sessions: int


class Health(TypedDict, total=False):
    """How the server is. A stranger learns the status alone."""

    status: Literal["ok", "closing"]
    version: str
    sessions: int
    workers: list[WorkerSeen]


WIRE: tuple[type, ...] = (
    SessionWanted, ResetWanted, StepWanted, ResetBatch, StepBatch,
    SessionMade, SessionSeen, WorldsSeen, TasksSeen, TaskSeen, FunctionsSeen, ActionSeen, ThoughtSeen, PlanSeen,
    SceneSeen, Outcome, Line, Health, ErrorBody,
)  # fmt: skip
"""All that is sent and answered."""
