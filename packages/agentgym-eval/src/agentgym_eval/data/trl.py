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

from agentgym_eval.data.recorded import Recording
from agentgym_eval.data.stretches import stretches
from agentgym_eval.tool_calls import native, neutral

OURS = "agentgym"
"""The column that has the episode."""
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
    about = json.loads(record[OURS])
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
    messages: list[Message] = []
    for at, said in enumerate(record["messages"]):
        role, content = said.get("role"), said.get("content")
        if role not in _ROLES or not isinstance("" if said.get("tool_calls") else content, str):
            raise ValueError(f"message {at + 1} is no text of {', '.join(_ROLES)}")
        messages.append(Message(_ROLES[role], neutral(said) if role == "assistant" else content))
    tools = record.get("tools") or ()
    return Recording(tuple(messages), tools=tuple(json.loads(tools) if isinstance(tools, str) else tools))


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
