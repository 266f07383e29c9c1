"""Episodes as conversations: where a context begins anew, a new conversation does. Knows no format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agentgym_envs import Conversation, Episode, Message, Turn
from agentgym_envs.episodes.conversation import replay


@dataclass(frozen=True, slots=True)
class ContextMessages:
    """A part of an episode in which the conversation grew by appending."""

    messages: Conversation
    """All of it; the last is the agent's."""
    turns: Mapping[int, Turn]
    """The turns by the positions of their replies in `messages`. Other replies there were said in an earlier stretch
    and stayed in the context."""


def context_messages(episode: Episode) -> Iterator[ContextMessages]:
    """The conversations of an episode, one after the other: a single one, unless its agent forgets or tries again."""
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
