"""The reset hook: what brings sites that tasks have changed back to their first state.

WebArena leaves resetting to whoever runs the sites, and marks no task of its 812 as needing it; so a hook may be called
before tasks with `require_reset` alone, or before every task. Sites are shared by all episodes: run one at a time, or
sites of their own for each process, where tasks change them.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import httpx

from agentgym_envs.core.text_env import EnvFault

_NOT_YET = (408, 409, 425, 429)  # and 5xx: asked again until the time is up


@dataclass(frozen=True, slots=True)
class ResetHook:
    """A URL or a command that resets sites."""

    target: str | tuple[str, ...]
    """A URL, asked until it answers 2xx, or a program and its arguments, run without a shell."""
    when: Literal["required", "always"] = "required"
    """Before tasks with `require_reset`, or before every task."""
    method: Literal["POST", "GET"] = "POST"
    """How a URL is asked: POST with the JSON `{"sites": [...]}`, or GET with `?sites=KEY,KEY`."""
    timeout: float = 900.0
    """Seconds until it must be done."""
    pause: float = 2.0
    """Seconds between two attempts at a URL."""

    def __post_init__(self) -> None:
        if isinstance(self.target, str) and not self.target.startswith(("http://", "https://")):
            raise ValueError(f"{self.target!r} is no URL to reset sites by; a command is a list: [PROGRAM, ARGUMENT].")
        if not self.target:
            raise ValueError("The command that resets sites is empty.")

    def wanted(self, task: Mapping[str, Any]) -> bool:
        """Whether a task, as WebArena's JSON, is begun with a reset."""
        return self.when == "always" or bool(task.get("require_reset"))

    async def run(self, sites: Iterable[str]) -> None:
        """Reset the sites of these keys; a command gets them as its last arguments.

        Raises:
            EnvFault: when it fails or isn't done in time; with what it said.
        """
        keys, troubles = list(sites), list[str]()
        try:
            async with asyncio.timeout(self.timeout):
                if isinstance(self.target, str):
                    await self._ask(self.target, keys, troubles)
                else:
                    await _execute(*self.target, *keys)
        except TimeoutError as error:
            why = f"; the last attempt failed: {troubles[-1]}" if troubles else ""
            raise EnvFault(
                f"Resetting {', '.join(keys)} by {self.target} took over {self.timeout:g} s{why}."
            ) from error

    async def _ask(self, url: str, keys: list[str], troubles: list[str]) -> None:
        """Ask until it is done; why attempts failed is added to `troubles`."""
        until = time.monotonic() + self.timeout
        said: dict[str, Any] = (
            {"json": {"sites": keys}} if self.method == "POST" else {"params": {"sites": ",".join(keys)}}
        )
        async with httpx.AsyncClient(timeout=self.timeout, trust_env=False) as client:
            while True:
                trouble, again = "", True
                try:
                    answer = await client.request(self.method, url, **said)
                    if answer.is_success:
                        return
                    trouble = f"status {answer.status_code}: {answer.text[-500:]}"
                    again = answer.status_code >= 500 or answer.status_code in _NOT_YET
                except httpx.HTTPError as error:
                    trouble = repr(error)
                troubles.append(trouble)
                if not again or time.monotonic() + self.pause > until:
                    raise EnvFault(f"Resetting {', '.join(keys)} by {self.method} {url} failed: {trouble}")
                await asyncio.sleep(self.pause)


async def _execute(*command: str) -> None:
    start = asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, start_new_session=True
    )
    starting = asyncio.ensure_future(start)
    try:
        process = await asyncio.shield(starting)
        said, _ = await process.communicate()
    except OSError as error:
        raise EnvFault(f"The command that resets sites, {command}, can't be run: {error}.") from error
    except asyncio.CancelledError:
        process = await starting  # asyncio itself would end the command alone, without its children
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)  # with all it started
            await process.wait()
        raise
    if process.returncode:
        tail = said.decode(errors="replace")[-1_000:].strip()
        raise EnvFault(f"The command that resets sites, {command}, ended with {process.returncode}: {tail}")
