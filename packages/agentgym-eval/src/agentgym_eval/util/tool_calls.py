"""Conversion of function calls between our conversations and the tool-call messages of OpenAI's protocol and of chat
templates.

In our conversations, a function-calling agent writes a neutral form: a JSON object with its thought, the function and
the arguments. In the protocol, such a reply is a tool call, and the following observation is the tool's answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgym_envs import Conversation, Message
from agentgym_envs.agents.call_parsing import find_call
from agentgym_envs.core.action_schema import Call, CallError, described
from agentgym_envs.util.screenshots import Picture


def plain(conversation: Conversation, tools: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """Return the messages as text, with the function descriptions appended to the system message. A message with a
    picture has a list of parts, its text and the picture.
    """
    messages: list[dict[str, Any]] = [{"role": each.role, "content": _content(each)} for each in conversation]
    if tools:
        if not messages or messages[0]["role"] != "system":
            return [{"role": "system", "content": described(tools)}, *messages]
        messages[0]["content"] += f"\n\n{described(tools)}"
    return messages


def native(conversation: Conversation, *, write: Callable[[dict[str, Any]], object]) -> list[dict[str, Any]]:
    """Return the messages with function calls as tool calls and the observations after them as tool answers. As a
    tool's answer can only be text, its picture follows in a message of its own.

    Args:
        conversation: The conversation of a function-calling agent.
        write: Converts the arguments: to a JSON string for the protocol, unchanged for chat templates.
    """
    messages: list[dict[str, Any]] = []
    called = ""
    for at, message in enumerate(conversation):
        call = _call(message) if message.role == "assistant" else None
        if call is not None:
            called = f"{at:09d}"  # nine alphanumeric characters: the strictest endpoint's requirement
            function = {"name": call.name, "arguments": write(call.arguments)}
            tool_calls = [{"id": called, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": call.thought, "tool_calls": tool_calls})
        elif called:
            messages.append({"role": "tool", "tool_call_id": called, "content": message.content})
            called = ""
            if message.picture is not None:
                messages.append({"role": "user", "content": [_image(message.picture)]})
        else:
            messages.append({"role": message.role, "content": _content(message)})
    return messages


def content_parts(message: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the parts of a message's content, each with its type, `text` or `image_url`: a text, or a `data:` URL."""
    content = message["content"]
    if isinstance(content, str):
        return [("text", content)] if content else []
    return [(part["type"], part["text"] if part["type"] == "text" else part["image_url"]["url"]) for part in content]


def _content(message: Message) -> str | list[dict[str, Any]]:
    if message.picture is None:
        return message.content
    return [{"type": "text", "text": message.content}, _image(message.picture)]


def _image(picture: Picture) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": picture.url}}


def _call(message: Message) -> Call | None:
    """Return the function call in a reply that consists of nothing else; None otherwise."""
    try:
        call = find_call(message.content)
    except CallError:
        return None
    return call if call.to_json() == message.content else None


def neutral(message: Mapping[str, Any]) -> str:
    """Return an assistant's message in the neutral form: its calls, or else its text or refusal.

    Raises:
        LookupError, TypeError, ValueError, AttributeError: If the message doesn't follow the protocol.
    """
    text = _text(message.get("content")) or message.get("refusal") or ""
    calls = message.get("tool_calls")
    written = "\n".join(_written(call["function"], text) for call in calls) if calls else text
    # Lone surrogates, which JSON can express, can't be written to a file.
    return written.encode("utf-8", "replace").decode()


def _text(content: object) -> str:
    """Return the text of a message's content, which some endpoints split into parts."""
    if isinstance(content, list):
        return "".join(part["text"] for part in content if part.get("type") == "text")
    return content if isinstance(content, str) else ""


def _written(function: Mapping[str, Any], thought: str) -> str:
    """Return the call in the form in which experts write it. Arguments that are no JSON object stay unchanged, so that
    the agent receives an error message about them.
    """
    name, arguments = function["name"], function.get("arguments") or "{}"
    try:
        given = json.loads(arguments, strict=False) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        given = arguments
    if isinstance(given, dict):
        return Call(name, given, thought.strip()).to_json()
    written = {"thought": thought.strip()} if thought.strip() else {}
    return json.dumps(written | {"function_name": name, "arguments": given}, ensure_ascii=False)
