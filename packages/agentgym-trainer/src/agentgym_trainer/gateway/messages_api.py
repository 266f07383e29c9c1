"""Anthropic's Messages API, as a translation to chat completions."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

from agentgym_trainer.gateway.errors import ApiError, unsupported
from agentgym_trainer.gateway.faces import Answer, named_events, new_id

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class Messages:
    """Anthropic's Messages API."""

    path, anthropic = "/messages", True

    def chat_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chat completion with the same messages.

        Raises:
            ApiError: if there are blocks other than texts, uses of tools and their results.
        """
        if not isinstance(body.get("messages"), list):
            raise ApiError("messages must be a list.", param="messages")
        messages: list[dict[str, Any]] = []
        if system := body.get("system"):
            messages.append({"role": "system", "content": _text(system)})
        for message in cast("list[Any]", body["messages"]):
            messages += _converted(message)
        choice, tools = (body.get("tool_choice") or {}).get("type"), [_tool(tool) for tool in body.get("tools") or []]
        return {
            **{name: body.get(name) for name in ("temperature", "top_p", "top_k", "stream", "max_tokens")},
            "messages": messages,
            "tools": tools or None,
            "tool_choice": "none" if tools and choice == "none" else None,
            "stop": body.get("stop_sequences"),
        }

    def response(self, answer: Answer) -> dict[str, Any]:
        """Return a `message`."""
        choice, blocks = answer.reply.choices[0], list[dict[str, Any]]()
        if (text := choice.message["content"]) or "tool_calls" not in choice.message:
            blocks.append({"type": "text", "text": text or ""})
        for call in choice.message.get("tool_calls", ()):
            function = call["function"]
            given = json.loads(function["arguments"])
            blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
        stopped = bool(choice.stop) and choice.finish_reason == "stop"
        return {
            "id": new_id("msg_"),
            "type": "message",
            "role": "assistant",
            "model": answer.model,
            "content": blocks,
            "stop_reason": "stop_sequence" if stopped else _STOP_REASONS[choice.finish_reason],
            "stop_sequence": choice.stop if stopped else None,
            "usage": {
                "input_tokens": answer.reply.prompt_tokens,
                "output_tokens": answer.reply.completion_tokens,
            },
        }

    def events(self, answer: Answer) -> Iterator[str]:
        """Yield the events from `message_start` to `message_stop`."""
        return named_events(self._events(answer))

    def _events(self, answer: Answer) -> Iterator[dict[str, Any]]:
        whole = self.response(answer)
        yield {"type": "message_start", "message": whole | {"content": [], "stop_reason": None, "stop_sequence": None}}
        for i, block in enumerate(whole["content"]):
            if block["type"] == "text":
                begun, delta = block | {"text": ""}, {"type": "text_delta", "text": block["text"]}
            else:
                begun = block | {"input": {}}
                delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            yield {"type": "content_block_start", "index": i, "content_block": begun}
            yield {"type": "content_block_delta", "index": i, "delta": delta}
            yield {"type": "content_block_stop", "index": i}
        stop = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
        usage = {"output_tokens": whole["usage"]["output_tokens"]}
        yield {"type": "message_delta", "delta": stop, "usage": usage}
        yield {"type": "message_stop"}


def _converted(message: Any) -> Iterator[dict[str, Any]]:
    """Yield the messages that a message stands for: the results of tools in it are messages of their own."""
    if not isinstance(message, dict) or message.get("role") not in ("user", "assistant"):
        raise ApiError("Each message needs a role, user or assistant.", param="messages")
    texts, calls = list[str](), list[dict[str, Any]]()
    for block in _blocks(message.get("content")):
        match block.get("type") if isinstance(block, dict) else None:
            case "text":
                texts.append(str(block.get("text")))
            case "tool_use":
                function = {"name": block.get("name"), "arguments": json.dumps(block.get("input"))}
                calls.append({"id": block.get("id"), "type": "function", "function": function})
            case "tool_result":
                content = _text(block.get("content") or "")
                yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
            case kind:
                raise unsupported(f"Content of the type {kind}", "Send blocks of text.", "messages")
    if texts or calls:
        yield {"role": message["role"], "content": "\n\n".join(texts), **({"tool_calls": calls} if calls else {})}


def _blocks(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise ApiError("The content of a message must be text or a list of blocks.", param="messages")
    return cast("list[Any]", content)


def _text(content: Any) -> str:
    """Return the text of content that may only have text."""
    blocks = _blocks(content)
    if any(not isinstance(block, dict) or block.get("type") != "text" for block in blocks):
        raise unsupported("Content other than text here", "Send blocks of text.", "messages")
    return "\n\n".join(str(block.get("text")) for block in blocks)


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type", "custom") != "custom":
        raise unsupported("A tool of Anthropic's servers", "Declare tools with an input_schema.", "tools")
    function = {"name": tool.get("name"), "description": tool.get("description")}
    return {"type": "function", "function": function | {"parameters": tool.get("input_schema")}}
