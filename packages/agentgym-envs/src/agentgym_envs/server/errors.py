"""What a client is told when it doesn't get what it asked for: a status, a type that programs read, and a sentence.

The types are the contract; every answer that isn't a success has the body `{"error": {"type", "message"}}`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping

from gymnasium.error import DependencyNotInstalled, ResetNeeded
from starlette.responses import Response

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool import Ask
from agentgym_envs.pool.calls import Call
from agentgym_envs.server.models import ErrorBody
from agentgym_envs.server.wire import written
from agentgym_envs.util.redaction import redacted

_log = logging.getLogger(__name__)
_MOST_KINDS = 1_000  # whoever wants to fill the log can't
_MOST_CHARS = 2_000  # a message may quote what was asked
RETRY_SECONDS = 5
"""What `Retry-After` says."""


class Refusal(Exception):
    """A call that gets no answer, and why."""

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        """A refusal.

        Args:
            status: HTTP status.
            kind: The `type` of the error body.
            message: A sentence that says what was asked, what there is, and what to do next. Secrets in it are starred.
            headers: What the answer has beside.
        """
        message = redacted(message[: 2 * _MOST_CHARS])
        message = message if len(message) <= _MOST_CHARS else f"{message[:_MOST_CHARS]}…"
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = dict(headers or {})

    @property
    def body(self) -> ErrorBody:
        """What the answer holds."""
        return {"error": {"type": self.kind, "message": self.message}}

    def response(self) -> Response:
        """The answer."""
        return json_response(self.body, self.status, self.headers)


class RefusalLog:
    """Logs each kind of refusal once, for those whose clients say no more than that the status wasn't 200.

    Two refusals are of a kind when they differ in numbers alone.
    """

    def __init__(self) -> None:
        self._told: set[str] = set()

    def note(self, path: str, refusal: Refusal) -> None:
        """Log what a request to `path` was refused for, unless that was told already."""
        said = _line(f"{path} answered {refusal.status}: {refusal.message}")
        kind = re.sub(r"\d+", "0", said)
        if kind not in self._told and len(self._told) < _MOST_KINDS:
            self._told.add(kind)
            _log.warning("%s", said)


class Overdue(EnvFault):
    """A world didn't answer within its deadline and was let go of."""


def _line(text: str) -> str:
    """On one line, without what a terminal would obey: a message may quote what was asked."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))


def later(status: int, kind: str, message: str) -> Refusal:
    """A refusal of what may be granted in some seconds."""
    return Refusal(status, kind, message, {"Retry-After": str(RETRY_SECONDS)})


def refusal_of(error: Exception, call: Call) -> Refusal:
    """What a client is told of `error`, which is what came of `call` in a world."""
    asked = call.name if isinstance(call, Ask) else type(call).__name__.lower()  # "instructions" makes the world
    match error:
        case Refusal():
            return error
        case Overdue():
            return Refusal(504, "deadline", str(error))
        case EnvFault():
            return Refusal(502, "world_fault", str(error))
        case ResetNeeded():
            return Refusal(409, "reset_needed", "No task is being played in this session yet: POST .../reset first.")
        case KeyError() if asked in ("reset", "find_task"):
            return Refusal(404, "unknown_task", " ".join(map(str, error.args)))
        case DependencyNotInstalled() if asked == "instructions":
            return Refusal(404, "unknown_world", f"This world isn't installed on this server: {error}")
        case DependencyNotInstalled() | OSError():  # tasks that were to be read or fetched aren't there
            return Refusal(502, "world_fault", str(error))
        case TypeError() if asked == "instructions":
            return Refusal(422, "invalid", f"The world can't be made with these options: {error}")
        case ValueError() if asked in ("reset", "instructions", "task_page"):
            return Refusal(422, "invalid", str(error))
        case _:
            _log.error("A world broke its contract with %r", error, exc_info=error)
            return Refusal(500, "internal", f"The world raised {type(error).__name__}; the server's log says more.")


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """`value` as an answer."""
    return Response(written(value), status, headers, media_type="application/json")
