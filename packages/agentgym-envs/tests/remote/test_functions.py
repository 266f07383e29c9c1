"""Tests of function-calling agents in remote environments: they play as in local ones and open no extra session."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest
from agentgym_envs import (
    CodeAct,
    EnvPool,
    Episode,
    EpisodeSpec,
    FunctionCall,
    Policy,
    Reply,
    ReplyWrapper,
    TurnContext,
    WorldSpec,
    make,
    play_pool,
)
from remote_servers import remote_server

TEXTCRAFT = "agentgym/TextCraft-v0"
TASKS = ["textcraft/test/oak_button", "textcraft/test/birch_button"]


class Crafter(Policy):
    """Gathers oak logs, with replies in `reply_format`."""

    name = "crafter"

    def __init__(self, reply_format: ReplyWrapper) -> None:
        self._reply_format = reply_format
        self.contexts: list[TurnContext] = []

    async def reply(self, context: TurnContext) -> Reply:
        self.contexts.append(context)
        return Reply(self._reply_format.format(f"get {context.acts + 1} oak log", "Wood is of use."))


def play_episodes(pool: EnvPool, reply_format: ReplyWrapper) -> tuple[list[Episode], list[TurnContext]]:
    policy = Crafter(reply_format)

    async def play() -> list[Episode]:
        episodes = play_pool(pool, policy, [EpisodeSpec(task) for task in TASKS], env=reply_format, horizon=2)
        return [episode async for episode in episodes]

    return sorted(asyncio.run(play()), key=lambda episode: episode.task_id), policy.contexts


@pytest.mark.parametrize("reply_format", [FunctionCall, CodeAct])
def test_function_calls_work_over_http(reply_format: type[ReplyWrapper]) -> None:
    with EnvPool(TEXTCRAFT, 2) as pool:
        local_episodes, _ = play_episodes(pool, reply_format(make(TEXTCRAFT)))
    with remote_server(max_sessions=2) as server:
        spec = WorldSpec("agentgym/Remote-v0", {"url": server.url, "env": TEXTCRAFT})
        with EnvPool(spec, 2, "thread") as pool, closing(reply_format(spec.build())) as wrapper:
            remote_episodes, contexts = play_episodes(pool, wrapper)
    assert [turn.action for turn in local_episodes[0].turns] == ["get 1 oak log", "get 2 oak log"]
    for remote, local in zip(remote_episodes, local_episodes, strict=True):
        assert (remote.turns, remote.tools, remote.instructions, remote.agent) == (
            local.turns,
            local.tools,
            local.instructions,
            local.agent,
        )
    functions = [tool["function"]["name"] for tool in contexts[0].tools]
    assert functions == (["get", "craft", "inventory"] if reply_format is FunctionCall else [])
