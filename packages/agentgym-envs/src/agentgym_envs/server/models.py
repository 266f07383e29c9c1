"""Models of the HTTP API: request bodies, which are validated, and response bodies, which are only described.

Requests are parsed directly from bytes. Responses are not validated at run time: their models serve `/openapi.json`,
and the tests check responses against them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

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
        description="Idempotency key: repeating a call with its key returns the first call's result and does nothing.",
    ),
]

TaskId = Annotated[str, Field(max_length=1_024)]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SessionRequest(_Body):
    """Request to create an environment."""

    world: str = Field(max_length=256, examples=["agentgym/TextCraft-v0"])
    options: dict[str, JsonValue] = Field(
        default_factory=dict[str, JsonValue],
        description="Environment options that clients may set, always including `max_episode_steps` and `render_mode`.",
    )
    key: Key | None = None


class ResetRequest(_Body):
    """Request to start an episode of the given task, or of one drawn from the split."""

    task: TaskId | None = None
    split: Split = "train"
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    key: Key | None = None

    def call(self) -> Reset:
        """Return the call to the environment."""
        return Reset(self.task, self.split, self.seed)


class StepRequest(_Body):
    """Request to take an action."""

    action: str
    hint: str | None = Field(
        default=None,
        description="Set if `action` is a reply without a parsable action: the environment answers with this hint.",
    )
    key: Key | None = None

    def call(self) -> Step:
        """Return the call to the environment."""
        return Step(self.action if self.hint is None else Malformed(self.action, self.hint))


class SessionReset(ResetRequest):
    """A reset of one session in a batch."""

    session: str


class SessionStep(StepRequest):
    """A step of one session in a batch."""

    session: str


class ResetBatch(_Body):
    """A batch of resets of different sessions."""

    calls: Annotated[list[SessionReset], FailFast()]


class StepBatch(_Body):
    """A batch of steps of different sessions."""

    calls: Annotated[list[SessionStep], FailFast()]


class ErrorDetail(TypedDict):
    """The type and message of an error."""

    type: str
    message: str


class ErrorBody(TypedDict):
    """The body of every error response."""

    error: ErrorDetail


class Outcome(TypedDict):
    """The result of a reset or a step."""

    observation: str
    reward: float | None
    terminated: bool
    truncated: bool
    info: dict[str, Any]


class BatchLine(TypedDict, total=False):
    """One line of the response to a batch: an outcome or an error."""

    index: int
    session: str
    status: int
    outcome: Outcome
    error: ErrorDetail


class SessionCreated(TypedDict):
    """A new session."""

    id: str
    world: str
    lease: float
    instructions: str


class SessionInfo(TypedDict):
    """A session and the task of its episode."""

    id: str
    world: str
    task: str | None
    lease: float


class EnvironmentInfo(TypedDict):
    """An environment, with what is missing if it isn't installed."""

    id: str
    max_episode_steps: int | None
    installed: bool
    missing: str | None


class EnvironmentList(TypedDict):
    """The server's environments."""

    worlds: list[EnvironmentInfo]


class TaskInfo(TypedDict):
    """A task."""

    id: str
    env: str
    split: Split
    category: str
    difficulty: int
    payload: dict[str, Any]
    cluster: str


class TaskPage(TypedDict):
    """A page of the tasks of a split: ids or complete tasks."""

    name: str
    split: Split
    total: int
    offset: int
    tasks: list[str] | list[TaskInfo]


class FunctionInfo(TypedDict):
    """A type of action, described as a function."""

    name: str
    description: str
    templates: list[str]
    """Texts of the action with `{name}` placeholders; the one whose placeholders match the given arguments applies."""
    properties: dict[str, dict[str, Any]]
    """JSON schema of each argument."""
    optional: list[str]
    input_schema: NotRequired[dict[str, Any]]
    """The schema of a tool, whose actions are calls as JSON: `{"name": …, "arguments": {…}}`; it has no templates."""


class FunctionList(TypedDict):
    """The action functions of an environment."""

    functions: list[FunctionInfo]


class OracleAction(TypedDict):
    """The expert's next action."""

    action: str


class OracleThought(TypedDict):
    """The expert's reason for its next action."""

    thought: str
    """Empty if the environment's expert gives no reasons."""


class OraclePlan(TypedDict):
    """The expert's plan from the current state."""

    plan: str
    """Empty if the environment's expert has no plan."""


class SceneInfo(TypedDict):
    """The description of the state that a viewer draws."""

    scene: dict[str, Any] | None
    """Null if the state is text only."""


class WorkerInfo(TypedDict):
    """A worker process."""

    pid: int | None
    alive: bool
    sessions: int


class Health(TypedDict, total=False):
    """The state of the server. Unauthenticated clients get only the status."""

    status: Literal["ok", "closing"]
    version: str
    sessions: int
    workers: list[WorkerInfo]


WIRE: tuple[type, ...] = (
    SessionRequest, ResetRequest, StepRequest, ResetBatch, StepBatch,
    SessionCreated, SessionInfo, EnvironmentList, TaskPage, TaskInfo, FunctionList,
    OracleAction, OracleThought, OraclePlan, SceneInfo, Outcome, BatchLine, Health, ErrorBody,
)  # fmt: skip
"""All request and response models."""
