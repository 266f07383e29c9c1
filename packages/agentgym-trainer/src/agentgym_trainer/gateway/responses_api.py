"""OpenAI's Responses API, as a translation to chat completions. Responses aren't stored: requests have all items."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

from agentgym_trainer.gateway.errors import ApiError, unsupported
from agentgym_trainer.gateway.faces import Answer, named_events, new_id

_TEXTS = ("input_text", "output_text", "text")


class Responses:
    """OpenAI's Responses API."""

    path, anthropic = "/responses", False

    def chat_body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the chat completion with the same messages.

        Raises:
            ApiError: if the request refers to a stored response, or has items other than messages and function calls.
        """
        if body.get("previous_response_id") or body.get("conversation"):
            raise unsupported("Stored responses", "Send all items as input.", "previous_response_id")
        instructions, items = body.get("instructions"), body.get("input")
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        if not isinstance(items, list):
            raise ApiError("input must be a text or a list of items.", param="input")
        messages: list[dict[str, Any]] = [{"role": "system", "content": instructions}] if instructions else []
        for item in cast("list[Any]", items):
            _add(messages, item)
        form = (body.get("text") or {}).get("format")
        tools = [_tool(tool) for tool in body.get("tools") or []]
        return {
            **{name: body.get(name) for name in ("temperature", "top_p", "stream")},
            "messages": messages,
            "tools": tools or None,
            "tool_choice": body.get("tool_choice") if tools else None,
            "max_completion_tokens": body.get("max_output_tokens"),
            "response_format": form,
        }

    def response(self, answer: Answer) -> dict[str, Any]:
        """Return a `response`."""
        choice = answer.reply.choices[0]
        output: list[dict[str, Any]] = []
        if text := choice.message["content"]:
            part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
            item = {"type": "message", "id": new_id("msg_"), "role": "assistant", "status": "completed"}
            output.append(item | {"content": [part]})
        for call in choice.message.get("tool_calls", ()):
            item = {"type": "function_call", "id": new_id("fc_"), "call_id": call["id"], "status": "completed"}
            output.append(item | call["function"])
        cut, reply = choice.finish_reason == "length", answer.reply
        return self._envelope(answer) | {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": output,
            "usage": {
                "input_tokens": reply.prompt_tokens,
                "output_tokens": reply.completion_tokens,
                "total_tokens": reply.prompt_tokens + reply.completion_tokens,
                "input_tokens_details": {"cached_tokens": 0},
                "output_tokens_details": {"reasoning_tokens": 0},
            },
        }

    def events(self, answer: Answer) -> Iterator[str]:
        """Yield the events from `response.created` to `response.completed` or `response.incomplete`."""
        return named_events(event | {"sequence_number": i} for i, event in enumerate(self._events(answer)))

    def _events(self, answer: Answer) -> Iterator[dict[str, Any]]:
        whole = self.response(answer)
        yield {"type": "response.created", "response": whole | {"status": "in_progress", "output": []}}
        for i, item in enumerate(whole["output"]):
            where = {"output_index": i, "item_id": item["id"]}
            begun = item | {"status": "in_progress"}
            if item["type"] == "message":
                part = item["content"][0]
                yield {"type": "response.output_item.added", "output_index": i, "item": begun | {"content": []}}
                where |= {"content_index": 0}
                yield {"type": "response.content_part.added", **where, "part": part | {"text": ""}}
                yield {"type": "response.output_text.delta", **where, "delta": part["text"], "logprobs": []}
                yield {"type": "response.output_text.done", **where, "text": part["text"], "logprobs": []}
                yield {"type": "response.content_part.done", **where, "part": part}
            else:
                call = {"name": item["name"], "arguments": item["arguments"]}
                yield {"type": "response.output_item.added", "output_index": i, "item": begun | {"arguments": ""}}
                yield {"type": "response.function_call_arguments.delta", **where, "delta": call["arguments"]}
                yield {"type": "response.function_call_arguments.done", **where, **call}
            yield {"type": "response.output_item.done", "output_index": i, "item": item}
        yield {"type": f"response.{whole['status']}", "response": whole}

    def _envelope(self, answer: Answer) -> dict[str, Any]:
        tools = [{"type": "function", "strict": False, **tool["function"]} for tool in answer.request.tools]
        return {
            "id": new_id("resp_"),
            "object": "response",
            "created_at": int(time.time()),
            "model": answer.model,
            "error": None,
            "instructions": None,
            "metadata": {},
            "parallel_tool_calls": True,
            "temperature": answer.request.temperature,
            "tool_choice": "auto",
            "tools": tools,
            "top_p": None,
        }


def _add(messages: list[dict[str, Any]], item: Any) -> None:
    """Append an item to the messages. A function call belongs to the message of the model before it."""
    kind = item.get("type", "message") if isinstance(item, dict) else None
    match kind:
        case "message":
            messages.append({"role": item.get("role"), "content": _content(item.get("content"))})
        case "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            function = {"name": item.get("name"), "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            messages[-1].setdefault("tool_calls", []).append(call)
        case "function_call_output":
            output = _content(item.get("output"))
            messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": output})
        case _:
            raise unsupported(f"An input item of the type {kind}", "Send messages and function calls.", "input")


def _content(content: Any) -> Any:
    """Return content with parts of text as chat completions have them; other parts are refused there."""
    if not isinstance(content, list):
        return content
    parts = cast("list[Any]", content)
    return [
        {"type": "text", "text": part["text"]} if isinstance(part, dict) and part.get("type") in _TEXTS else part
        for part in parts
    ]


def _tool(tool: Any) -> Any:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise unsupported("A tool of another type than function", "Declare functions.", "tools")
    return {"type": "function", "function": {name: tool.get(name) for name in ("name", "description", "parameters")}}
