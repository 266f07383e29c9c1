"""The APIs that the gateway speaks: each converts requests to those of chat completions, and replies back.

A stream has the whole reply in a few events, since engines return whole replies.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agentgym_trainer.gateway.replies import ChatReply, Choice
from agentgym_trainer.gateway.requests import ChatRequest


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply and what its form depends on."""

    request: ChatRequest
    reply: ChatReply
    model: str


class Face(Protocol):
    """An API."""

    path: str
    """Path below the base URL."""
    anthropic: bool
    """Whether errors have Anthropic's shape instead of OpenAI's."""

    def chat_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body of the equivalent request of a chat completion.

        Raises:
            ApiError: if there is none.
        """
        ...

    def response(self, answer: Answer) -> dict[str, Any]:
        """Return the body of the response."""
        ...

    def events(self, answer: Answer) -> Iterator[str]:
        """Yield the server-sent events of the response."""
        ...


def new_id(prefix: str) -> str:
    """Return a new id of a response or of a part of it."""
    return f"{prefix}{secrets.token_hex(12)}"


def named_events(events: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield events that have their type as their name."""
    for event in events:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


class ChatCompletions:
    """OpenAI's chat completions."""

    path, anthropic = "/chat/completions", False

    def chat_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the body unchanged."""
        return dict(body)

    def response(self, answer: Answer) -> dict[str, Any]:
        """Return a `chat.completion`."""
        choices = [
            {
                "index": i,
                "message": {"refusal": None, **choice.message},
                "finish_reason": choice.finish_reason,
                "logprobs": _logprobs(choice) if answer.request.logprobs else None,
            }
            for i, choice in enumerate(answer.reply.choices)
        ]
        return _envelope("chat.completion", answer.model) | {"choices": choices, "usage": _usage(answer.reply)}

    def events(self, answer: Answer) -> Iterator[str]:
        """Yield `chat.completion.chunk`s, then `[DONE]`."""
        envelope = _envelope("chat.completion.chunk", answer.model)
        for i, choice in enumerate(answer.reply.choices):
            delta = dict(choice.message)
            if "tool_calls" in delta:
                delta["tool_calls"] = [{"index": j, **call} for j, call in enumerate(delta["tool_calls"])]
            logprobs = _logprobs(choice) if answer.request.logprobs else None
            chunk = {"index": i, "delta": delta, "finish_reason": None, "logprobs": logprobs}
            yield _data(envelope | {"choices": [chunk]})
            chunk = {"index": i, "delta": {}, "finish_reason": choice.finish_reason, "logprobs": None}
            yield _data(envelope | {"choices": [chunk]})
        if answer.request.include_usage:
            yield _data(envelope | {"choices": [], "usage": _usage(answer.reply)})
        yield "data: [DONE]\n\n"


def _envelope(kind: str, model: str) -> dict[str, Any]:
    return {"id": new_id("chatcmpl-"), "object": kind, "created": int(time.time()), "model": model}


def _usage(reply: ChatReply) -> dict[str, int]:
    prompt, completion = reply.prompt_tokens, reply.completion_tokens
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _logprobs(choice: Choice) -> dict[str, Any]:
    content = [
        {"token": text, "logprob": logprob, "bytes": list(bytes(text, "utf-8")), "top_logprobs": list[Any]()}
        for text, logprob in choice.logprobs
    ]
    return {"content": content, "refusal": None}


def _data(record: dict[str, Any]) -> str:
    return f"data: {json.dumps(record)}\n\n"
