"""Parsing of responses in the format of OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_envs import Reply, TokenUsage

from agentgym_eval.util.tool_calls import neutral

_REASONING = ("reasoning_content", "reasoning")
"""Fields for reasoning that is separate from the answer: of DeepSeek and SGLang, and of OpenRouter and vLLM."""


def reply(answer: Mapping[str, Any], seconds: float | None = None) -> Reply:
    """Return the reply in a response, with its usage, latency and finish reason. A refusal is a reply, too.

    Args:
        answer: Response of the chat completions API.
        seconds: Latency of the request.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: if the response doesn't follow the protocol.
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
    """Return the token counts of a response; None if they are missing or not valid."""
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
    """Return a text without lone surrogates, which JSON allows and UTF-8 doesn't; None if it isn't a text."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None
