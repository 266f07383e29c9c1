"""Convert server responses to Python: outcomes to results, and errors to exceptions."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import httpx
from gymnasium.error import ResetNeeded

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool.calls import Result
from agentgym_envs.util.images import pixels

MAX_RETRY_AFTER = 10.0
"""Upper bound in seconds on a server's `Retry-After`."""
_ERROR_TYPES: dict[str, type[Exception]] = {
    "bad_request": ValueError,
    "forbidden": PermissionError,
    "invalid": ValueError,
    "reset_needed": ResetNeeded,
    "too_large": ValueError,
    "unauthorized": PermissionError,
    "unknown_task": KeyError,
    "unknown_world": ValueError,
}
_UNAVAILABLE = {"closing", "too_many_sessions"}  # another server may open a session
_PROXY = {408, 425, 429, 502, 503, 504}  # transient errors of a proxy between client and server


_UNLIKE = "does not respond like an agentgym-envs server"
_PICTURE = "data:image/png;base64,"  # prefix of images in JSON


class SessionLost(EnvFault):
    """Raised when a session is gone or its server is unreachable; `reset` opens a new session."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        """Create the error. `retry_after` is the number of seconds that the server requested to wait."""
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error response."""

    status: int
    type: str
    """The protocol's error type; empty if the response does not follow the protocol."""
    message: str
    retry_after: float = 0.0
    """Seconds."""

    @property
    def transient(self) -> bool:
        """Return whether a retry of the same call may succeed."""
        return self.type in {*_UNAVAILABLE, "busy"} if self.type else self.status in _PROXY

    def error(self, url: str) -> Exception:
        """Convert to an exception; `url` is the server's."""
        if self.type == "unknown_session":
            return SessionLost(f"{url}: {self.message} reset() opens a new session.")
        if self.type == "unauthorized":
            return PermissionError(
                f"{url}: {self.message} Give the token as token=TOKEN, or in the URL: http://:TOKEN@HOST:PORT."
            )
        if not self.type:
            return SessionLost(f"{url} {_UNLIKE}: {self.message}", self.retry_after)
        if self.type in _ERROR_TYPES:
            return _ERROR_TYPES[self.type](self.message)
        if self.type in _UNAVAILABLE:
            return SessionLost(f"{url}: {self.message}", self.retry_after)
        return EnvFault(f"{url}: {self.message}")


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> Refusal:
    """Parse a response that isn't a success."""
    after = headers.get("retry-after", "")
    wait = min(float(after), MAX_RETRY_AFTER) if after.isdecimal() else 0.0
    try:
        error = json.loads(body)["error"]
        return Refusal(status, error["type"], error["message"], wait)
    except (ValueError, TypeError, KeyError):
        return Refusal(status, "", f"status {status}: {body[:200].decode(errors='replace')}", wait)


def line_refusal(line: Mapping[str, Any]) -> Refusal:
    """Parse an error line of a batch response."""
    error = cast("dict[str, str]", line["error"])
    return Refusal(line["status"], error["type"], error["message"])


def foreign(url: str, answer: httpx.Response) -> SessionLost:
    """Return the error for a successful response that isn't one of the protocol."""
    return SessionLost(f"{url} {_UNLIKE}: status {answer.status_code}: {answer.text[:200]}")


def unreachable(url: str, error: httpx.HTTPError) -> SessionLost:
    """Return the error for a server that did not respond."""
    cause = f"{type(error).__name__}: {error}".removesuffix(": ")  # some transport errors have no message
    return SessionLost(f"{url} can't be reached ({cause}). Is a server running there? `serve` starts one.")


def result(slot: int, outcome: dict[str, Any]) -> Result:
    """Convert an outcome to a result. Images in `info` are decoded to arrays."""
    info: dict[str, Any] = outcome["info"]
    for key, value in info.items():
        if isinstance(value, str) and value.startswith(_PICTURE):
            try:
                info[key] = pixels(base64.b64decode(value.removeprefix(_PICTURE)))
            except Exception as error:  # noqa: BLE001 - the caller gets it in the result
                return Result(slot, error=error)
    return Result(slot, **outcome)
