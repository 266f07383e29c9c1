"""TRL's conversational format for language modelling: `{"messages": [{"role": ..., "content": ...}]}`, one a line.

The column `agentgym` holds, as JSON, the episode that the messages were made from, so that the way back is exact; TRL
passes it over. An episode whose context began anew is as many lines as it had contexts, the episode in the first.
Calls of functions are `tool_calls`, with the functions in `tools`, as JSON. Lines without our column come from
elsewhere and are conversations of no world.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Literal

from agentgym_envs import Conversation, Episode, Message
from agentgym_envs.json_text import parse

from agentgym_eval.data.recorded import Recording
from agentgym_eval.data.stretches import stretches
from agentgym_eval.tool_calls import native, neutral

OURS = "agentgym"
"""The column that has the episode."""
_COLUMN = {"part", "sha256", "episode"}
_ROLES: dict[str, Literal["system", "user", "assistant"]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "user",
}


def records(episode: Episode) -> Iterator[dict[str, Any]]:
    """The lines of an episode."""
    for part, stretch in enumerate(stretches(episode)):
        messages = messages_of(stretch.messages, calls=bool(episode.tools))
        whole = "null" if part else episode.to_json()
        tools = {"tools": json.dumps(episode.tools)} if episode.tools else {}
        about = f'{{"part":{part},"sha256":"{_digest(messages)}","episode":{whole}}}'
        yield {"messages": messages, **tools, OURS: about}


def original(record: dict[str, Any]) -> Episode | None:
    """The episode that a line of ours was made from; None for its further parts.

    Raises:
        ValueError: when the messages are others than they were, or the column is damaged.
    """
    parsed = parse(record[OURS]) if isinstance(record[OURS], str) else None
    about: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
    if lacking := _COLUMN - about.keys():
        raise ValueError(f"its column `{OURS}` is damaged: it has no {', '.join(sorted(lacking))}")
    if about["sha256"] != _digest(record["messages"]):
        raise ValueError(
            f"its messages were changed, and the episode in `{OURS}` was not; without that column it is read as a "
            "conversation of its own"
        )
    return None if about["part"] else Episode.from_json(json.dumps(about["episode"]))


def read(record: dict[str, Any]) -> Recording:
    """What was said in a line from elsewhere.

    Raises:
        ValueError: when a message isn't text or a call; the message says which.
    """
    if not isinstance(record["messages"], list):
        raise ValueError("`messages` is no list of messages")
    messages = tuple(_message(said, at) for at, said in enumerate(record["messages"], 1))
    tools = record.get("tools") or []
    tools = parse(tools) if isinstance(tools, str) else tools
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("`tools` is no list of JSON objects")
    return Recording(messages, tools=tuple(tools))


def _message(said: Any, at: int) -> Message:
    """What message `at` of a line says."""
    if not isinstance(said, dict):
        raise ValueError(f"message {at} of `messages` is no JSON object")
    role, content = said.get("role"), _text(said.get("content"))
    if not isinstance(role, str) or role not in _ROLES or (content is None and not said.get("tool_calls")):
        raise ValueError(f"message {at} is no text of {', '.join(_ROLES)}")
    if role != "assistant":
        return Message(_ROLES[role], content or "")
    try:
        return Message("assistant", neutral(said | {"content": content}))
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"the `tool_calls` of message {at} are not of the protocol") from error


def _text(content: Any) -> str | None:
    """What a message says, whole or in parts; None when it isn't text alone."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return None
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    return "".join(texts) if len(texts) == len(content) and all(isinstance(text, str) for text in texts) else None


def messages_of(conversation: Conversation, *, calls: bool) -> list[dict[str, Any]]:
    """The messages of a conversation, one for each; with `calls`, those of an agent that calls functions."""
    if calls:
        return native(conversation, write=lambda arguments: arguments)
    return [{"role": message.role, "content": message.content} for message in conversation]


def _digest(messages: list[dict[str, Any]]) -> str:
    """Of what is said. Libraries that keep messages in columns order their keys anew and fill gaps with nothing."""
    return hashlib.sha256(json.dumps(_without_gaps(messages), sort_keys=True).encode()).hexdigest()


def _without_gaps(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_gaps(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_gaps(item) for key, item in value.items() if item is not None}
    return value
