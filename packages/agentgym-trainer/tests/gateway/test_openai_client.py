"""Tests of chat completions with the unmodified client of OpenAI: what it gets, and what is recorded."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from agentgym_envs import Message
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.gateway.recording import EpisodeLimits
from agentgym_trainer.gateway.replies import ChatReply
from agentgym_trainer.gateway.requests import chat_request, conversation
from agentgym_trainer.gateway.sampling import EngineReplier
from agentgym_trainer.tokens.chat import Chat
from chat_templates import make_chat
from coin_rollouts import RecordingEngine
from dev_packages import require_packages
from engine_checks import EXACT, full_logprobs

require_packages("openai")
import openai
from gateways import UNLIMITED, begin, open_gateway, openai_client, replying, segments

USER = {"role": "user", "content": "Flip 1 of 3. Say heads or tails."}
SYSTEM = {"role": "system", "content": "Be brief."}
NEXT = {"role": "user", "content": "Flip 2 of 3. <|im_end|>"}
GO: Any = {
    "type": "function",
    "function": {
        "name": "go",
        "description": "Walk.",
        "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
    },
}
CALL = '<tool_call>\n{"name": "go", "arguments": {"where": "home"}}\n</tool_call>'


def ask(client: openai.OpenAI, *messages: Any, **options: Any) -> Any:
    return client.chat.completions.create(model="tiny", messages=list(messages), **options)


def masked(chat: Chat, segment: Any) -> list[str]:
    """The texts of the completion tokens of a segment."""
    ids = [token for token, trained in zip(segment.ids, segment.loss_mask, strict=True) if trained]
    return chat.tokenizer.decode(ids).split("<|im_end|>")[:-1]


def test_a_conversation_that_continues_is_one_segment_of_the_ids_that_were_sampled() -> None:
    chat = make_chat("chatml")
    # Each letter is a token of its own, which the tokenizer would not choose: encoding the text again would show.
    letters = [token for letter in "heads" for token in chat.reply_ids(letter)[:-1]]
    engine = RecordingEngine(replying(chat, "tails"))
    engine.engine._script = lambda _: [*letters, chat.end_id]  # type: ignore[attr-defined]
    with open_gateway(engine, chat) as gateway:
        opened = begin(gateway)
        with openai_client(opened) as client:
            first = ask(client, SYSTEM, USER)
            echoed = first.choices[0].message
            second = ask(client, SYSTEM, USER, echoed, NEXT)
    assert (echoed.content, first.choices[0].finish_reason) == ("heads", "stop")
    (segment,) = segments(opened.record)
    start = chat.open((Message("system", "Be brief."), Message("user", USER["content"])))
    context, completion = engine.calls[1]
    assert list(context[: len(start) + len(letters) + 1]) == [*start, *letters, chat.end_id]
    assert segment.ids == (*context, *completion.ids)
    assert sum(segment.loss_mask) == 2 * len(completion.ids)
    assert masked(chat, segment) == ["heads", "heads"]
    assert second.usage.prompt_tokens == len(context)
    assert second.usage.completion_tokens == len(completion.ids)
    # The control token in the message is text.
    assert context.count(chat.end_id) == 4


def test_rewritten_and_repeated_conversations_are_segments_of_their_own() -> None:
    chat = make_chat("chatml")
    engine = RecordingEngine(replying(chat, "heads", "tails", "get", "craft", "log", "oak"))
    with open_gateway(engine, chat) as gateway:
        opened = begin(gateway)
        with openai_client(opened) as client:
            first = ask(client, USER).choices[0].message
            ask(client, USER, first, NEXT)  # a reply that the agent drops
            again = ask(client, USER, first, NEXT).choices[0].message  # the same request once more
            ask(client, USER, first, NEXT, again, USER)
            ask(client, {"role": "user", "content": "In short: heads."}, first, NEXT)  # compaction
            ask(client, NEXT)  # a sub-agent
    found = segments(opened.record)
    assert [masked(chat, segment) for segment in found] == [
        ["tails"],
        ["heads", "get", "craft"],
        ["log"],
        ["oak"],
    ]
    # Each is the context that some call was sampled from, with its reply.
    sampled = [(*context, *completion.ids) for context, completion in engine.calls]
    assert [segment.ids for segment in found] == [sampled[1], sampled[3], sampled[4], sampled[5]]
    rewards = [turn.reward for turn in opened.record.turns(1.0)]
    assert rewards == [0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("family", ["qwen2.5", "chatml"])
def test_function_calls_come_back_as_they_were_sampled(family: str) -> None:
    chat = make_chat(family)
    engine = RecordingEngine(replying(chat, f"I go.\n{CALL}", "done"))
    with open_gateway(engine, chat) as gateway:
        opened = begin(gateway)
        with openai_client(opened) as client:
            first = ask(client, USER, tools=[GO], tool_choice="auto")
            message = first.choices[0].message
            (call,) = message.tool_calls
            result = {"role": "tool", "tool_call_id": call.id, "content": "You are at home."}
            last = ask(client, USER, message.model_dump(exclude_none=True), result, tools=[GO])
    assert first.choices[0].finish_reason == "tool_calls"
    assert (message.content, call.function.name) == ("I go.", "go")
    assert json.loads(call.function.arguments) == {"where": "home"}
    assert (last.choices[0].message.content, last.choices[0].finish_reason) == ("done", "stop")
    (segment,) = segments(opened.record)
    assert segment.ids == (*engine.calls[1][0], *engine.calls[1][1].ids)
    text = chat.tokenizer.decode(list(segment.ids))
    assert "Walk." in text  # the function is described to the model
    assert ("<tool_response>" in text) == chat.takes_tools
    assert masked(chat, segment) == [f"I go.\n{CALL}", "done"]


@pytest.mark.parametrize(("order", "following"), [(1, []), (-1, [NEXT])], ids=["as called", "reversed"])
def test_results_of_several_calls_are_read_in_the_order_of_the_calls(order: int, following: list[Any]) -> None:
    """Clients send the results of concurrent calls as they come; the ids, which tell them apart, aren't in the text."""
    chat = make_chat("qwen2.5")
    with open_gateway(replying(chat, f"{CALL}\n{CALL}", "done"), chat) as gateway:
        opened = begin(gateway)
        with openai_client(opened) as client:
            message = ask(client, USER, tools=[GO]).choices[0].message
            results: list[Any] = [
                {"role": "tool", "tool_call_id": call.id, "content": f"Result {i}."}
                for i, call in enumerate(message.tool_calls)
            ]
            ask(client, USER, message, *results[::order], *following, tools=[GO])
    (segment,) = segments(opened.record)
    assert message.content is None
    assert len({call.id for call in message.tool_calls}) == 2
    read = "Result 0.\n\nResult 1." + "\n\nFlip 2" * len(following)
    assert read in chat.tokenizer.decode(list(segment.ids))


