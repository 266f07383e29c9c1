"""What a server says, as Python: its outcomes as results, its errors as exceptions. Knows no connections."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import httpx
import numpy as np
from gymnasium.error import DependencyNotInstalled, ResetNeeded
from numpy.typing import NDArray

from agentgym_envs.core.text_env import EnvFault
from agentgym_envs.pool.calls import Result
from agentgym_envs.util.installation import install

LONGEST_WAIT = 10.0
"""Seconds: more is not waited where a server names a time to come back at."""
_KINDS: dict[str, type[Exception]] = {
    "bad_request": ValueError,
    "forbidden": PermissionError,
    "invalid": ValueError,
    "reset_needed": ResetNeeded,
    "too_large": ValueError,
    "unauthorized": PermissionError,
    "unknown_task": KeyError,
    "unknown_world": ValueError,
}
_FULL = {"closing", "too_many_sessions"}  # another server may have room
_PROXY = {408, 425, 429, 502, 503, 504}  # what something between us and the server may say for the moment


_PICTURE = "data:image/png;base64,"  # as servers write one in JSON


class SessionLost(EnvFault):
    """The world on the server is gone, or out of reach; `reset` opens another."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        """`retry_after`: seconds after which the server wants to be asked again."""
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a call was not carried out."""

    status: int
    type: str
    """As the protocol names it; empty for an answer that isn't of it."""
    message: str
    retry_after: float = 0.0
    """Seconds."""

    @property
    def transient(self) -> bool:
        """Whether the same call may be carried out a little later."""
        return self.type in {*_FULL, "busy"} if self.type else self.status in _PROXY

    def error(self, url: str) -> Exception:
        """As an exception; `url` is the server's."""
        if self.type == "unknown_session":
            return SessionLost(f"{url}: {self.message} The session ended or its lease did; reset() opens another.")
        if self.type == "unauthorized":
            return PermissionError(
                f"{url}: {self.message} Give the token as token=TOKEN, or in the URL: http://:TOKEN@HOST:PORT."
            )
        if not self.type:
            return SessionLost(f"{url} doesn't answer as a server of ours does: {self.message}", self.retry_after)
        if self.type in _KINDS:
            return _KINDS[self.type](self.message)
        if self.type in _FULL:
            return SessionLost(f"{url}: {self.message}", self.retry_after)
        return EnvFault(f"{url}: {self.message}")


def refusal(status: int, body: bytes, headers: Mapping[str, str]) -> Refusal:
    """What an answer says that isn't a success."""
    after = headers.get("retry-after", "")
    wait = min(float(after), LONGEST_WAIT) if after.isdecimal() else 0.0
    try:
        error = json.loads(body)["error"]
        return Refusal(status, error["type"], error["message"], wait)
    except (ValueError, TypeError, KeyError):
        return Refusal(status, "", f"status {status}: {body[:200].decode(errors='replace')}", wait)


def line_refusal(line: Mapping[str, Any]) -> Refusal:
    """What a line of a batch's answer says that isn't an outcome."""
    error = cast("dict[str, str]", line["error"])
    return Refusal(line["status"], error["type"], error["message"])


def unreachable(url: str, error: httpx.HTTPError) -> SessionLost:
    """The fault of a server that didn't answer; some of a transport's errors come without words."""
    words = f"{type(error).__name__}: {error}".removesuffix(": ")
    return SessionLost(f"{url} can't be reached ({words}). Is a server running there? `serve` starts one.")


def result(slot: int, outcome: dict[str, Any]) -> Result:
    """The outcome as a result; a picture in its info is an array again, as in the world."""
    info: dict[str, Any] = outcome["info"]
    for key, value in info.items():
        if isinstance(value, str) and value.startswith(_PICTURE):
            try:
                info[key] = pixels(base64.b64decode(value.removeprefix(_PICTURE)))
            except Exception as error:  # noqa: BLE001 - it reaches the caller in the result
                return Result(slot, error=error)
    return Result(slot, **outcome)


def pixels(png: bytes) -> NDArray[np.uint8]:
    """The picture (height, width, 3) in a PNG.

    Raises:
        DependencyNotInstalled: without Pillow.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise DependencyNotInstalled(f"Pictures need the package pillow. Install it: {install('pillow')}") from error
    with Image.open(io.BytesIO(png)) as picture:
        return np.asarray(picture.convert("RGB"))
