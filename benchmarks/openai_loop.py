"""An agent loop on the unmodified client of OpenAI, which `harness_gain.py` trains and evaluates as a harness."""

from __future__ import annotations

from typing import Any

from agentgym_envs import make
from agentgym_trainer.gateway.harness import HarnessTask, Outcome
from openai import OpenAI


def play(task: HarnessTask, base_url: str, api_key: str) -> Outcome:
    """Play an episode in this process: observations are the user's messages, and replies are actions."""
    env, done, truncated = make(task.env, **task.options), False, False
    observation, info = env.reset(seed=task.seed, options={"task": task.id})
    messages: list[Any] = []
    with OpenAI(base_url=base_url, api_key=api_key) as client:
        while not done:
            messages.append({"role": "user", "content": observation})
            reply = client.chat.completions.create(model=task.model, messages=messages).choices[0].message
            messages.append({"role": "assistant", "content": reply.content})
            observation, _, terminated, truncated, info = env.step(reply.content or "")
            done = terminated or truncated
    env.close()
    return Outcome(info["score"], info["success"], truncated)
