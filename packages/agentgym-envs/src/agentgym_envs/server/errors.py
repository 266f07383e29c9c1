"""Error responses: a status, a machine-readable type, and a message.

Clients may rely on the types. Every error response has the body `{"error": {"type", "message"}}`.
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
_MAX_LOGGED_KINDS = 1_000  # so that clients can't fill the log
_MAX_CHARS = 2_000  # messages may quote the request
RETRY_SECONDS = 5
"""Value of the `Retry-After` header."""


class Refusal(Exception):
    """An error response to a call."""

    def __init__(self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        """Create a refusal.

        Args:
            status: HTTP status.
            kind: The `type` of the error body.
            message: A message that states what was requested, what exists, and what to do next. Secrets are redacted.
            headers: Additional response headers.
        """
        message = redacted(message[: 2 * _MAX_CHARS])
        message = message if len(message) <= _MAX_CHARS else f"{message[:_MAX_CHARS]}…"
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = dict(headers or {})

    @property
    def body(self) -> ErrorBody:
        """The JSON body of the response."""
        return {"error": {"type": self.kind, "message": self.message}}

    def response(self) -> Response:
        """Return the HTTP response."""
        return json_response(self.body, self.status, self.headers)


class RefusalLog:
    """Logs each kind of refusal once, for clients that show no error message.

    Refusals that differ only in numbers are of the same kind.
    """

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def note(self, path: str, refusal: Refusal) -> None:
        """Log the refusal of a request to `path`, unless one of its kind was logged before."""
        line = _line(f"{path} answered {refusal.status}: {refusal.message}")
        kind = re.sub(r"\d+", "0", line)
        if kind not in self._logged and len(self._logged) < _MAX_LOGGED_KINDS:
            self._logged.add(kind)
            _log.warning("%s", line)


class Overdue(EnvFault):
    """Raised when an environment missed the deadline of a call and was replaced."""


def _line(text: str) -> str:
    """Join `text` to one line without control characters, since a message may quote the request."""
    return "".join(character if character.isprintable() else "?" for character in " ".join(text.split()))


def later(status: int, kind: str, message: str) -> Refusal:
    """Create a refusal with a `Retry-After` header."""
    return Refusal(status, kind, message, {"Retry-After": str(RETRY_SECONDS)})


def refusal_of(error: Exception, call: Call) -> Refusal:
    """Convert `error`, which `call` raised in an environment, to a refusal."""
    kind = call.name if isinstance(call, Ask) else type(call).__name__.lower()  # "instructions" creates the environment
    match error:
        case Refusal():
            return error
        case Overdue():
            return Refusal(504, "deadline", str(error))
        case EnvFault():
            return Refusal(502, "world_fault", str(error))
        case ResetNeeded():
            return Refusal(409, "reset_needed", "No episode is running in this session; POST .../reset first.")
        case KeyError() if kind in ("reset", "find_task"):
            return Refusal(404, "unknown_task", " ".join(map(str, error.args)))
        case DependencyNotInstalled() if kind == "instructions":
            return Refusal(404, "unknown_world", f"This environment isn't installed on this server: {error}")
        case DependencyNotInstalled() | OSError():  # the task data could not be read or downloaded
            return Refusal(502, "world_fault", str(error))
        case TypeError() if kind == "instructions":
            return Refusal(422, "invalid", f"The environment can't be created with these options: {error}")
        case ValueError() if kind in ("reset", "instructions", "task_page"):
            return Refusal(422, "invalid", str(error))
        case _:
            _log.error("An environment violated its contract by raising %r", error, exc_info=error)
            return Refusal(500, "internal", f"The environment raised {type(error).__name__}; see the server's log.")


def json_response(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response with `value` as JSON."""
    return Response(written(value), status, headers, media_type="application/json")