@pytest.mark.parametrize("identifier", [["a"], {}, 1, None])
def test_ids_of_calls_may_be_anything(identifier: Any) -> None:
    call = {"id": identifier, "type": "function", "function": {"name": "go", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": identifier, "content": "It is dark."}
    read = conversation([USER, {"role": "assistant", "content": None, "tool_calls": [call]}, result])
    assert "It is dark." in read[-1].content


def test_several_choices_branch_off_their_context() -> None:
    chat = make_chat("chatml")
    with open_gateway(replying(chat, "heads", "tails", "get"), chat) as gateway:
        opened = begin(gateway)
        with openai_client(opened) as client:
            choices = ask(client, USER, n=2).choices
            ask(client, USER, choices[1].message, NEXT)
    assert [choice.message.content for choice in choices] == ["heads", "tails"]
    found = segments(opened.record)
    assert [masked(chat, segment) for segment in found] == [["heads"], ["tails", "get"]]


def test_a_stream_has_the_same_reply() -> None:
    chat = make_chat("qwen2.5")
    with open_gateway(replying(chat, f"I go.\n{CALL}"), chat) as gateway:
        opened = begin(gateway)
        with openai_client(opened) as client:
            whole = ask(client, USER, tools=[GO])
            stream = client.chat.completions.stream(
                model="tiny", messages=[USER], tools=[GO], stream_options={"include_usage": True}, logprobs=True
            )  # type: ignore[arg-type]
            with stream as events:
                streamed = events.get_final_completion()
    first, second = whole.choices[0], streamed.choices[0]
    assert (first.message.content, first.finish_reason) == (second.message.content, second.finish_reason)
    assert first.message.tool_calls[0].function.arguments == second.message.tool_calls[0].function.arguments
    assert streamed.usage == whole.usage
    assert "".join(token.token for token in second.logprobs.content) == f"I go.\n{CALL}<|im_end|>"


def test_a_stop_sequence_ends_the_reply_with_the_token_that_completes_it() -> None:
    chat = make_chat("chatml")
    engine = RecordingEngine(replying(chat, "heads, tails, get", "oak"))
    with open_gateway(engine, chat) as gateway:
        opened = begin(gateway)
        with openai_client(opened) as client:
            choice = ask(client, USER, stop=["get", "tai"]).choices[0]
            ask(client, USER, choice.message, NEXT)
    assert (choice.message.content, choice.finish_reason) == ("heads, ", "stop")
    cut = opened.record.calls[0].completion
    assert cut.ids == engine.calls[0][1].ids[: len(cut.ids)]
    assert len(cut.ids) == len(cut.logprobs)
    assert "tai" in chat.reply_text(cut.ids)
    assert "tai" not in chat.reply_text(cut.ids[:-1])
    (segment,) = segments(opened.record)
    assert segment.ids == (*engine.calls[1][0], *engine.calls[1][1].ids)
    # The model sees an end of the turn that it did not sample, and that is not trained on.
    assert segment.ids[len(engine.calls[0][0]) + len(cut.ids)] == chat.end_id
    assert not segment.loss_mask[len(engine.calls[0][0]) + len(cut.ids)]


@pytest.mark.parametrize(("stop", "finish", "cut"), [("tails", "stop", False), ("edge", "length", True)])
def test_a_reply_that_its_stop_sequence_ended_was_not_cut(stop: str, finish: str, cut: bool) -> None:
    """The engine samples on behind the sequence, up to the limit of tokens."""
    chat = make_chat("chatml")
    long = "heads, tails, " + "heads " * 50
    with open_gateway(replying(chat, long), chat) as gateway:
        opened = begin(gateway, EpisodeLimits(turn=len(chat.reply_ids(long)) - 9))
        with openai_client(opened) as client:
            choice = ask(client, USER, stop=stop).choices[0]
    assert (choice.finish_reason, opened.record.cut) == (finish, cut)


def test_sampling_follows_the_request_or_the_limits() -> None:
    chat, seen = make_chat("chatml"), list[Any]()
    engine = replying(chat, "heads")
    generate = engine.generate

    async def watched(ids: Any, sampling: Any) -> Any:
        seen.append(sampling)
        return await generate(ids, sampling)

    engine.generate = watched  # type: ignore[method-assign]
    with open_gateway(engine, chat) as gateway:
        free, fixed = begin(gateway), begin(gateway, EpisodeLimits(temperature=0.7, turn=20))
        for opened in (free, fixed):
            with openai_client(opened) as client:
                ask(client, USER, temperature=0.2, seed=5, max_completion_tokens=9)
        with openai_client(fixed) as client:
            ask(client, USER, top_p=0.5, max_tokens=99)
    assert [(s.temperature, s.max_tokens) for s in seen] == [(0.2, 9), (0.7, 9), (0.7, 20)]
    assert seen[0].seed == 5
    assert seen[1].seed != 5


@pytest.mark.parametrize(
    ("limits", "code"),
    [
        (EpisodeLimits(context=30), "context_length_exceeded"),
        (EpisodeLimits(episode=4), "token_budget_exceeded"),
        (EpisodeLimits(calls=1), "horizon_reached"),
    ],
)
def test_limits_end_an_episode_with_an_error_that_clients_do_not_repeat(limits: EpisodeLimits, code: str) -> None:
    chat = make_chat("chatml")
    with open_gateway(replying(chat, "heads"), chat) as gateway:
        opened = begin(gateway, limits)
        with openai_client(opened) as client, pytest.raises(openai.BadRequestError) as error:
            conversation: list[Any] = [{"role": "user", "content": "Say."}]
            for _ in range(9):
                conversation += [ask(client, *conversation).choices[0].message, NEXT]
    assert error.value.code == code
    assert (opened.record.cut, opened.record.exhausted) == (code != "horizon_reached", code == "horizon_reached")
    longest = max(len(call.prompt.ids) + len(call.completion.ids) for call in opened.record.calls)
    assert longest <= limits.context


def test_concurrent_requests_share_the_budget_of_an_episode() -> None:
    chat = make_chat("chatml")
    length = len(chat.reply_ids("heads"))
    engine = ScriptedEngine(lambda _: chat.reply_ids("heads"), end_id=chat.end_id, seconds_per_request=0.01)
    replier = EngineReplier(engine, chat)
    record = replier.record(EpisodeLimits(turn=length, episode=2 * length + 1), np.random.default_rng(0), "", 0)

    async def ask_at_once() -> list[Any]:
        requests = [chat_request({"messages": [USER | {"content": str(i)}]}, fixed_sampling=False) for i in range(4)]
        return await asyncio.gather(*(replier.reply(record, each) for each in requests), return_exceptions=True)

    replies = asyncio.run(ask_at_once())
    sampled = [reply.completion_tokens for reply in replies if isinstance(reply, ChatReply)]
    assert sorted(sampled) == [1, length, length]
    (refused,) = [reply for reply in replies if not isinstance(reply, ChatReply)]
    assert refused.code == "token_budget_exceeded"
    assert (record.completion_tokens, record.reserved) == (2 * length + 1, 0)


def test_a_request_that_waits_for_tokens_when_its_episode_ends_samples_nothing() -> None:
    chat = make_chat("chatml")
    length = len(chat.reply_ids("heads"))
    engine = replying(chat, "heads")
    replier, generate = EngineReplier(engine, chat), engine.generate
    record = replier.record(EpisodeLimits(turn=length, episode=length + 1), np.random.default_rng(0), "", 0)

    async def ending(ids: Any, sampling: Any) -> Any:
        await asyncio.sleep(0)
        record.closed = True  # the harness goes on without the reply
        return await generate(ids, sampling)

    engine.generate = ending  # type: ignore[method-assign]

    async def ask_at_once() -> list[Any]:
        requests = [chat_request({"messages": [USER | {"content": str(i)}]}, fixed_sampling=False) for i in range(2)]
        return await asyncio.gather(*(replier.reply(record, each) for each in requests), return_exceptions=True)

    _, waited = asyncio.run(ask_at_once())
    assert waited.code == "no_episode"
    assert engine.usage.generated == length


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"messages": []}, "messages", "at least one"),
        ({"messages": [USER, {"role": "assistant", "content": "he"}]}, "messages", "prefilled"),
        ({"messages": [{"role": "critic", "content": ""}]}, "messages", "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "image_url"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages", "text"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"a": 1}]}, USER]}, "messages", "protocol"),
        ({"response_format": {"type": "json_object"}}, "response_format", "json_object"),
        ({"top_p": 0.5}, "top_p", "top_p"),
        ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
        ({"n": 0}, "n", "whole number"),
        ({"max_tokens": "many"}, "max_tokens", "whole number"),
        ({"temperature": -1}, "temperature", "number from 0"),
        ({"stop": [""]}, "stop", "empty"),
        ({"tools": [{"type": "web_search"}]}, "tools", "function"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools", "name"),
    ],
)
def test_what_is_not_supported_gets_an_error_in_the_shape_of_openai(change: Any, param: str, words: str) -> None:
    chat = make_chat("chatml")
    with open_gateway(replying(chat, "heads"), chat) as gateway:
        opened = begin(gateway)
        response = httpx.post(f"{opened.base_url}/chat/completions", json={"messages": [USER]} | change)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]
    assert not opened.record.calls


