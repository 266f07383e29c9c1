"""A harness as users of AgentGym (arXiv 2406.04151) evaluate: its client of environments, and the client of OpenAI.

The loop is the one that the paper describes: instructions that the model has accepted, then observations and replies in
turns, until the environment ends the episode or the rounds are used up.
"""

from __future__ import annotations

import httpx
from agentgym_clients import CLIENTS
from agentgym_envs import make, text_env
from agentgym_trainer.gateway.harness import HarnessTask, Outcome
from openai import OpenAI

SERVER = ""
"""The address of a server with AgentGym's protocol."""
MAX_ROUNDS = 20
INSTRUCTION = (
    "Reply with your thought and your action, as `Thought:` and `Action:`, each with its text on the next line."
)


def play(task: HarnessTask, base_url: str, api_key: str) -> Outcome:
    """Play the task by its number within the test split."""
    world = task.id.partition("/")[0]
    env = make(task.env, **task.options)
    number, instructions = text_env(env).tasks.test.ids.index(task.id), text_env(env).instructions
    env.close()
    with httpx.Client(base_url=SERVER) as http, OpenAI(base_url=base_url, api_key=api_key) as model:
        client = CLIENTS[world](http, f"/compat/{world}/test")
        client.reset(number)
        messages = [
            {"role": "user", "content": f"{instructions}\n\n{INSTRUCTION}"},
            {"role": "assistant", "content": "OK. I'll follow your instructions and try my best to solve the task."},
            {"role": "user", "content": client.observe()},
        ]
        reward, done, rounds = 0.0, False, 0
        while not done and rounds < MAX_ROUNDS:
            reply = model.chat.completions.create(model=task.model, messages=messages)  # type: ignore[arg-type]
            text = reply.choices[0].message.content or ""
            state, reward, done = client.step(text)
            messages += [{"role": "assistant", "content": text}, {"role": "user", "content": state}]
            rounds += 1
        client.close()
    return Outcome(reward, reward == 1, truncated=not done)
