"""Policies for the door environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from agentgym_envs import EnvFault, Policy, Reply, TurnContext, text_env


@dataclass
class FunctionPolicy(Policy):
    """A policy that replies with a function of the context, and records the contexts."""

    answer: Callable[[TurnContext], str | Reply | EnvFault]
    name: str = "player"
    contexts: list[TurnContext] = field(default_factory=list[TurnContext])
    needs_env: ClassVar[bool] = True

    async def reply(self, context: TurnContext) -> Reply:
        self.contexts.append(context)
        answer = self.answer(context)
        if isinstance(answer, EnvFault):
            raise answer
        return Reply(answer) if isinstance(answer, str) else answer


def expert() -> FunctionPolicy:
    return FunctionPolicy(lambda context: text_env(context.env).oracle(), name="oracle")


def knocker() -> FunctionPolicy:
    return FunctionPolicy(lambda context: "knock")
