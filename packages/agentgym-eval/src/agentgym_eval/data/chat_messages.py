"""Conversations in the protocol of chat endpoints, as others write them down: messages of roles, calls of functions,
weights, reasoning.

An agent's episode is stricter: after the system's message, user and assistant take turns, and a reply calls one
function at most. What isn't so is put into that form where nothing is lost by it, and told.
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

Told = Callable[[str], object]
"""Is told what was changed in a conversation."""


@dataclass(frozen=True, slots=True)
class _Said:
    role: _Role
    text: str
    at: int
    """Number of the message in the record, from 1."""
    loss: bool = True
    reasoning: str | None = None
    calls: tuple[Mapping[str, Any], ...] = ()
    answers: str | None = None
    """Id of the call that a tool's message answers."""


def recording(messages: Any, tools: Any = None, *, told: Told, name: str = "messages") -> Recording:
    """What was said in a conversation.

    Args:
        messages: A list of JSON objects with `role` and `content`; an assistant's may have `tool_calls`, `weight` (0:
            not to be learned from) and `reasoning_content`.
        tools: JSON schemas of functions, or JSON of them.
        told: Is told what was put into another form.
        name: Of the list in its record, for messages.

    Raises:
        ValueError: when a message isn't text or a call; the message says which.
    """
    if not isinstance(messages, list):
        raise ValueError(f"`{name}` is no list of messages")
    said = [_said(message, at, name) for at, message in enumerate(messages, 1)]
    spoken = list(_in_turns(_one_call_at_a_time(_system_first(said, told), told), told))
    return Recording(
        tuple(Message("user" if each.role == "tool" else each.role, each.text) for each in spoken),
        silent=frozenset(place for place, each in enumerate(spoken) if not each.loss),
        tools=_tools(tools),
        reasoning={place: each.reasoning for place, each in enumerate(spoken) if each.reasoning},
    )


def _tools(tools: Any) -> tuple[dict[str, Any], ...]:
    tools = parse(tools) if isinstance(tools, str) and tools else tools or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ValueError("`tools` is no list of JSON objects")
    return tuple(tools)


def _said(message: Any, at: int, name: str) -> _Said:
    """What message `at` of a conversation says."""
    if not isinstance(message, dict):
        raise ValueError(f"message {at} of `{name}` is no JSON object")
    role, content, calls = message.get("role"), _text(message.get("content")), message.get("tool_calls")
    if not isinstance(role, str) or role not in _ROLES or (content is None and not calls):
        raise ValueError(f"message {at} is no text of {', '.join(_ROLES)}")
    if _ROLES[role] != "assistant":
        answers = message.get("tool_call_id")
        return _Said(_ROLES[role], content or "", at, answers=answers if isinstance(answers, str) else None)
    try:
        calls = tuple(parse(call) if isinstance(call, str) else call for call in calls or ())
        text = neutral({**message, "content": content, "tool_calls": calls[:1]})
        for call in calls:
            neutral({"tool_calls": [call]})
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the `tool_calls` of message {at} are not of the protocol") from error
    return _Said("assistant", text, at, loss=_weight(message, at) > 0, reasoning=_reasoning(message, at), calls=calls)


def _text(content: Any) -> str | None:
    """What a message says, whole or in parts; None when it isn't text alone."""
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
        raise ValueError(f"the `weight` of message {at} is 0 or 1, not {weight!r}")
    return int(weight)


def _reasoning(message: Mapping[str, Any], at: int) -> str | None:
    """What was thought apart from the reply, under the names that endpoints have for it."""
    found = message.get("reasoning_content") or message.get("reasoning")
    if found is not None and not isinstance(found, str):
        raise ValueError(f"the reasoning of message {at} is no text")
    return found or None


def _system_first(said: Sequence[_Said], told: Told) -> Iterator[_Said]:
    """The first messages of the system as one, and later ones as the user's."""
    begun = next((place for place, each in enumerate(said) if each.role != "system"), len(said))
    if begun:
        yield replace(said[0], text=_GAP.join(each.text for each in said[:begun]))
    for each in said[begun:]:
        if each.role == "system":
            told("a system message amid a conversation is read as the user's")
        yield replace(each, role="user") if each.role == "system" else each


def _one_call_at_a_time(said: Iterator[_Said], told: Told) -> Iterator[_Said]:
    """Of several functions called at once, each as a reply of its own, before its answer."""
    waiting: list[_Said] = []
    for each in said:
        if waiting and each.role == "tool":
            place = next((i for i, call in enumerate(waiting) if call.answers == each.answers), 0)
            yield waiting.pop(place)
            yield each
            continue
        if waiting:
            raise ValueError(f"message {waiting[0].at} calls functions that no message of a tool answers")
        if len(each.calls) < 2:
            yield each
            continue
        told("functions that were called at once are called one after the other")
        for place, call in enumerate(each.calls):
            text = each.text if place == 0 else neutral({"tool_calls": [call]})
            reasoning = each.reasoning if place == 0 else None
            waiting.append(replace(each, text=text, calls=(call,), answers=call.get("id"), reasoning=reasoning))
    yield from waiting[:1]  # a conversation may end with the calls; what nobody answered is one of them
    if len(waiting) > 1:
        raise ValueError(f"message {waiting[0].at} calls functions that no message of a tool answers")


def _in_turns(said: Iterator[_Said], told: Told) -> Iterator[_Said]:
    """Consecutive messages of one side as one."""
    last: _Said | None = None
    for each in said:
        if last is None or last.role == "system" or (last.role == "assistant") != (each.role == "assistant"):
            if last is not None:
                yield last
            last = each
            continue
        if last.calls or each.calls:
            raise ValueError(f"message {each.at} is another reply, and functions are called in it or the one before")
        if last.loss != each.loss:
            raise ValueError(f"messages {last.at} and {each.at} are one reply, of which a part has the `weight` 0")
        told("consecutive messages of one side are read as one")
        thought = _GAP.join(filter(None, (last.reasoning, each.reasoning))) or None
        last = replace(last, text=f"{last.text}{_GAP}{each.text}", reasoning=thought)
    if last is not None:
        yield last
