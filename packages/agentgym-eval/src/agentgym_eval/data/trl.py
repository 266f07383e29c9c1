"""TRL's conversational format for language modelling: `{"messages": [{"role": ..., "content": ...}]}`, one a line.

The column `agentgym` holds, as JSON, the episode that the messages were made from, so that the way back is exact; TRL
passes it over. An episode whose context began anew is as many lines as it had contexts, the episode in the first.
Calls of functions are `tool_calls`, with the functions in `tools`, as JSON. Lines without our column come from
elsewhere and are conversations of no world: `dialogue` reads them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from agentgym_envs import Conversation, Episode
from agentgym_envs.util.json_text import parse

from agentgym_eval.data.contexts import context_messages
from agentgym_eval.util.tool_calls import native

OURS = "agentgym"
"""The column that has the episode."""
_COLUMN = {"part", "sha256", "episode"}


def records(episode: Episode) -> Iterator[dict[str, Any]]:
    """The lines of an episode."""
    for part, stretch in enumerate(context_messages(episode)):
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
