"""Replies to requests, and where they come from: an engine (`sampling`) or an endpoint (`endpoints`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from agentgym_envs.core.action_schema import Call
from agentgym_envs.core.feedback import writable

from agentgym_trainer.gateway.errors import ApiError
from agentgym_trainer.gateway.recording import EpisodeLimits, EpisodeRecord
from agentgym_trainer.gateway.requests import ChatRequest


@dataclass(frozen=True, slots=True)
class Choice:
    """One reply to a request."""

    message: dict[str, Any]
    """The message, as OpenAI's API has it."""
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    logprobs: tuple[tuple[str, float], ...] = ()
    """The text and the log-probability of each sampled id, if the request asks for them."""
    stop: str = ""
    """The stop sequence that ended it, if one did."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The replies to a request."""

    choices: tuple[Choice, ...]
    prompt_tokens: int
    completion_tokens: int
    """Number of tokens in all choices."""


class Replier(Protocol):
    """Where replies come from."""

    @property
    def passes_on(self) -> bool:
        """Whether requests are passed on to an endpoint, which checks what this gateway doesn't read."""
        ...

    def record(self, limits: EpisodeLimits, rng: np.random.Generator, task: str, sample: int) -> EpisodeRecord:
        """Return the record of a new episode, of a sample of a task."""
        ...

    def forget(self, record: EpisodeRecord) -> None:
        """Free what is kept for an episode that has ended."""
        ...

    async def reply(self, record: EpisodeRecord, request: ChatRequest) -> ChatReply:
        """Reply to a request, and record the replies.

        Raises:
            ApiError: if a limit of the episode is reached, the request can't be answered, or the engine or endpoint
                fails.
        """
        ...


def count_request(record: EpisodeRecord) -> None:
    """Count a request of an episode.

    Raises:
        ApiError: if the episode has ended, the engine or endpoint has failed in it, or a request exceeds the limit on
            their number.
    """
    if record.closed:  # while the request was received
        raise ended_episode()
    if record.error is not None:
        raise failure(record.error)
    record.requests += 1
    if record.limits.calls and record.requests > record.limits.calls:
        record.exhausted = True
        raise ApiError(
            f"This episode has made its {record.limits.calls} requests, the horizon of the run; end it.",
            code="horizon_reached",
        )


def ended_episode() -> ApiError:
    """Return the response to a request of an episode that has ended, or never began."""
    return ApiError(
        "No running episode has this API key or URL. It may have ended: use those that the rollout hands out.",
        status=401,
        code="no_episode",
    )


def failure(error: Exception) -> ApiError:
    """Return the response to a request that failed through no fault of the client."""
    return ApiError(f"The model failed: {error}", status=500)


def reply_message(record: EpisodeRecord, content: str, calls: Sequence[Call]) -> dict[str, Any]:
    """Return the message of the next reply of an episode, with calls of functions as OpenAI's API has them."""
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
    if calls:
        number = len(record.calls)
        message["tool_calls"] = [
            {
                "id": f"call{number:05}{i:02}",
                "type": "function",
                "function": {"name": writable(call.name), "arguments": _arguments(call)},
            }
            for i, call in enumerate(calls)
        ]
    return message


def _arguments(call: Call) -> str:
    """Return the arguments as JSON that any client can read: a number that isn't finite becomes a text, and half of an
    emoji a question mark.
    """
    finite = json.loads(json.dumps(call.arguments), parse_constant=str)
    return writable(json.dumps(finite, ensure_ascii=False))


def before_stop(text: str, stops: Sequence[str]) -> tuple[str, str]:
    """Return the text before the first of the stop sequences in it, and this sequence; empty if there is none."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, ""
    start, stop = min(found)
    return text[:start], stop
