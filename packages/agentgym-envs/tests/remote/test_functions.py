"""Agents that call functions play a world on a server as they play it here, and take no session for asking."""

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
from remote_servers import far_server

TEXTCRAFT = "agentgym/TextCraft-v0"
TASKS = ["textcraft/test/oak_button", "textcraft/test/birch_button"]


class Crafter(Policy):
    """Gathers logs, by a call of its own words."""

    name = "crafter"

    def __init__(self, form: ReplyWrapper) -> None:
        self._form = form
        self.seen: list[TurnContext] = []

    async def reply(self, seat: TurnContext) -> Reply:
        self.seen.append(seat)
        return Reply(self._form.format(f"get {seat.acts + 1} oak log", "Wood is of use."))


def played(pool: EnvPool, form: ReplyWrapper) -> tuple[list[Episode], list[TurnContext]]:
    player = Crafter(form)

    async def play() -> list[Episode]:
        episodes = play_pool(pool, player, [EpisodeSpec(task) for task in TASKS], env=form, horizon=2)
        return [episode async for episode in episodes]

    return sorted(asyncio.run(play()), key=lambda episode: episode.task_id), player.seen


@pytest.mark.parametrize("form", [FunctionCall, CodeAct])
def test_functions_are_called_over_http(form: type[ReplyWrapper]) -> None:
    with EnvPool(TEXTCRAFT, 2) as pool:
        here, _ = played(pool, form(make(TEXTCRAFT)))
    with far_server(max_sessions=2) as server:
        spec = WorldSpec("agentgym/Remote-v0", {"url": server.url, "env": TEXTCRAFT})
        with EnvPool(spec, 2, "thread") as pool, closing(form(spec.build())) as at_hand:
            there, seats = played(pool, at_hand)
    assert [turn.action for turn in here[0].turns] == ["get 1 oak log", "get 2 oak log"]
    for far, near in zip(there, here, strict=True):
        assert (far.turns, far.tools, far.instructions, far.agent) == (
            near.turns,
            near.tools,
            near.instructions,
            near.agent,
        )
    functions = [tool["function"]["name"] for tool in seats[0].tools]
    assert functions == (["get", "craft", "inventory"] if form is FunctionCall else [])
