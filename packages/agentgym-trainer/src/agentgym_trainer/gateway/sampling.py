"""Sampling the replies to a request: token limits, stop sequences and function calls."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentgym_envs import EnvFault
from agentgym_envs.agents.call_parsing import split_calls
from jinja2 import TemplateError

from agentgym_trainer.engines.base import Completion, Engine, SamplingParams
from agentgym_trainer.gateway.errors import ApiError
from agentgym_trainer.gateway.recording import EpisodeRecord, Prompt
from agentgym_trainer.gateway.requests import ChatRequest, canonical_reply
from agentgym_trainer.tokens.chat import Chat


@dataclass(frozen=True, slots=True)
class Choice:
    """One reply to a request."""

    message: dict[str, Any]
    """The message, as OpenAI's API has it."""
    finish_reason: str
    """`stop`, `length` or `tool_calls`."""
    completion: Completion
    token_texts: tuple[str, ...]
    """The text of each sampled id, if the request asks for log-probabilities."""


@dataclass(frozen=True, slots=True)
class ChatReply:
    """The replies to a request."""

    choices: tuple[Choice, ...]
    prompt_tokens: int

    @property
    def completion_tokens(self) -> int:
        """Number of sampled tokens in all choices."""
        return sum(len(choice.completion.ids) for choice in self.choices)


async def sample(engine: Engine, record: EpisodeRecord, request: ChatRequest) -> ChatReply:
    """Sample the replies to a request and record them.

    Raises:
        ApiError: if a limit of the episode is reached, the chat template refuses the conversation, or the engine fails.
    """
    limits = record.limits
    if record.error is not None:
        raise ApiError(f"The engine failed: {record.error}", status=500)
    record.requests += 1
    if limits.calls and record.requests > limits.calls:
        record.exhausted = True
        raise ApiError(
            f"This episode has made its {limits.calls} requests, the horizon of the run; end it.",
            code="horizon_reached",
        )
    try:
        prompt = record.prompt(request)
    except TemplateError as error:
        raise ApiError(f"The model's chat template refuses these messages: {error}", param="messages") from error
    budget, own = _budget(engine, record, prompt), request.max_tokens
    length = min(budget, own or budget)
    temperature = _temperature(limits.temperature, request)
    seeds = [int(seed) for seed in record.rng.integers(2**63, size=request.n)]
    if limits.temperature is None and request.seed is not None:
        seeds = [abs(request.seed) + i for i in range(request.n)]
    began = time.perf_counter()
    calls = (engine.generate(prompt.ids, SamplingParams(temperature, length, seed)) for seed in seeds)
    try:
        completions = await asyncio.gather(*calls)
    except Exception as error:  # the rollout raises it again: a client would repeat its request for ever
        record.error = record.error or error
        raise ApiError(f"The engine failed: {error}", status=500) from error
    finally:
        record.seconds += time.perf_counter() - began
    if not all(math.isfinite(logprob) for completion in completions for logprob in completion.logprobs):
        record.error = EnvFault("The engine's log-probabilities of a reply aren't finite.")
        raise ApiError(str(record.error), status=500)
    if length == budget and any(completion.finish == "length" for completion in completions):
        record.cut = True
    choices = tuple(_choice(record, prompt, completion, i) for i, completion in enumerate(completions))
    return ChatReply(choices, len(prompt.ids))


def _temperature(fixed: float | None, request: ChatRequest) -> float:
    if fixed is not None:
        return fixed
    return 1.0 if request.temperature is None else request.temperature


def _budget(engine: Engine, record: EpisodeRecord, prompt: Prompt) -> int:
    """Return the maximum number of tokens of each reply that the episode's limits leave."""
    limits, read = record.limits, len(prompt.ids)
    longest = min(limits.context, engine.max_context)
    budget = min(limits.turn, longest - read)
    if limits.episode:
        budget = min(budget, (limits.episode - record.completion_tokens) // prompt.request.n)
    if budget >= 1:
        return budget
    record.cut = True
    if longest - read < 1:
        message = f"The messages have {read} tokens; the maximum context length is {longest} tokens with the reply."
        raise ApiError(message, code="context_length_exceeded", param="messages")
    raise ApiError(
        f"This episode has sampled the {limits.episode} completion tokens that it may; end it.",
        code="token_budget_exceeded",
    )


def _choice(record: EpisodeRecord, prompt: Prompt, completion: Completion, index: int) -> Choice:
    request, chat = prompt.request, record.chat
    completion, shown = _stopped(chat, completion, request.stop)
    text = chat.reply_text(completion.ids)
    content, calls = split_calls(shown) if request.tools else (shown, [])
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
    if calls:
        number = len(record.calls)
        message["tool_calls"] = [
            {
                "id": f"call{number:05}{i:02}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)},
            }
            for i, call in enumerate(calls)
        ]
    record.add(prompt, completion, text, canonical_reply(message))
    finish = "tool_calls" if calls and completion.finish == "stop" else completion.finish
    texts = tuple(chat.token_texts(completion.ids)) if request.logprobs else ()
    return Choice(message, finish, completion, texts)


def _stopped(chat: Chat, completion: Completion, stops: Sequence[str]) -> tuple[Completion, str]:
    """Return the completion up to the token that completes a stop sequence, and the text before the sequence."""
    text = chat.reply_text(completion.ids)
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    if not found:
        return completion, text
    start, stop = min(found)
    count = next(
        (i for i in range(1, len(completion.ids)) if stop in chat.reply_text(completion.ids[:i])),
        len(completion.ids),
    )
    ids, versions = completion.ids[:count], completion.versions or (completion.version,) * len(completion.ids)
    return Completion.sampled(ids, completion.logprobs[:count], "stop", versions[:count]), text[:start]
