"""The record of what one episode samples: calls, the segments that they form, and the turns of an `Episode`.

A call whose conversation continues that of an earlier one, with the earlier reply, continues its segment: its tokens
are the earlier context, the sampled ids of the reply, and the ids of the new messages. A conversation that was
rewritten (by compaction, by a retry, or because a sub-agent holds it) begins a new segment. If several calls continue
the same one, one of them continues the segment and the others begin segments with the same context.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from agentgym_envs import Conversation, Message, Reply, Sample, Turn

from agentgym_trainer.engines.base import Completion
from agentgym_trainer.gateway.requests import ChatRequest
from agentgym_trainer.tokens.chat import Chat, Context


@dataclass(frozen=True, slots=True)
class EpisodeLimits:
    """Limits of an episode's calls, and how they are sampled."""

    temperature: float | None = None
    """Sampling temperature of all calls, whatever the requests say: a model is trained at the temperature that it was
    sampled with. None leaves it to the requests."""
    turn: int = 512
    """Maximum number of tokens of a reply."""
    context: int = 8704
    """Maximum number of tokens of a context, with its reply."""
    episode: int = 0
    """Maximum number of completion tokens of an episode; 0 sets no limit."""
    calls: int = 0
    """Maximum number of requests of an episode; 0 sets no limit."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A request, and its tokens if they are known."""

    request: ChatRequest
    conversation: Conversation
    """The conversation, with earlier replies as they were sampled."""
    ids: tuple[int, ...]
    """The whole context."""
    parent: Call | None
    """The call that this one continues; None at the start of a segment."""
    added: tuple[int, ...]
    """The ids after those of the parent and its reply."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One sampled reply."""

    prompt: Prompt
    reply: Reply
    """The reply, without its `sample`."""
    completion: Completion | None = None
    """The sampled ids, up to and including the token that completes a stop sequence; None behind an endpoint, whose
    tokens are unknown."""


@dataclass(eq=False)
class EpisodeRecord:
    """The calls of one episode, in the order in which they were answered, as text."""

    limits: EpisodeLimits
    rng: np.random.Generator
    """Seeds the calls."""
    calls: list[Call] = field(default_factory=list[Call])
    requests: int = 0
    """Number of requests, including those in flight and those that were refused for a limit."""
    cut: bool = False
    """Whether a token limit cut a reply off or left no token for one."""
    exhausted: bool = False
    """Whether a request exceeded the limit on their number."""
    error: Exception | None = None
    """The error of the engine or the endpoint that ended a call."""
    seconds: float = 0.0
    """Seconds that replies have taken; requests at the same time count each."""
    closed: bool = False
    """Whether the episode is over, so that nothing is recorded any more."""
    _known: dict[tuple[str, Conversation], Call] = field(default_factory=dict[tuple[str, Conversation], Call])

    def prompt(self, request: ChatRequest) -> Prompt:
        """Return the request, continuing a call with the same functions if its conversation does."""
        return Prompt(request, request.conversation, (), self._parent(request), ())

    def _parent(self, request: ChatRequest) -> Call | None:
        return self._known.get((json.dumps(request.tools), request.conversation[:-1]))

    def add(self, prompt: Prompt, reply: Reply, canonical: str, completion: Completion | None = None) -> None:
        """Record a reply, unless the episode is over.

        Args:
            prompt: What was replied to.
            reply: The reply, without its `sample`.
            canonical: The reply as later requests will have it in their conversations.
            completion: Its ids, if they are known.
        """
        if self.closed:
            return
        self.calls.append(Call(prompt, reply, completion))
        key = json.dumps(prompt.request.tools), (*prompt.request.conversation, Message("assistant", canonical))
        self._known[key] = self.calls[-1]

    def segments(self) -> list[list[Call]]:
        """Return the calls of each segment. Segments are in the order of their last calls, so that the last turn is the
        last reply in time, from which rewards are discounted.
        """
        following: dict[int, list[Call]] = {}
        for call in self.calls:
            following.setdefault(id(call.prompt.parent), []).append(call)
        waiting, segments = following.get(id(None), []), list[list[Call]]()
        while waiting:
            segment = [waiting.pop(0)]
            while after := following.get(id(segment[-1])):
                # A reply that was itself continued is the one that the agent has gone on with.
                chosen = next((call for call in after if id(call) in following), after[0])
                waiting = [call for call in after if call is not chosen] + waiting
                segment.append(chosen)
            segments.append(segment)
        return sorted(segments, key=lambda segment: self.calls.index(segment[-1]))

    def turns(self, reward: float) -> tuple[Turn, ...]:
        """Return the calls as turns, segment by segment. The last turn has the reward."""
        turns = [
            _turn(call, fresh=not position) for segment in self.segments() for position, call in enumerate(segment)
        ]
        return (*turns[:-1], replace(turns[-1], reward=reward)) if turns else ()


@dataclass(eq=False)
class TokenRecord(EpisodeRecord):
    """The calls of one episode, as tokens."""

    chat: Chat = field(kw_only=True)
    reserved: int = 0
    """Number of tokens that requests in progress may sample."""
    released: asyncio.Condition = field(default_factory=asyncio.Condition)
    """Notifies waiting requests when `reserved` decreases."""

    @property
    def completion_tokens(self) -> int:
        """Number of sampled tokens so far."""
        return sum(len(call.completion.ids) for call in self.calls if call.completion)

    def prompt(self, request: ChatRequest) -> Prompt:
        """Convert a request to tokens, continuing a call with the same functions if its conversation does."""
        chat, conversation = self.chat.with_tools(request.tools), request.conversation
        if request.tools and not self.chat.takes_tools and conversation[0].role != "system":
            conversation = (Message("system", ""), *conversation)  # the chat describes the functions in it
        parent, context = self._parent(request), Context(chat)
        if parent is None or parent.completion is None:
            added, _ = context.prompt(conversation)
            return Prompt(request, conversation, tuple(added), None, tuple(added))
        before = parent.prompt
        conversation = (*before.conversation, Message("assistant", parent.reply.text), conversation[-1])
        context.resume(before.conversation, [*before.ids, *parent.completion.ids])
        added, fresh = context.prompt(conversation)
        return Prompt(request, conversation, tuple(context.ids), None if fresh else parent, tuple(added))


def _turn(call: Call, *, fresh: bool) -> Turn:
    prompt, completion, sample = call.prompt, call.completion, None
    if completion is not None:
        sample = Sample(
            prompt=prompt.ids if fresh else prompt.added,
            ids=completion.ids,
            logprobs=completion.logprobs,
            version=completion.version,
            fresh=fresh,
            versions=completion.versions,
        )
    return Turn(
        observation=prompt.conversation[-1].content,
        reply=replace(call.reply, sample=sample),
        action=None,
        valid=True,
        reward=0.0,
        state_key=_digest(prompt),
    )


def _digest(prompt: Prompt) -> str:
    """Return a key of a context: the state of an agent of which nothing else is known."""
    texts = [[message.role, message.content] for message in prompt.conversation]
    content = np.asarray(prompt.ids, np.int64).tobytes() if prompt.ids else bytes(json.dumps(texts), "utf-8")
    return hashlib.sha256(content).hexdigest()[:16]


def first_system(calls: Sequence[Call]) -> str:
    """Return the system message of the first call; empty without one."""
    first: tuple[Message, ...] = calls[0].prompt.conversation[:1] if calls else ()
    return first[0].content if first and first[0].role == "system" else ""


def first_tools(calls: Sequence[Call]) -> tuple[dict[str, Any], ...]:
    """Return the functions of the first call."""
    return calls[0].prompt.request.tools if calls else ()
