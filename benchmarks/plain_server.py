"""A server in AgentGym's style, for `server.py` to measure ours against: one POST a step, handlers that block,
and a dict of worlds. It is started as `python plain_server.py`, takes a free port and prints its URL.
"""

from __future__ import annotations

import itertools
import socket
from typing import Any

import gymnasium
import uvicorn
from agentgym_envs import make
from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
envs: dict[int, gymnasium.Env[str, str]] = {}
numbers = itertools.count()


class StepWanted(BaseModel):
    """An action in a world."""

    id: int
    action: str


class ResetWanted(BaseModel):
    """A task in a world."""

    id: int
    task: str


@app.post("/create")
def create() -> dict[str, int]:
    """Make a world."""
    number = next(numbers)
    envs[number] = make("agentgym/TextCraft-v0", max_episode_steps=10**9)
    return {"id": number}


@app.post("/reset")
def reset(wanted: ResetWanted) -> dict[str, Any]:
    """Begin a task."""
    observation, _ = envs[wanted.id].reset(options={"task": wanted.task})
    return {"observation": observation, "reward": 0.0, "done": False}


@app.post("/step")
def step(wanted: StepWanted) -> dict[str, Any]:
    """Play an action."""
    observation, reward, terminated, truncated, _ = envs[wanted.id].step(wanted.action)
    return {"observation": observation, "reward": reward, "done": terminated or truncated}


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listener])
