"""Answers as OpenAI's chat completions have them. Knows no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_envs import Reply, TokenUsage

from agentgym_eval.util.tool_calls import neutral

_REASONING = ("reasoning_content", "reasoning")
"""Where endpoints put what a model reasons apart from its answer: DeepSeek and SGLang, OpenRouter and vLLM."""


def reply(answer: Mapping[str, Any], seconds: float | None = None) -> Reply:
    """What an answer says, and what the endpoint tells of it. A refusal is said as well.

    Args:
        answer: To a chat completion.
        seconds: How long it took.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: when it isn't of the protocol.
    """
    choice = answer["choices"][0]
    message, reason = choice["message"], choice.get("finish_reason")
    return Reply(
        neutral(message),
        "length" if reason == "length" else "stop",
        usage=usage(answer),
        seconds=None if seconds is None else round(seconds, 3),
        finish_reason=_text(reason),
        reasoning=next(filter(None, (_text(message.get(name)) for name in _REASONING)), None),
    )


def usage(answer: Mapping[str, Any]) -> TokenUsage | None:
    """The tokens of an answer; None where the endpoint doesn't say, or says something that is no number of tokens."""
    counts = answer.get("usage")
    if not isinstance(counts, dict):
        return None
    prompt, completion = _count(counts.get("prompt_tokens")), _count(counts.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    details = counts.get("prompt_tokens_details")
    return TokenUsage(prompt, completion, _count(details.get("cached_tokens")) if isinstance(details, dict) else None)


def _count(value: object) -> int | None:
    return value if type(value) is int and value >= 0 else None


def _text(value: object) -> str | None:
    """As it can be written to a file: half a character, which JSON can express, could not."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
