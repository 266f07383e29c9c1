"""Episodes as conversations: each time an agent starts a new context, a new conversation starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentgym_envs import Conversation, Episode, Message, Turn
from agentgym_envs.episodes.conversation import replay


@dataclass(frozen=True, slots=True)
class ContextMessages:
    """A part of an episode in which the conversation only grew by appending."""

    messages: Conversation
    """All messages of the conversation; the last is the agent's."""
    turns: Mapping[int, Turn]
    """The turns by the positions of their replies in `messages`. Other replies in `messages` belong to an earlier
    context and were kept in this one."""


def context_messages(episode: Episode) -> Iterator[ContextMessages]:
    """Yield the conversations of an episode in order: a single one, unless its agent drops messages or retries."""
    messages: Conversation = ()
    turns: dict[int, Turn] = {}
    for conversation, turn in replay(episode):
        if conversation[: len(messages)] != messages:
            yield ContextMessages(messages, turns)
            turns = {}
        turns[len(conversation)] = turn
        messages = (*conversation, Message("assistant", turn.reply.text))
    if turns:
        yield ContextMessages(messages, turns)
