"""Harnesses as other people write them: loops on the client of OpenAI, and some that misbehave."""

from __future__ import annotations

import asyncio
from typing import Any

from agentgym_envs import make
from agentgym_trainer.gateway.harness import HarnessTask, Outcome
from openai import AsyncOpenAI, BadRequestError, OpenAI

ANSWERED = [0]


def loop(task: HarnessTask, base_url: str, api_key: str) -> Outcome:
    """Play the environment in this process."""
    env, done = make(task.env, **task.options), False
    observation, info = env.reset(seed=task.seed, options={"task": task.id})
    messages, truncated = list[Any](), False
    with OpenAI(base_url=base_url, api_key=api_key) as client:
        while not done:
            messages.append({"role": "user", "content": observation})
            reply = client.chat.completions.create(model=task.model, messages=messages).choices[0].message
            messages.append(reply)
            observation, _, terminated, truncated, info = env.step(reply.content or "")
            done = terminated or truncated
    env.close()
    return Outcome(info["score"], info["success"], truncated)


async def asynchronous(task: HarnessTask, base_url: str, api_key: str) -> float:
    """Ask once, and be satisfied."""
    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        await client.chat.completions.create(model="any", messages=[{"role": "user", "content": task.id}])
    return 1.0


def split_by_sample(task: HarnessTask, base_url: str, api_key: str) -> Any:
    """Behave in a different way in each sample of a task."""
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        if task.sample != 1:
            client.chat.completions.create(model="any", messages=[{"role": "user", "content": task.id}])
        match task.sample:
            case 2:
                raise RuntimeError("the agent has lost its tools")
            case 3:
                return "good"
            case 4:
                return 1.5
            case 5:
                raise SystemExit(3)
    return 0.5


async def endless(task: HarnessTask, base_url: str, api_key: str) -> float:
    """Never end, and say when it is cancelled."""
    try:
        await asynchronous(task, base_url, api_key)
        await asyncio.Event().wait()
    finally:
        ANSWERED.append(1)
    return 1.0


def blocked(task: HarnessTask, base_url: str, api_key: str) -> float:
    """Ask again and again, whatever the answer is."""
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        while True:
            client.chat.completions.create(model="any", messages=[{"role": "user", "content": task.id}])


async def lost(task: HarnessTask, base_url: str, api_key: str) -> float:
    """Ask once, and crash."""
    await asynchronous(task, base_url, api_key)
    raise RuntimeError("no tools")


def calling(task: HarnessTask, base_url: str, api_key: str) -> bool:
    """Call a function, hand over its result in a stream, and be satisfied."""
    schema = {"type": "object", "properties": {"where": {"type": "string"}}}
    tools: list[Any] = [{"type": "function", "function": {"name": "go", "parameters": schema}}]
    messages: list[Any] = [{"role": "user", "content": "Go home."}]
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        message = client.chat.completions.create(model="any", messages=messages, tools=tools).choices[0].message
        (call,) = message.tool_calls or ()
        messages += [message, {"role": "tool", "tool_call_id": call.id, "content": "You are at home."}]
        chunks = client.chat.completions.create(
            model="any", messages=messages, tools=tools, max_tokens=200, stream=True, temperature=0.1
        )
        finish = [choice.finish_reason for chunk in chunks for choice in chunk.choices][-1]
    return finish == "tool_calls" and message.content == "I go."


def refused(task: HarnessTask, base_url: str, api_key: str) -> float:
    """Ask for what this endpoint doesn't have, then for what it has."""
    messages: list[Any] = [{"role": "user", "content": task.id}]
    with OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        try:
            client.chat.completions.create(model="any", messages=messages, response_format={"type": "json_object"})
        except BadRequestError as error:
            client.chat.completions.create(model="any", messages=messages)
            return 0.25 if "json_object" in error.message else 0.0
    return 1.0


NO_HARNESS = 3
