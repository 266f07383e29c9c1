"""Any object as a policy: one with a `name` and a `reply`, or a function from the conversation to the reply."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

from agentgym_envs import EnvFault, Policy, Reply, TurnContext

from agentgym_eval.util.errors import RunStopped, UsageError

ReplyFunction = Callable[[TurnContext], str | Reply | Awaitable[str | Reply]]
"""Returns the agent's reply, or its text. Coroutine functions let other episodes go on while they wait."""


class Replies(Protocol):
    """An object that can play without being a subclass of `Policy`."""

    name: str
    """The policy's name in reports."""

    @property
    def reply(self) -> ReplyFunction:
        """A method that returns the agent's reply, or its text."""
        ...


class ObjectPolicy(Policy):
    """The policy that an object or a function stands for. Its methods `count_tokens` and `forget`, and its attribute
    `sees_pictures`, count as those of a `Policy` if it has them.
    """

    def __init__(self, name: str, reply: ReplyFunction, wrapped: object) -> None:
        self.name = name
        self.sees_pictures = bool(getattr(wrapped, "sees_pictures", False))
        self._reply = reply
        for method in ("count_tokens", "forget"):
            if hasattr(wrapped, method):
                setattr(self, method, getattr(wrapped, method))

    async def reply(self, context: TurnContext) -> Reply:
        """Return the reply of the object or function."""
        replied = self._reply(context)
        found = await replied if inspect.isawaitable(replied) else replied
        if isinstance(found, str):
            return Reply(found)
        # Callers without a type checker may return anything.
        if not isinstance(found, Reply):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RunStopped(f"The policy {self.name} returned {found!r}, which is neither a text nor a Reply.")
        return found


class _Guarded(Policy):
    """A policy whose exceptions stop the run with a sentence that says where they were raised."""

    def __init__(self, policy: Policy, called: str) -> None:
        self.name, self.sees_pictures = policy.name, policy.sees_pictures
        self._policy, self._called = policy, called

    @property
    def needs_env(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - that of the policy
        return self._policy.needs_env

    async def reply(self, context: TurnContext) -> Reply:
        with self._stopping():
            found: Any = await self._policy.reply(context)
            if not isinstance(found, Reply):
                raise RunStopped(f"The policy {self._called} returned {found!r}, which is not a Reply.")
            return found

    def count_tokens(self, context: TurnContext) -> int:
        with self._stopping():
            return self._policy.count_tokens(context)

    def forget(self, key: int) -> None:
        with self._stopping():
            self._policy.forget(key)

    async def close(self) -> None:
        with self._stopping():
            await self._policy.close()

    @contextmanager
    def _stopping(self) -> Generator[None]:
        try:
            yield
        except (UsageError, RunStopped, EnvFault):
            raise
        except Exception as error:
            raise RunStopped(f"The policy {self._called} raised {_located(error)}.") from error


def guarded(policy: Policy, called: str) -> Policy:
    """Return the policy itself if it is of this project, whose errors keep their traceback; else one that replies
    alike, and raises `RunStopped` for any error in its code.

    Args:
        policy: The policy.
        called: What the user named.
    """
    ours = type(policy).__module__.partition(".")[0] in ("agentgym_eval", "agentgym_trainer")
    return policy if ours and not isinstance(policy, ObjectPolicy) else _Guarded(policy, called)


def _located(error: Exception) -> str:
    """Describe an error of a policy with the last line before those of the libraries that it calls."""
    message = f"{type(error).__name__}: {error}".rstrip(".: ")
    libraries = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename != __file__]
    if not frames:
        return message
    last = [*frames[:1], *(frame for frame in frames if not frame.filename.startswith(libraries))][-1]
    return f"{message} ({Path(last.filename).name}, line {last.lineno})"


def as_policy(found: Any) -> Policy | None:
    """Return the policy that an object is or stands for, and None for a class, a lambda or another object."""
    if isinstance(found, type):
        return None
    if isinstance(found, Policy):
        return found if getattr(found, "name", "") else None
    name, reply = getattr(found, "name", None), getattr(found, "reply", None)
    if isinstance(name, str) and name and callable(reply):
        return ObjectPolicy(name, cast(ReplyFunction, reply), found)
    function = getattr(found, "__name__", "")
    named = callable(found) and function.isidentifier()
    return ObjectPolicy(function, cast(ReplyFunction, found), found) if named else None
