"""Conversations in the protocol of chat endpoints, as other libraries store them: messages with roles, function calls,
weights and reasoning.

An agent's episode is stricter: after the system message, user and assistant alternate, and a reply calls at most one
function. Other conversations are converted to this form if that loses nothing, and the conversion is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentgym_envs import Message
from agentgym_envs.util.json_text import parse

from agentgym_eval.data.recorded import Recording
from agentgym_eval.util.tool_calls import neutral

_Role = Literal["system", "user", "assistant", "tool"]
_ROLES: dict[str, _Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
_GAP = "\n\n"

OnChange = Callable[[str], object]
"""Callback that receives a description of each change to a conversation."""


@dataclass(frozen=True, slots=True)
class _ParsedMessage:
    role: _Role
    text: str
    at: int
    """Number of the message in the record, starting at 1."""
    loss: bool = True
    reasoning: str | None = None
    calls: tuple[Mapping[str, Any], ...] = ()
    answers: str | None = None
    """Id of the call that a tool message answers."""


def recording(messages: Any, tools: Any = None, *, on_change: OnChange, name: str = "messages") -> Recording:
    """Convert a list of chat messages to a recording.

    Args:
        messages: A list of JSON objects with `role` and `content`; those of the assistant may have `tool_calls`,
            `weight` (0: excluded from the loss) and `reasoning_content`.
        tools: JSON schemas of functions, as a list or as a JSON string.
        on_change: Called with a description of each conversion.
        name: Name of the list in its record, for error messages.

    Raises:
        ValueError: If a message is neither text nor a function call; the error says which.
    """
    if not isinstance(messages, list):
        raise ValueError(f"`{name}` is not a list of messages")
    parsed = [_parse_message(message, at, name) for at, message in enumerate(messages, 1)]
    alternating = list(_in_turns(_one_call_at_a_time(_system_first(parsed, on_change), on_change), on_change))
    return Recording(
        tuple(Message("user" if each.role == "tool" else each.role, each.text) for each in alternating),
        silent=frozenset(place for place, each in enumerate(alternating) if not each.loss),
        tools=_tools(tools),
        reasoning={place: each.reasoning for place, each in enumerate(alternating) if each.reasoning},
    )


def _tools(tools: Any) -> tuple[dict[str, Any], ...]:
    tools = parse(tools) if isinstance(tools, str) and tools else tools or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("`tools` is not a list of JSON objects")
    return tuple(tools)


def _parse_message(message: Any, at: int, name: str) -> _ParsedMessage:
    """Parse message number `at` of a conversation."""
    if not isinstance(message, dict):
        raise ValueError(f"message {at} of `{name}` is not a JSON object")
    role, content, calls = message.get("role"), _text(message.get("content")), message.get("tool_calls")
    if not isinstance(role, str) or role not in _ROLES or (content is None and not calls):
        raise ValueError(f"message {at} is not text with one of the roles {', '.join(_ROLES)}")
    if _ROLES[role] != "assistant":
        answers = message.get("tool_call_id")
        return _ParsedMessage(_ROLES[role], content or "", at, answers=answers if isinstance(answers, str) else None)
    try:
        calls = tuple(parse(call) if isinstance(call, str) else call for call in calls or ())
        text = neutral({**message, "content": content, "tool_calls": calls[:1]})
        for call in calls:
            neutral({"tool_calls": [call]})
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the `tool_calls` of message {at} don't follow the protocol") from error
    return _ParsedMessage(
        "assistant", text, at, loss=_weight(message, at) > 0, reasoning=_reasoning(message, at), calls=calls
    )


def _text(content: Any) -> str | None:
    """Return the text of a message's content, joining parts; None if it isn't text alone."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        return None
    texts = [part.get("text") for part in content if part.get("type") == "text"]
    return "".join(texts) if len(texts) == len(content) and all(isinstance(text, str) for text in texts) else None


def _weight(message: Mapping[str, Any], at: int) -> int:
    weight = message.get("weight")
    if weight is None:
        return 1
    if isinstance(weight, bool) or weight not in (0, 1):
        raise ValueError(f"the `weight` of message {at} must be 0 or 1, not {weight!r}")
    return int(weight)


def _reasoning(message: Mapping[str, Any], at: int) -> str | None:
    """Return the reasoning outside of the reply, under the names that endpoints have for it."""
    found = message.get("reasoning_content") or message.get("reasoning")
    if found is not None and not isinstance(found, str):
        raise ValueError(f"the reasoning of message {at} is not text")
    return found or None


def _system_first(parsed: Sequence[_ParsedMessage], on_change: OnChange) -> Iterator[_ParsedMessage]:
    """Merge the leading system messages into one, and turn later ones into user messages."""
    begun = next((place for place, each in enumerate(parsed) if each.role != "system"), len(parsed))
    if begun:
        yield replace(parsed[0], text=_GAP.join(each.text for each in parsed[:begun]))
    for each in parsed[begun:]:
        if each.role == "system":
            on_change("a system message within a conversation is read as a user message")
        yield replace(each, role="user") if each.role == "system" else each


def _one_call_at_a_time(parsed: Iterator[_ParsedMessage], on_change: OnChange) -> Iterator[_ParsedMessage]:
    """Split parallel function calls into one reply per call, each before its answer."""
    waiting: list[_ParsedMessage] = []
    for each in parsed:
        if waiting and each.role == "tool":
            place = next((i for i, call in enumerate(waiting) if call.answers == each.answers), 0)
            yield waiting.pop(place)
            yield each
            continue
        if waiting:
            raise ValueError(f"message {waiting[0].at} calls functions that no tool message answers")
        if len(each.calls) < 2:
            yield each
            continue
        on_change("parallel function calls are read as consecutive calls")
        for place, call in enumerate(each.calls):
            text = each.text if place == 0 else neutral({"tool_calls": [call]})
            reasoning = each.reasoning if place == 0 else None
            waiting.append(replace(each, text=text, calls=(call,), answers=call.get("id"), reasoning=reasoning))
    yield from waiting[:1]  # a conversation may end with one unanswered call
    if len(waiting) > 1:
        raise ValueError(f"message {waiting[0].at} calls functions that no tool message answers")


def _in_turns(parsed: Iterator[_ParsedMessage], on_change: OnChange) -> Iterator[_ParsedMessage]:
    """Merge consecutive messages of the same side."""
    last: _ParsedMessage | None = None
    for each in parsed:
        if last is None or last.role == "system" or (last.role == "assistant") != (each.role == "assistant"):
            if last is not None:
                yield last
            last = each
            continue
        if last.calls or each.calls:
            raise ValueError(f"message {each.at} follows another reply, and one of the two calls functions")
        if last.loss != each.loss:
            raise ValueError(
                f"messages {last.at} and {each.at} form one reply, but only one of them has the `weight` 0"
            )
        on_change("consecutive messages of the same side are merged")
        thought = _GAP.join(filter(None, (last.reasoning, each.reasoning))) or None
        last = replace(last, text=f"{last.text}{_GAP}{each.text}", reasoning=thought)
    if last is not None:
        yield last
