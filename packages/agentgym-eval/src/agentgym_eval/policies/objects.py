"""Any object as a policy: one with a `name` and a `reply`, or a function from the conversation to the reply."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, cast

from agentgym_envs import Policy, Reply, TurnContext

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
            raise TypeError(f"The policy {self.name} returned {found!r}, which is neither a text nor a Reply.")
        return found


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
