"""Answers as OpenAI's chat completions have them. Knows no network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym_envs import Reply

from agentgym_eval.tool_calls import neutral
from agentgym_eval.usage import Usage


def reply(choice: Mapping[str, Any]) -> Reply:
    """What is said in one of an answer's `choices`. A refusal is said as well.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: when it isn't of the protocol.
    """
    return Reply(neutral(choice["message"]), "length" if choice.get("finish_reason") == "length" else "stop")


def usage(answer: Mapping[str, Any]) -> Usage:
    """The tokens of an answer; none where the endpoint doesn't count.

    Raises:
        AttributeError, TypeError, ValueError, OverflowError: when it isn't of the protocol.
    """
    counts = answer.get("usage") or {}
    details = counts.get("prompt_tokens_details") or {}
    return Usage(
        requests=1,
        prompt_tokens=int(counts.get("prompt_tokens") or 0),
        cached_tokens=int(details.get("cached_tokens") or 0),
        completion_tokens=int(counts.get("completion_tokens") or 0),
    )
