"""Replies of a model behind an endpoint: requests are passed on, and their text is recorded."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from agentgym_envs import Reply
from agentgym_envs.agents.call_parsing import split_calls
from agentgym_eval.policies.endpoint.client import Refused
from agentgym_eval.policies.endpoint.player import Attempt, Endpoint

from agentgym_trainer.gateway.errors import ApiError, unsupported
from agentgym_trainer.gateway.recording import EpisodeLimits, EpisodeRecord, Prompt
from agentgym_trainer.gateway.replies import ChatReply, Choice, before_stop, count_request, failure, reply_message
from agentgym_trainer.gateway.requests import ChatRequest, canonical_reply


@dataclass(eq=False)
class EndpointRecord(EpisodeRecord):
    """The calls of one episode that an endpoint has answered."""

    attempt: Attempt = field(kw_only=True)
    """The attempt at a task by which the endpoint records and replays its replies."""


@dataclass(frozen=True, slots=True)
class EndpointReplier:
    """Passes requests on to an endpoint. Its temperature and limit on tokens apply, whatever requests say."""

    endpoint: Endpoint
    passes_on: bool = True
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def record(self, limits: EpisodeLimits, rng: np.random.Generator, task: str, sample: int) -> EndpointRecord:
        """Return the record of a new episode."""
        return EndpointRecord(limits, rng, attempt=Attempt(next(self._numbers), task, sample))

    def forget(self, record: EpisodeRecord) -> None:
        """Free what the endpoint keeps for the episode."""
        if isinstance(record, EndpointRecord):
            self.endpoint.forget(record.attempt.key)

    async def reply(self, record: EpisodeRecord, request: ChatRequest) -> ChatReply:
        """Pass a request on. See `Replier.reply`."""
        if not isinstance(record, EndpointRecord):
            raise TypeError(f"An endpoint needs a record of its own, not a {type(record).__name__}.")
        count_request(record)
        if request.logprobs:
            raise unsupported("logprobs behind an endpoint", "Leave it out.", "logprobs")
        prompt, began = record.prompt(request), time.perf_counter()
        asked = (self.endpoint.complete(request.body, record.attempt) for _ in range(request.n))
        try:
            replies = await asyncio.gather(*asked)
        except Refused as refused:  # the harness's own fault, which it may handle
            raise ApiError(refused.message, status=refused.status, code=refused.code or None) from refused
        except Exception as error:  # whoever plays the episode raises it again
            record.error = record.error or error
            raise failure(error) from error
        finally:
            record.seconds += time.perf_counter() - began
        choices = tuple(_choice(record, prompt, reply) for reply in replies)
        used = [reply.usage for reply in replies if reply.usage]
        prompt_tokens = max((usage.prompt_tokens for usage in used), default=0)
        return ChatReply(choices, prompt_tokens, sum(usage.completion_tokens for usage in used))


def _choice(record: EpisodeRecord, prompt: Prompt, reply: Reply) -> Choice:
    request, limits = prompt.request, record.limits
    if reply.finish == "length":
        refused = not reply.text and reply.finish_reason is None
        record.cut |= refused or (request.max_tokens or limits.turn) >= limits.turn
        if refused:
            too_long = "The messages exceed the maximum context length of the endpoint's model."
            raise ApiError(too_long, code="context_length_exceeded", param="messages")
    shown, stop = before_stop(reply.text, request.stop)
    content, calls = split_calls(shown) if request.tools else (shown, [])
    content = "\n".join(dict.fromkeys(filter(None, [content, *(call.thought for call in calls)])))
    message: dict[str, Any] = reply_message(record, content, calls)
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    record.add(prompt, reply, canonical_reply(message))
    return Choice(message, "tool_calls" if calls and reply.finish == "stop" else "stop" if stop else reply.finish)
