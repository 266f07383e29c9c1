"""A policy that plays with any agent and records its contexts, and checks that every conversation must pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from agentgym_envs import Conversation, EnvFault, Episode, Message, Policy, Reply, TurnContext
from agentgym_envs.episodes.conversation import replay
from agentgym_envs.episodes.episode import Kind


@dataclass
class RecordingPolicy(Policy):
    """A policy that chooses actions with `act`, and numbers its other replies."""

    act: Callable[[TurnContext], str | Reply | EnvFault]
    name: str = "talker"
    seen: list[tuple[Conversation, Kind]] = field(default_factory=list[tuple[Conversation, Kind]])

    needs_env: ClassVar[bool] = True

    async def reply(self, context: TurnContext) -> Reply:
        self.seen.append((context.conversation, context.kind))
        answer = self.act(context) if context.kind == "act" else f"{context.kind} {len(self.seen)}"
        if isinstance(answer, EnvFault):
            raise answer
        return Reply(answer) if isinstance(answer, str) else answer


def check_conversations(episode: Episode, seen: Sequence[tuple[Conversation, Kind]]) -> None:
    """Check that `replay` of the episode yields the contexts that its policy saw.

    Conversations must also suit chat templates: each extends the last one, except after a summary and in a new trial.
    """
    recorded = list(replay(episode))
    assert [(conversation, turn.kind) for conversation, turn in recorded] == list(seen)
    assert list(replay(Episode.from_json(episode.to_json()))) == recorded
    trial = 0
    for (conversation, turn), (following, _) in pairwise(recorded):
        check_roles(conversation, episode.instructions)
        grows = following[:-1] == (*conversation, Message("assistant", turn.reply.text))
        assert grows != (turn.kind == "summary" or turn.trial > trial)
        trial = turn.trial


def check_roles(conversation: Conversation, instructions: str) -> None:
    """Check that user and assistant alternate after the instructions, if any, and that the user is first and last."""
    roles = [message.role for message in conversation]
    if instructions:
        assert (roles.pop(0), conversation[0].content) == ("system", instructions)
    assert roles == ["user", *["assistant", "user"] * (len(roles) // 2)]
