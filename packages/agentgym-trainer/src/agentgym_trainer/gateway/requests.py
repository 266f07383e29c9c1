"""Requests of chat completions: validation, and conversion of OpenAI's messages to conversations.

Messages become the alternation of user and assistant messages that chat templates take: results of tools and user
messages in a row are one user message, and calls of functions have the neutral form of `agentgym_eval.util.tool_calls`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal, cast

from agentgym_envs import Conversation, Message
from agentgym_eval.util.tool_calls import neutral

from agentgym_trainer.gateway.errors import ApiError, unsupported

_MOST_CHOICES = 128
_NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "logit_bias": (None, {}),
}
"""Sampling parameters that the engines don't have, with the values that change nothing."""
_ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A validated request of a chat completion."""

    conversation: Conversation
    """Ends with a user message. See the module."""
    tools: tuple[dict[str, Any], ...] = ()
    """JSON schemas of the functions that may be called."""
    n: int = 1
    max_tokens: int | None = None
    temperature: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    logprobs: bool = False
    stream: bool = False
    include_usage: bool = False
    """Whether the stream ends with the token usage."""
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The body of the request of a chat completion, to be passed on."""


def chat_request(body: Mapping[str, Any], *, fixed_sampling: bool, passed_on: bool = False) -> ChatRequest:
    """Validate the body of a request of a chat completion. Unknown parameters are ignored.

    Args:
        body: The body, as the API documents it.
        fixed_sampling: Whether the sampling parameters of requests are ignored.
        passed_on: Whether an endpoint gets the body and checks the parameters that aren't read here. Messages may then
            have content other than text, of which only the text is read, and end with a reply to be continued.

    Raises:
        ApiError: if a parameter has a wrong type or isn't supported.
    """
    if not passed_on:
        _check_supported(body, fixed_sampling=fixed_sampling)
    n, temperature = _integer(body, "n", 1, _MOST_CHOICES) or 1, _number(body, "temperature")
    return ChatRequest(
        conversation=conversation(body.get("messages"), passed_on=passed_on),
        tools=() if body.get("tool_choice") == "none" else tool_schemas(body.get("tools")),
        n=n,
        max_tokens=_integer(body, "max_completion_tokens", 1) or _integer(body, "max_tokens", 1),
        temperature=temperature,
        seed=_integer(body, "seed"),
        stop=_stop(body.get("stop")),
        logprobs=bool(body.get("logprobs")),
        stream=bool(body.get("stream")),
        include_usage=bool(_object(body, "stream_options").get("include_usage")),
        body=body,
    )


def _check_supported(body: Mapping[str, Any], *, fixed_sampling: bool) -> None:
    if body.get("top_logprobs"):
        raise unsupported("top_logprobs", "Set logprobs alone for those of the sampled tokens.", "top_logprobs")
    if (kind := _object(body, "response_format").get("type", "text")) != "text":
        raise unsupported(f"response_format {kind}", "Ask for the format in the messages.", "response_format")
    if body.get("functions"):
        raise unsupported("functions", "Use tools.", "functions")
    if not fixed_sampling:
        for name, values in _NEUTRAL_VALUES.items():
            if body.get(name) not in values:
                raise unsupported(f"{name} {body[name]!r}", "Sample with temperature alone.", name)


def conversation(messages: Any, *, passed_on: bool = False) -> Conversation:
    """Convert OpenAI's messages to a conversation. System messages after the first other one count as the user's.
    Results of tools have the order of their calls, since nothing else in a conversation tells them apart.

    Args:
        messages: The messages.
        passed_on: See `chat_request`.

    Raises:
        ApiError: if they don't follow the protocol, have content other than text, or don't end with a user message or
            the result of a tool.
    """
    if not isinstance(messages, list) or not messages:
        raise ApiError("messages must be a list of at least one message.", param="messages")
    converted = [_message(message, i, passed_on=passed_on) for i, message in enumerate(cast("list[Any]", messages))]
    converted = [converted[i] for i in _reading_order(cast("list[dict[str, Any]]", messages))]
    leading = next((i for i, message in enumerate(converted) if message.role != "system"), len(converted))
    system, rest = converted[:leading], converted[leading:]
    turns = [Message("user", m.content) if m.role == "system" else m for m in rest]
    if not passed_on and (not turns or turns[-1].role != "user"):
        raise unsupported(
            "A conversation that doesn't end with a user message or the result of a tool",
            "Let the last message have the role user or tool; replies can't be prefilled.",
            "messages",
        )
    runs = (list(run) for _, run in groupby(turns, key=lambda message: message.role))
    merged = [Message(run[0].role, _joined(run)) for run in runs]
    return (*([Message("system", _joined(system))] if system else []), *merged)