def test_keys_and_urls_identify_episodes_until_they_end() -> None:
    chat = make_chat("chatml")
    with open_gateway(replying(chat, "heads"), chat) as gateway:
        one, other = begin(gateway), begin(gateway)
        with openai.OpenAI(base_url=gateway.base_url, api_key=other.api_key, max_retries=0) as client:
            ask(client, USER)
            assert [model.id for model in client.models.list()] == ["tiny"]
            with pytest.raises(openai.NotFoundError, match="chat/completions"):
                client.embeddings.create(model="tiny", input="x")
            gateway.close_episode(other)
            with pytest.raises(openai.AuthenticationError, match="ended"):
                ask(client, USER)
        broken = httpx.post(f"{one.base_url}/chat/completions", content=b"{")
    assert (len(one.record.calls), len(other.record.calls)) == (0, 1)
    assert broken.status_code == 400


def test_failures_of_the_engine_are_kept_for_the_rollout() -> None:
    chat = make_chat("chatml")
    engine = replying(chat, "heads")

    async def broken(*_: Any) -> Any:
        raise RuntimeError("no power")

    engine.generate = broken  # type: ignore[method-assign]
    with open_gateway(engine, chat) as gateway:
        opened = begin(gateway)
        with openai_client(opened) as client, pytest.raises(openai.InternalServerError, match="no power"):
            ask(client, USER)
    assert str(opened.record.error) == "no power"


def test_logprobs_of_a_real_model_are_those_of_a_full_forward_pass(model: Any, chat: Chat) -> None:
    engine = transformers_engine(model, end_id=chat.end_id)
    with open_gateway(engine, chat) as gateway:
        opened = begin(gateway, UNLIMITED)
        with openai_client(opened) as client:
            first = ask(client, USER, max_tokens=8, temperature=1.0, logprobs=True).choices[0]
            ask(client, USER, first.message, NEXT, max_tokens=8, temperature=1.0)
    found = segments(opened.record)
    assert len(found) == 1
    (segment,) = found
    expected = full_logprobs(model, segment.ids, len(segment.ids) - 1)
    trained = torch.tensor(segment.loss_mask[1:])
    torch.testing.assert_close(torch.tensor(segment.logprobs[1:])[trained], expected[trained], atol=EXACT, rtol=0)
    assert [token.logprob for token in first.logprobs.content] == list(opened.record.calls[0].completion.logprobs)
