"""Tests of the Responses API with OpenAI's client and of the Messages API with Anthropic's, both unmodified."""

from __future__ import annotations

import json
import socket
from typing import Any

import httpx
import pytest
from agentgym_trainer.gateway import server
from agentgym_trainer.gateway.server import OpenedEpisode
from chat_templates import make_chat
from dev_packages import require_packages

require_packages("anthropic", "openai")
import anthropic
import openai
from gateways import begin, open_gateway, openai_client, replying, segments

CALL = '<tool_call>\n{"name": "go", "arguments": {"where": "home"}}\n</tool_call>'
PARAMETERS = {"type": "object", "properties": {"where": {"type": "string"}}}
GO: Any = {"type": "function", "name": "go", "description": "Walk.", "parameters": PARAMETERS}
GO_OF_ANTHROPIC: Any = {"name": "go", "description": "Walk.", "input_schema": PARAMETERS}


def anthropic_client(opened: OpenedEpisode) -> anthropic.Anthropic:
    url = opened.base_url.removesuffix("/v1")
    return anthropic.Anthropic(base_url=url, api_key=opened.api_key, max_retries=0)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("messages", {"tool_choice": "auto"}),
        ("messages", {"tools": 5}),
        ("responses", {"text": "short"}),
        ("responses", {"tools": 5}),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_text"}]}]}),
    ],
)
def test_a_body_in_another_shape_is_a_bad_request(path: str, body: dict[str, Any]) -> None:
    chat, complete = make_chat("qwen2.5"), {"messages": [{"role": "user", "content": "Flip."}], "input": "Flip."}
    with open_gateway(replying(chat, "heads"), chat) as gateway:
        opened = begin(gateway)
        response = httpx.post(f"{opened.base_url}/{path}", json=complete | {"max_tokens": 9} | body)
    assert response.status_code == 400
    assert "doesn't have the shape of this API" in response.json()["error"]["message"]
    assert opened.record.calls == []


def test_half_an_emoji_is_replaced_wherever_it_is() -> None:
    chat = make_chat("qwen2.5")
    tool = r'{"type": "function", "function": {"name": "go", "description": "\ud83d", "parameters": {"\udc00": 1}}}'
    body = r'{"model": "\ud83d", "messages": [{"role": "user", "content": "Flip."}], "tools": [' + tool + "]}"
    with open_gateway(replying(chat, "heads"), chat) as gateway:
        opened = begin(gateway)
        response = httpx.post(f"{opened.base_url}/chat/completions", content=body)
        nested = httpx.post(f"{opened.base_url}/chat/completions", content="[" * 200_000)
        no_number = httpx.post(f"{opened.base_url}/chat/completions", content=body.replace("1", "NaN"))
    assert (response.status_code, response.json()["model"]) == (200, "?")
    assert (nested.status_code, no_number.status_code) == (400, 400)
    assert "NaN" in no_number.json()["error"]["message"]


@pytest.mark.parametrize(
    ("sampled", "function"),
    [
        (r'{"name": "go", "arguments": {"where": "\ud83d"}}', ("go", {"where": "?"})),
        (r'{"name": "\ud83d", "arguments": {}}', ("?", {})),
        ('{"name": "go", "arguments": {"where": [NaN, 1e999]}}', ("go", {"where": ["NaN", "Infinity"]})),
    ],
)
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_a_sampled_call_that_json_can_not_hold_is_a_call_all_the_same(path: str, sampled: str, function: Any) -> None:
    """A policy that loses must not be able to break its harness by what it samples: the episode would be left out."""
    chat, tool = make_chat("qwen2.5"), {"responses": GO, "messages": GO_OF_ANTHROPIC}
    body: dict[str, Any] = {"tools": [tool.get(path, {"type": "function", "function": GO})], "max_tokens": 99}
    asked = [{"role": "user", "content": "Flip 1."}]
    with open_gateway(replying(chat, f"<tool_call>\n{sampled}\n</tool_call>", "done"), chat) as gateway:
        opened = begin(gateway)
        response = httpx.post(f"{opened.base_url}/{path}", json=body | {"messages": asked, "input": asked})
        assert response.status_code == 200
        match path:
            case "messages":
                (use,) = response.json()["content"]
                said, given = {"role": "assistant", "content": [use]}, use["input"]
                result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"]}]}
            case "responses":
                (said,) = response.json()["output"]
                use, given = said, json.loads(said["arguments"])
                result = {"type": "function_call_output", "call_id": said["call_id"], "output": ""}
            case _:
                said = response.json()["choices"][0]["message"]
                (call,) = said["tool_calls"]
                use, given = call["function"], json.loads(call["function"]["arguments"])
                result = {"role": "tool", "tool_call_id": call["id"], "content": ""}
        asked += [said, result]
        httpx.post(f"{opened.base_url}/{path}", json=body | {"messages": asked, "input": asked}).raise_for_status()
    assert (use["name"], given) == function
    assert len(segments(opened.record)) == 1