def _reading_order(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the indices of the messages, those of results in a row in the order of the calls before them."""
    places, order, called = dict[str, int](), list[int](), 0
    for is_result, run in groupby(range(len(messages)), key=lambda i: messages[i]["role"] == "tool"):
        if is_result:
            order += sorted(run, key=lambda i: places.get(str(messages[i].get("tool_call_id")), called))
        else:
            order += run
            calls = messages[order[-1]].get("tool_calls") or ()
            places, called = {str(call.get("id")): place for place, call in enumerate(calls)}, len(calls)
    return order


def canonical_reply(message: Mapping[str, Any]) -> str:
    """Return a reply in the form in which `conversation` has it, whether the client echoes it or it is about to be
    returned.
    """
    return neutral(message).strip()


def tool_schemas(tools: Any) -> tuple[dict[str, Any], ...]:
    """Return the JSON schemas of functions, with a name, a description and parameters each.

    Raises:
        ApiError: if there is a tool of another kind, or one without a name.
    """
    if not isinstance(tools, list):
        if tools is None:
            return ()
        raise ApiError("tools must be a list.", param="tools")
    schemas: list[dict[str, Any]] = []
    for i, tool in enumerate(cast("list[Any]", tools)):
        if not isinstance(tool, dict) or tool.get("type", "function") != "function":
            raise unsupported(f"tools[{i}]", "Declare tools of the type function.", "tools")
        function: Any = tool.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ApiError(f"tools[{i}] needs a function with a name.", param="tools")
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        declared = {
            "name": function["name"],
            "description": function.get("description") or "",
            "parameters": parameters,
        }
        schemas.append({"type": "function", "function": declared})
    return tuple(schemas)


def _message(message: Any, i: int, *, passed_on: bool) -> Message:
    if not isinstance(message, dict) or message.get("role") not in _ROLES:
        raise ApiError(f"messages[{i}] needs a role, one of {', '.join(_ROLES)}.", param="messages")
    role: str = message["role"]
    if not passed_on:
        _check_content(message.get("content"), f"messages[{i}]")
    try:
        text = neutral(message)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ApiError(f"messages[{i}] doesn't follow the protocol: {error!r}.", param="messages") from error
    if role == "assistant":
        return Message("assistant", text.strip())
    kinds: dict[str, Literal["system", "user"]] = {"system": "system", "developer": "system"}
    return Message(kinds.get(role, "user"), text)


def _check_content(content: Any, where: str) -> None:
    if content is None or isinstance(content, str):
        return
    if not isinstance(content, list):
        raise ApiError(f"The content of {where} must be text or a list of parts.", param="messages")
    for part in cast("list[Any]", content):
        kind = cast("dict[str, Any]", part).get("type") if isinstance(part, dict) else None
        if kind != "text":
            raise unsupported(f"Content of the type {kind} in {where}", "Send parts of the type text.", "messages")


def _joined(messages: Sequence[Message]) -> str:
    return "\n\n".join(message.content for message in messages)


def _object(body: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = body.get(name)
    if value is not None and not isinstance(value, dict):
        raise ApiError(f"{name} must be an object, not {json.dumps(value)}.", param=name)
    return value or {}


def _integer(body: Mapping[str, Any], name: str, least: int | None = None, most: int | None = None) -> int | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) is not int or (least is not None and value < least) or (most is not None and value > most):
        limits = f" from {least}" * (least is not None) + f" to {most}" * (most is not None)
        raise ApiError(f"{name} must be a whole number{limits}, not {json.dumps(value)}.", param=name)
    return value


def _number(body: Mapping[str, Any], name: str) -> float | None:
    value = body.get(name)
    if value is None:
        return None
    if type(value) not in (int, float) or not 0 <= value <= 100:
        raise ApiError(f"{name} must be a number from 0, not {json.dumps(value)}.", param=name)
    return float(value)


def _stop(stop: Any) -> tuple[str, ...]:
    stops = cast("list[Any]", [stop] if isinstance(stop, str) else stop or [])
    if not isinstance(stops, list) or not all(isinstance(text, str) and text for text in stops):
        raise ApiError("stop must be a text or a list of texts that aren't empty.", param="stop")
    return tuple(stops)
