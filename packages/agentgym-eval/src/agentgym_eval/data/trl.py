"""TRL's conversational format for language modeling: JSON lines of `{"messages": [{"role": ..., "content": ...}]}`.

The column `agentgym`, which TRL ignores, contains the episode that the messages were made from as JSON, so that the
conversion can be reversed exactly. An episode with several contexts becomes one line per context, with the episode in
the first. Function calls are `tool_calls`, with the functions in `tools` as JSON. Lines without our column are from
other sources; `chat_messages` reads them as conversations without an environment.
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
"""Name of the column with the episode."""
_COLUMN = {"part", "sha256", "episode"}


def records(episode: Episode) -> Iterator[dict[str, Any]]:
    """Yield the records of an episode."""
    for part, context in enumerate(context_messages(episode)):
        messages = messages_of(context.messages, calls=bool(episode.tools))
        whole = "null" if part else episode.to_json()
        tools = {"tools": json.dumps(episode.tools)} if episode.tools else {}
        about = f'{{"part":{part},"sha256":"{_digest(messages)}","episode":{whole}}}'
        yield {"messages": messages, **tools, OURS: about}


def original(record: dict[str, Any]) -> Episode | None:
    """Return the episode that a record was made from; None for its further contexts.

    Raises:
        ValueError: If the messages were changed, or the column is damaged.
    """
    parsed = parse(record[OURS]) if isinstance(record[OURS], str) else None
    about: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
    if missing := _COLUMN - about.keys():
        raise ValueError(f"its column `{OURS}` is damaged: it lacks {', '.join(sorted(missing))}")
    if about["sha256"] != _digest(record["messages"]):
        raise ValueError(
            f"its messages don't match the episode in `{OURS}`; remove that column to read the messages as a recorded "
            "conversation"
        )
    return None if about["part"] else Episode.from_json(json.dumps(about["episode"]))


def messages_of(conversation: Conversation, *, calls: bool) -> list[dict[str, Any]]:
    """Return a conversation as message dictionaries; with `calls`, function calls become tool calls."""
    if calls:
        return native(conversation, write=lambda arguments: arguments)
    return [{"role": message.role, "content": message.content} for message in conversation]


def _digest(messages: list[dict[str, Any]]) -> str:
    """Return a hash of the messages that ignores key order and None values, which columnar libraries change."""
    return hashlib.sha256(json.dumps(_without_none(messages), sort_keys=True).encode()).hexdigest()


def _without_none(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value