@pytest.mark.parametrize("path", ["responses", "messages"])
def test_requests_without_functions_have_none_behind_an_endpoint(path: str) -> None:
    """Endpoints refuse an empty list of functions, and a choice among none."""
    (face,) = (face for face in server._FACES if face.path == f"/{path}")
    texts = {"messages": [{"role": "user", "content": "x"}], "input": "x", "max_tokens": 9}
    body = face.chat_body(texts | {"tools": [], "tool_choice": {"type": "none"}})
    assert {name for name, value in body.items() if value is not None} & {"tools", "tool_choice"} == set()


def test_a_client_that_disconnects_in_the_middle_of_a_request_leaves_no_traceback(
    capfd: pytest.CaptureFixture[str],
) -> None:
    chat = make_chat("qwen2.5")
    with open_gateway(replying(chat, "heads"), chat) as gateway:
        opened = begin(gateway)
        address = httpx.URL(opened.base_url)
        with socket.create_connection((address.host, address.port or 0)) as client:
            client.sendall(b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n")
            client.sendall(bytes(f"x-api-key: {opened.api_key}\r\n\r\n{{", "utf-8"))
        flip = {"messages": [{"role": "user", "content": "Flip."}]}
        assert httpx.post(f"{opened.base_url}/chat/completions", json=flip).status_code == 200
    assert "Traceback" not in capfd.readouterr().err


def test_an_episode_that_ends_while_a_request_arrives_samples_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chat, arrived = make_chat("qwen2.5"), server._body
    engine = replying(chat, "heads")
    with open_gateway(engine, chat) as gateway:
        opened = begin(gateway)

        async def ending(request: Any) -> Any:
            body = await arrived(request)
            gateway.close_episode(opened)
            return body

        monkeypatch.setattr(server, "_body", ending)
        flip = {"messages": [{"role": "user", "content": "Flip."}]}
        assert httpx.post(f"{opened.base_url}/chat/completions", json=flip).status_code == 401
    assert engine.usage.generated == 0


@pytest.mark.parametrize("stream", [False, True])
def test_responses_continue_by_their_items(stream: bool) -> None:
    chat = make_chat("qwen2.5")

    def respond(client: openai.OpenAI, items: list[Any]) -> Any:
        options: Any = {"model": "tiny", "instructions": "Be brief.", "input": items, "tools": [GO]}
        if not stream:
            return client.responses.create(**options)
        with client.responses.stream(**options) as events:
            return events.get_final_response()

    with open_gateway(replying(chat, f"I go.\n{CALL}", "done"), chat) as gateway:
        opened = begin(gateway)
        with openai_client(opened) as client:
            items: list[Any] = [{"role": "user", "content": "Flip 1."}]
            first = respond(client, items)
            message, call = first.output
            items += [item.model_dump(exclude_none=True) for item in first.output]
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": "At home."})
            last = respond(client, items)
    assert (message.content[0].text, call.name, call.arguments) == ("I go.", "go", '{"where": "home"}')
    assert (last.output_text, last.status) == ("done", "completed")
    (segment,) = segments(opened.record)
    assert first.usage.output_tokens + last.usage.output_tokens == sum(segment.loss_mask)
    assert first.usage.input_tokens == len(opened.record.calls[0].prompt.ids)


def test_a_response_that_is_cut_off_is_incomplete() -> None:
    chat = make_chat("chatml")
    with open_gateway(replying(chat, "heads, tails, get"), chat) as gateway:
        opened = begin(gateway)
        with openai_client(opened) as client:
            cut = client.responses.create(model="tiny", input="Flip 1.", max_output_tokens=2)
            with pytest.raises(openai.BadRequestError, match="Stored responses"):
                client.responses.create(model="tiny", input="Flip 2.", previous_response_id=cut.id)
            with pytest.raises(openai.BadRequestError, match="reasoning"):
                client.responses.create(model="tiny", input=[{"type": "reasoning", "summary": [], "id": "r"}])
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    assert not opened.record.cut  # by the request, not by a limit of the episode


@pytest.mark.parametrize("stream", [False, True])
def test_messages_continue_by_their_blocks(stream: bool) -> None:
    chat = make_chat("qwen2.5")

    def write(client: Any, messages: list[Any]) -> Any:
        options: Any = {"model": "tiny", "system": "Be brief.", "max_tokens": 99, "tools": [GO_OF_ANTHROPIC]}
        if not stream:
            return client.messages.create(messages=messages, **options)
        with client.messages.stream(messages=messages, **options) as events:
            return events.get_final_message()

    with open_gateway(replying(chat, f"I go.\n{CALL}", "done"), chat) as gateway:
        opened = begin(gateway)
        with anthropic_client(opened) as client:
            messages: list[Any] = [{"role": "user", "content": "Flip 1."}]
            first = write(client, messages)
            text, use = first.content
            result = {"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "At home."}]}
            last = write(
                client,
                [*messages, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}],
            )
    assert (text.text, use.name, use.input, first.stop_reason) == ("I go.", "go", {"where": "home"}, "tool_use")
    assert (last.content[0].text, last.stop_reason) == ("done", "end_turn")
    (segment,) = segments(opened.record)
    assert first.usage.output_tokens + last.usage.output_tokens == sum(segment.loss_mask)


@pytest.mark.parametrize("stream", [False, True])
def test_messages_say_which_stop_sequence_ended_them(stream: bool) -> None:
    chat = make_chat("chatml")
    options: Any = {"model": "tiny", "max_tokens": 99, "messages": [{"role": "user", "content": "Flip 1."}]}
    with open_gateway(replying(chat, "heads, tails"), chat) as gateway, anthropic_client(begin(gateway)) as client:
        ends = list[Any]()
        for stops in (["edge", " tails"], ["edge"]):
            if stream:
                with client.messages.stream(**options, stop_sequences=stops) as events:
                    ends.append(events.get_final_message())
            else:
                ends.append(client.messages.create(**options, stop_sequences=stops))
    assert [(end.stop_reason, end.stop_sequence) for end in ends] == [("stop_sequence", " tails"), ("end_turn", None)]
    assert [end.content[0].text for end in ends] == ["heads,", "heads, tails"]


def test_errors_of_messages_have_the_shape_of_anthropic() -> None:
    chat = make_chat("chatml")
    with open_gateway(replying(chat, "heads"), chat) as gateway:
        opened = begin(gateway)
        with anthropic_client(opened) as client:
            image: Any = {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}}
            with pytest.raises(anthropic.BadRequestError, match="image") as error:
                client.messages.create(model="tiny", max_tokens=9, messages=[{"role": "user", "content": [image]}])
            body: Any = error.value.body
            assert body["type"] == "error"
            assert body["error"]["type"] == "invalid_request_error"
            gateway.close_episode(opened)
            with pytest.raises(anthropic.AuthenticationError):
                client.messages.create(model="tiny", max_tokens=9, messages=[{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("responses", {"input": 3}, "list of items"),
        ("responses", {"input": "x", "tools": [{"type": "web_search"}]}, "Declare functions"),
        ("responses", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
        ("messages", {"messages": 3}, "list"),
        ("messages", {"messages": [{"role": "system", "content": "x"}]}, "role"),
        ("messages", {"messages": [{"role": "user", "content": 3}]}, "blocks"),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "bash"}]}, "input_schema"),
        ("messages", {"messages": [{"role": "user", "content": "x"}], "top_k": 5}, "top_k"),
    ],
)
def test_requests_that_are_refused(path: str, body: Any, words: str) -> None:
    chat = make_chat("chatml")
    with open_gateway(replying(chat, "heads"), chat) as gateway:
        response = httpx.post(f"{begin(gateway).base_url}/{path}", json=body)
    assert response.status_code == 400
    assert words in response.json()["error"]["message"]
