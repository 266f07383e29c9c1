"""Calls of functions in messages, as OpenAI's protocol and chat templates have them.

In our conversations an agent that calls functions speaks neutrally: JSON of its thought, the function and the
arguments. Elsewhere such a reply is a tool call, and what the world shows after it the tool's answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgym_envs import Conversation, Message
from agentgym_envs.agents.call_parsing import find_call
from agentgym_envs.core.action_schema import Call, CallError, described


def plain(conversation: Conversation, tools: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """The messages as text, the functions described at the end of the system's: they have no place of their own."""
    messages = [{"role": message.role, "content": message.content} for message in conversation]
    if tools:
        if not messages or messages[0]["role"] != "system":
            return [{"role": "system", "content": described(tools)}, *messages]
        messages[0]["content"] += f"\n\n{described(tools)}"
    return messages


def native(conversation: Conversation, *, write: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
    """The messages with calls as tool calls, and what follows them as the tools' answers.

    Args:
        conversation: Of an agent that calls functions.
        write: How arguments stand there: as JSON in the protocol, as they are for chat templates.
    """
    messages: list[dict[str, Any]] = []
    called = ""
    for at, message in enumerate(conversation):
        call = _call(message) if message.role == "assistant" else None
        if call is not None:
            called = f"{at:09d}"  # letters and digits, nine: what the strictest endpoint takes
            function = {"name": call.name, "arguments": write(call.arguments)}
            tool_calls = [{"id": called, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": call.thought, "tool_calls": tool_calls})
        elif called:
            messages.append({"role": "tool", "tool_call_id": called, "content": message.content})
            called = ""
        else:
            messages.append({"role": message.role, "content": message.content})
    return messages


def _call(message: Message) -> Call | None:
    """The call that a reply is, and nothing beside."""
    try:
        call = find_call(message.content)
    except CallError:
        return None
    return call if call.to_json() == message.content else None


def neutral(message: Mapping[str, Any]) -> str:
    """What an assistant's message says in our conversations: its calls, or else its text or refusal.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: when it isn't of the protocol.
    """
    text = _text(message.get("content")) or message.get("refusal") or ""
    calls = message.get("tool_calls")
    said = "\n".join(_written(call["function"], text) for call in calls) if calls else text
    # Half a character, which JSON can express, could not be written to a file.
    return said.encode("utf-8", "replace").decode()


def _text(content: object) -> str:
    """Of a message; some endpoints give it in parts."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    return content if isinstance(content, str) else ""


def _written(function: Mapping[str, Any], thought: str) -> str:
    """The call as experts write it; arguments that are no object stay as they are, for the agent to be told."""
    name, arguments = function["name"], function.get("arguments") or "{}"
    try:
        given = json.loads(arguments, strict=False) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        given = arguments
    if isinstance(given, dict):
        return Call(name, given, thought.strip()).to_json()
    said = {"thought": thought.strip()} if thought.strip() else {}
    return json.dumps(said | {"function_name": name, "arguments": given}, ensure_ascii=False)
