"""The reset hook, which restores the initial state of sites that tasks have changed.

WebArena leaves resetting to the operator of the sites and marks none of its 812 tasks as needing it. So a hook may be
called before tasks with `require_reset` only, or before every task. All episodes share the sites: if tasks change them,
run one episode at a time, or give each process its own sites.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from agentgym_envs.core.text_env import EnvFault

_RETRIED = (408, 409, 425, 429)  # and 5xx: retried until the timeout


@dataclass(frozen=True, slots=True)
class ResetHook:
    """A URL or a command that resets sites."""

    target: str | tuple[str, ...]
    """A URL, requested until it returns 2xx, or a program and its arguments, run without a shell."""
    when: Literal["required", "always"] = "required"
    """Whether to reset before tasks with `require_reset` only, or before every task."""
    method: Literal["POST", "GET"] = "POST"
    """How a URL is requested: POST with the JSON `{"sites": [...]}`, or GET with `?sites=KEY,KEY`."""
    timeout: float = 900.0
    """Timeout of the whole reset in seconds."""
    pause: float = 2.0
    """Seconds between two requests to a URL."""

    def __post_init__(self) -> None:
        if isinstance(self.target, str) and not self.target.startswith(("http://", "https://")):
            raise ValueError(
                f"{self.target!r} is not a URL; give the reset hook a URL, or a command as a list: [PROGRAM, ARGUMENT]."
            )
        if not self.target:
            raise ValueError("The command of the reset hook is empty; give a URL, or a list [PROGRAM, ARGUMENT].")

    def wanted(self, task: Mapping[str, Any]) -> bool:
        """Whether to reset before a task, given as WebArena's JSON."""
        return self.when == "always" or bool(task.get("require_reset"))

    async def run(self, sites: Iterable[str]) -> None:
        """Reset the sites of these keys; a command gets them as its last arguments.

        Raises:
            EnvFault: if it fails or times out; the message has its output.
        """
        keys, problems = list(sites), list[str]()
        try:
            async with asyncio.timeout(self.timeout):
                if isinstance(self.target, str):
                    await self._request(self.target, keys, problems)
                else:
                    await _execute(*self.target, *keys)
        except TimeoutError as error:
            reason = f"; the last attempt failed: {problems[-1]}" if problems else ""
            raise EnvFault(
                f"Resetting {', '.join(keys)} with {self.target} took over {self.timeout:g} s{reason}."
            ) from error

    async def _request(self, url: str, keys: list[str], problems: list[str]) -> None:
        """Request `url` until it succeeds, appending the reason of each failure to `problems`."""
        deadline = time.monotonic() + self.timeout
        arguments: dict[str, Any] = (
            {"json": {"sites": keys}} if self.method == "POST" else {"params": {"sites": ",".join(keys)}}
        )
        async with httpx.AsyncClient(timeout=self.timeout, trust_env=False) as client:
            while True:
                problem, retry = "", True
                try:
                    response = await client.request(self.method, url, **arguments)
                    if response.is_success:
                        return
                    problem = f"status {response.status_code}: {response.text[-500:]}"
                    retry = response.status_code >= 500 or response.status_code in _RETRIED
                except httpx.HTTPError as error:
                    problem = repr(error)
                problems.append(problem)
                if not retry or time.monotonic() + self.pause > deadline:
                    raise EnvFault(f"Resetting {', '.join(keys)} with {self.method} {url} failed: {problem}")
                await asyncio.sleep(self.pause)


async def _execute(*command: str) -> None:
    start = asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True
    )
    starting = asyncio.ensure_future(start)
    try:
        process = await asyncio.shield(starting)
        output, _ = await process.communicate()
    except OSError as error:
        raise EnvFault(f"The reset command {command} can't be run: {error}.") from error
    except asyncio.CancelledError:
        with suppress(OSError):  # it can't be run, or its process group has just ended
            process = await starting  # asyncio alone would end the command but not its children
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # the whole process group
                await process.wait()
        raise
    if process.returncode:
        tail = output.decode(errors="replace")[-1_000:].strip()
        raise EnvFault(f"The reset command {command} ended with exit status {process.returncode}: {tail}")
