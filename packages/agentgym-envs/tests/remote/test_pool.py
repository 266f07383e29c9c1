"""A pool whose slots are sessions on a server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import EnvFault, Malformed, TaskSet, make
from agentgym_envs.core.action_schema import ACT
from agentgym_envs.pool import EnvPool, Result, WorldSpec
from gymnasium.error import ResetNeeded
from remote_servers import HELD, FarServer, Wire

TEXTCRAFT = "agentgym/TextCraft-v0"


def test_many_slots_play_what_one_world_plays(server: FarServer) -> None:
    """Each of 64 another task, with a word of nonsense and one that holds no action."""
    env = make(TEXTCRAFT)
    actions = ["inventory", "xyzzy", Malformed("hm", "Say something."), "get 1 stick"]
    expected: dict[int, list[Any]] = {}
    for slot in range(64):
        expected[slot] = [env.reset(seed=slot), *(env.step(action) for action in actions)]
    seen: dict[int, list[Any]] = {slot: [] for slot in range(64)}
    with EnvPool(f"agentgym_envs:{TEXTCRAFT}", 64, server.url) as pool:
        for slot in range(64):
            pool.reset(slot, seed=slot)
        while any(len(said) <= len(actions) for said in seen.values()):
            for result in pool.recv():
                said = seen[result.slot]
                if said:
                    said.append((result.observation, result.reward, result.terminated, result.truncated, result.info))
                else:
                    said.append((result.observation, result.info))
                if len(said) <= len(actions):
                    pool.send(result.slot, actions[len(said) - 1])
    assert seen == expected


def begun(pool: EnvPool) -> None:
    """Every slot has 5 knocks before it."""
    for slot in range(len(pool)):
        pool.reset(slot, "door/train/5")
    assert [result.observation for result in received(pool, len(pool))] == ["Knock 5 times."] * len(pool)


def received(pool: EnvPool, many: int) -> list[Result]:
    results: list[Result] = []
    while len(results) < many:
        results += pool.recv()
    return results


def test_a_world_that_hangs_holds_up_no_other(server: FarServer, tmp_path: Path) -> None:
    with EnvPool(HELD, 4, server.url) as pool:
        begun(pool)
        pool.send(0, f"hold {tmp_path}")
        for turn in range(1, 4):
            for slot in range(1, 4):
                pool.send(slot, "knock")
            assert {result.observation for result in received(pool, 3)} == {f"You knocked {turn} times."}
        (tmp_path / "go").touch()
        assert [result.observation for result in received(pool, 1)] == ["You waited."]


def test_a_world_that_is_replaced_gives_its_session_back(server: FarServer, tmp_path: Path) -> None:
    before = len(server.sessions)
    with EnvPool(HELD, 2, server.url) as pool:
        begun(pool)
        pool.send(0, f"hold {tmp_path}", deadline=0.2)
        (result,) = received(pool, 1)
        assert isinstance(result.error, EnvFault)
        pool.reset(0, "door/train/1")
        assert received(pool, 1)[0].observation == "Knock 1 times."
        assert len(server.sessions) == before + 2
        (tmp_path / "go").touch()
    assert len(server.sessions) == before


@pytest.mark.parametrize("fault", ["drop", "cut"])
def test_a_batch_whose_answer_is_lost_is_not_played_twice(wire: Wire, fault: str) -> None:
    with EnvPool(HELD, 8, wire.url) as pool:
        begun(pool)
        wire.faults[:] = [fault] * 2
        for slot in range(8):
            pool.send(slot, "knock")
        assert {result.observation for result in received(pool, 8)} == {"You knocked 1 times."}


def test_a_call_that_cant_be_sent_spoils_no_other_of_its_batch(server: FarServer) -> None:
    asked: list[dict[str, Any]] = [{"task": "door/train/3"}, {"task": 17}, {"split": "exam"}, {"task": "door/train/2"}]
    with EnvPool(HELD, 4, server.url) as pool:
        begun(pool)
        for slot, reset in enumerate(asked):
            pool.reset(slot, **reset)
        said = {result.slot: result for result in received(pool, 4)}
    assert [said[slot].observation for slot in (0, 3)] == ["Knock 3 times.", "Knock 2 times."]
    assert [type(said[slot].error) for slot in (1, 2)] == [ValueError, ValueError]


def test_worlds_are_asked_over_http(server: FarServer) -> None:
    async def ask() -> None:
        with EnvPool(HELD, 1, server.url, options={"render_mode": "ansi"}) as pool:
            assert (await pool.inquire(0, "instructions")).startswith("Knock")
            assert await pool.inquire(0, "functions") == (ACT,)
            assert isinstance(await pool.inquire(0, "tasks"), TaskSet)
            with pytest.raises(ResetNeeded):
                await pool.step(0, "knock")
            with pytest.raises(ResetNeeded):
                await pool.inquire(0, "oracle")
            await pool.start(0, "door/train/1")
            assert await pool.inquire(0, "oracle") == "knock"
            assert await pool.inquire(0, "oracle_thought") == "I have knocked 0 of 1 times."
            assert await pool.inquire(0, "oracle_plan") == "Knock until I have knocked 1 times, then open."
            assert await pool.inquire(0, "scene") == {"kind": "door", "open": False}
            assert await pool.inquire(0, "render") == "Knock 1 times."
            with pytest.raises(
                ValueError,
                match="it has functions, instructions, oracle, oracle_thought, oracle_plan, scene, render, tasks",
            ):
                await pool.inquire(0, "goal")
            with pytest.raises(KeyError, match="door/train/77"):
                await pool.start(0, "door/train/77")

    asyncio.run(ask())


def test_worlds_and_options_may_differ(server: FarServer) -> None:
    specs = [WorldSpec(HELD), WorldSpec(TEXTCRAFT, {"max_episode_steps": 1})]
    with EnvPool(specs, backend=server.url) as pool:
        for slot in range(2):
            pool.reset(slot, seed=0)
        received(pool, 2)
        for slot in range(2):
            pool.send(slot, "inventory")
        assert {result.slot: result.truncated for result in received(pool, 2)} == {0: False, 1: True}
