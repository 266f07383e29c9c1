"""Harnesses: agents of other programs that play whole episodes, and of which only requests to a model are seen.

A harness is a function or a command. It gets a task, a base URL and a key, calls the model there as it would call any
OpenAI-compatible endpoint, and ends with a reward: its own, a verifier's, or that of an environment that it plays.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import os
import re
import shlex
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from numbers import Real
from tempfile import TemporaryFile
from typing import IO, Any, Protocol

from agentgym_envs.util.importing import described
from agentgym_eval.util.errors import UsageError

_MAX_QUOTED = 300  # characters of a command's output in messages


class HarnessFailure(Exception):
    """A harness crashed or returned no reward; the episode has failed."""


@dataclass(frozen=True, slots=True)
class HarnessTask:
    """The task of one episode."""

    env: str
    """The environment's id: `agentgym_envs.make(task.env, **task.options)` creates it."""
    options: Mapping[str, Any]
    """The environment's options."""
    id: str
    """The task's id, for `reset(options={"task": task.id})`."""
    split: str
    category: str
    difficulty: int
    payload: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The data from which the environment builds the task."""
    seed: int = 0
    """Seed of the episode, for `reset(seed=task.seed)`; the same for all episodes of a group."""
    sample: int = 0
    """Index of the episode among those of its group."""
    horizon: int | None = None
    """Maximum number of requests; the gateway refuses further ones with the code `horizon_reached`."""
    model: str = ""
    """Name of the model. Requests may name any."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of an episode."""

    reward: float
    """The reward, from 0 to 1."""
    success: bool | None = None
    """Whether the task is solved; None: if the reward is 1."""
    truncated: bool = False
    """Whether a limit on turns ended the episode, and not the agent or the environment."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.reward) or not 0 <= self.reward <= 1:
            raise ValueError(f"A reward is a number from 0 to 1, not {self.reward}.")
        # Numbers of numpy and torch can't be saved.
        object.__setattr__(self, "reward", float(self.reward))
        object.__setattr__(self, "success", None if self.success is None else bool(self.success))
        object.__setattr__(self, "truncated", bool(self.truncated))

    @property
    def solved(self) -> bool:
        """Whether the task is solved."""
        return self.reward == 1 if self.success is None else self.success


class Harness(Protocol):
    """A function that plays an episode; it may be asynchronous. Each call runs in a thread of its own."""

    def __call__(self, task: HarnessTask, base_url: str, api_key: str) -> Any:
        """Play an episode.

        Args:
            task: The task.
            base_url: Base URL for OpenAI's clients; those of Anthropic take it without `/v1`.
            api_key: The key to send; the URL alone identifies the episode as well.

        Returns:
            A reward from 0 to 1 or an `Outcome`.

        Raises:
            Exception: any; the episode has failed, unless a limit on tokens or requests was reached.
        """
        ...


async def run_function(harness: Harness, task: HarnessTask, base_url: str, api_key: str) -> Outcome:
    """Run a harness in a thread of its own. If this is cancelled, an asynchronous one is cancelled as well; another one
    keeps its thread until it returns.

    Raises:
        HarnessFailure: if it raises any exception, or returns no reward.
    """
    waiting, loop = asyncio.get_running_loop(), asyncio.new_event_loop()
    done: asyncio.Future[Any] = waiting.create_future()
    running: list[asyncio.Task[Any]] = []

    def settle(set_outcome: Callable[[Any], object], outcome: Any) -> None:
        if not done.done():
            set_outcome(outcome)

    async def finish(result: Awaitable[Any]) -> Any:
        running.extend(task for task in [asyncio.current_task()] if task)
        return await result

    def play() -> None:
        report = partial(settle, done.set_result)
        try:
            with asyncio.Runner(loop_factory=lambda: loop) as runner:
                outcome = harness(task, base_url, api_key)
                if inspect.isawaitable(outcome):
                    outcome = runner.run(finish(outcome))
        except BaseException as error:  # noqa: BLE001 - whatever ends the thread is the harness's failure
            report, outcome = partial(settle, done.set_exception), HarnessFailure(described(error))
        with suppress(RuntimeError):  # the loop that waited is closed
            waiting.call_soon_threadsafe(report, outcome)

    threading.Thread(target=play, name=f"harness {task.id}", daemon=True).start()
    try:
        return _outcome(await done)
    except asyncio.CancelledError:
        with suppress(RuntimeError):  # its loop is closed
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in running])
        raise


def check_command(command: str) -> None:
    """Raise `UsageError` if a command can't be split into words."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"--harness-command {command} can't be split into words as a shell does: {error}.") from error
    if not words:
        raise UsageError("--harness-command is blank; name a program and its arguments.")


async def run_command(command: str, task: HarnessTask, base_url: str, api_key: str) -> Outcome:
    """Run a command as a harness. If this is cancelled, its process group is killed.

    Its environment has OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY, its standard input
    the task as JSON. The last line that it prints is the reward, or a JSON object with the fields of `Outcome`.

    Raises:
        HarnessFailure: if it can't be started, ends with another exit code than 0, or prints no reward.
    """
    environment = os.environ | {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": api_key,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": api_key,
    }
    # Files, since a process that it has left running may hold a pipe open.
    with TemporaryFile() as given, TemporaryFile() as out, TemporaryFile() as err:
        given.write(bytes(json.dumps(asdict(task)), "utf-8"))
        given.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                *shlex.split(command), stdin=given, stdout=out, stderr=err, env=environment, start_new_session=True
            )
        except OSError as error:
            raise HarnessFailure(f"{command} can't be started: {error}") from error
        try:
            await process.wait()
        finally:
            with suppress(ProcessLookupError):  # also ends what it has left running
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        line, problem = _last_line(out), _last_line(err)
    if process.returncode:
        raise HarnessFailure(f"{command} ended with exit code {process.returncode}: {_quoted(problem)}")
    try:
        return _outcome(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise HarnessFailure(
            f"The last line of {command} must be a reward or a JSON object with `reward`, not {_quoted(line)!r}."
        ) from error


def _outcome(result: Any) -> Outcome:
    """Convert what a harness returned.

    Raises:
        HarnessFailure: if it isn't an outcome, a number from 0 to 1 or an object with one.
    """
    if isinstance(result, Outcome):
        return result
    given: Any = result if isinstance(result, dict) else {"reward": result}
    reward, success = given.get("reward"), given.get("success")
    try:
        if isinstance(reward, Real) and success in (None, True, False):
            return Outcome(float(reward), success, bool(given.get("truncated")))
    except Exception as error:  # from what only looks like a number or a boolean
        raise HarnessFailure(f"{error}") from error
    raise HarnessFailure(f"The harness must end with a reward from 0 to 1 or an Outcome, not {_quoted(repr(result))}.")


def _last_line(output: IO[bytes]) -> str:
    output.seek(0)
    # Not `splitlines`, which also splits at characters that may stand in a JSON text, such as U+2028.
    return re.split("[\r\n]", str(output.read(), "utf-8", "replace").strip())[-1]


def _quoted(text: str) -> str:
    return text if len(text) <= _MAX_QUOTED else f"{text[:_MAX_QUOTED]}…"
