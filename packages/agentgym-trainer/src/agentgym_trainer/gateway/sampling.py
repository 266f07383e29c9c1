"""Replies that an engine samples: token limits, stop sequences and function calls."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np
from agentgym_envs import EnvFault, Reply
from agentgym_envs.agents.call_parsing import split_calls
from jinja2 import TemplateError

from agentgym_trainer.engines.base import Completion, Engine, SamplingParams
from agentgym_trainer.gateway.errors import ApiError
from agentgym_trainer.gateway.recording import EpisodeLimits, EpisodeRecord, Prompt, TokenRecord
from agentgym_trainer.gateway.replies import (
    ChatReply,
    Choice,
    before_stop,
    count_request,
    ended_episode,
    failure,
    reply_message,
)
from agentgym_trainer.gateway.requests import ChatRequest, canonical_reply
from agentgym_trainer.tokens.chat import Chat


@dataclass(frozen=True, slots=True)
class EngineReplier:
    """Samples replies from an engine and records their tokens."""

    engine: Engine
    chat: Chat
    """The model's tokenizer and chat template."""
    passes_on: bool = False

    def record(self, limits: EpisodeLimits, rng: np.random.Generator, task: str, sample: int) -> TokenRecord:
        """Return the record of a new episode."""
        del task, sample
        return TokenRecord(limits, rng, chat=self.chat)

    def forget(self, record: EpisodeRecord) -> None:
        """Do nothing: the record has all there is."""

    async def reply(self, record: EpisodeRecord, request: ChatRequest) -> ChatReply:
        """Sample the replies to a request. See `Replier.reply`; the chat template may refuse the conversation, too."""
        if not isinstance(record, TokenRecord):
            raise TypeError(f"An engine needs a record of its own, not a {type(record).__name__}.")
        count_request(record)
        return await _sample(self.engine, record, request)


async def _sample(engine: Engine, record: TokenRecord, request: ChatRequest) -> ChatReply:
    try:
        prompt = record.prompt(request)
    except TemplateError as error:
        raise ApiError(f"The model's chat template refuses these messages: {error}", param="messages") from error
    async with _reserved(engine, record, prompt) as budget:
        return await _sample_within(budget, engine, record, prompt)


async def _sample_within(budget: int, engine: Engine, record: TokenRecord, prompt: Prompt) -> ChatReply:
    request, limits = prompt.request, record.limits
    length = min(budget, request.max_tokens or budget)
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
        raise failure(error) from error
    finally:
        record.seconds += time.perf_counter() - began
    if not all(math.isfinite(logprob) for completion in completions for logprob in completion.logprobs):
        record.error = EnvFault("The engine's log-probabilities of a reply aren't finite.")
        raise failure(record.error)
    kept = [_stopped(record.chat, completion, request.stop) for completion in completions]
    if length == budget and any(completion.finish == "length" for completion, _, _ in kept):
        record.cut = True
    choices = tuple(_choice(record, prompt, *each) for each in kept)
    return ChatReply(choices, len(prompt.ids), sum(len(completion.ids) for completion, _, _ in kept))


def _temperature(fixed: float | None, request: ChatRequest) -> float:
    if fixed is not None:
        return fixed
    return 1.0 if request.temperature is None else request.temperature


@asynccontextmanager
async def _reserved(engine: Engine, record: TokenRecord, prompt: Prompt) -> AsyncGenerator[int]:
    """Yield the maximum number of tokens of each reply that the episode's limits leave, and reserve the request's.

    While concurrent requests hold so many of the episode's tokens that the replies would become shorter, wait.
    """
    limits, read, replies = record.limits, len(prompt.ids), prompt.request.n
    longest = min(limits.context, engine.max_context)
    budget = min(limits.turn, longest - read)
    wanted = replies * min(budget, prompt.request.max_tokens or budget)
    if limits.episode:
        async with record.released:
            await record.released.wait_for(lambda: not record.reserved or _left(record) >= wanted)
        if record.closed:  # while the request was waiting
            raise ended_episode()
        budget = min(budget, _left(record) // replies)
    if budget < 1:
        record.cut = True
        if longest - read < 1:
            message = f"The messages have {read} tokens; the maximum context length is {longest} tokens with the reply."
            raise ApiError(message, code="context_length_exceeded", param="messages")
        raise ApiError(
            f"This episode has sampled the {limits.episode} completion tokens that it may; end it.",
            code="token_budget_exceeded",
        )
    reserved = min(wanted, replies * budget)
    record.reserved += reserved
    try:
        yield budget
    finally:
        record.reserved -= reserved
        async with record.released:
            record.released.notify_all()


def _left(record: TokenRecord) -> int:
    """Return how many of the episode's completion tokens are neither sampled nor reserved."""
    return record.limits.episode - record.completion_tokens - record.reserved


def _choice(record: TokenRecord, prompt: Prompt, completion: Completion, shown: str, stop: str) -> Choice:
    request, chat = prompt.request, record.chat
    content, calls = split_calls(shown) if request.tools else (shown, [])
    message = reply_message(record, content, calls)
    record.add(prompt, Reply(chat.reply_text(completion.ids), completion.finish), canonical_reply(message), completion)
    finish = "tool_calls" if calls and completion.finish == "stop" else completion.finish
    if not request.logprobs:
        return Choice(message, finish, stop=stop)
    texts = chat.token_texts(completion.ids)
    return Choice(message, finish, tuple(zip(texts, completion.logprobs, strict=True)), stop)


def _stopped(chat: Chat, completion: Completion, stops: Sequence[str]) -> tuple[Completion, str, str]:
    """Return the completion up to the token that completes a stop sequence, the text before the sequence, and the
    sequence; empty if there is none.
    """
    text, stop = before_stop(chat.reply_text(completion.ids), stops)
    if not stop:
        return completion, text, stop
    count = next(
        (i for i in range(1, len(completion.ids)) if stop in chat.reply_text(completion.ids[:i])),
        len(completion.ids),
    )
    ids, versions = completion.ids[:count], completion.versions or (completion.version,) * len(completion.ids)
    return Completion.sampled(ids, completion.logprobs[:count], "stop", versions[:count]), text, stop
