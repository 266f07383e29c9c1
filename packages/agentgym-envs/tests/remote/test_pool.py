"""Tests of pools whose slots are sessions on a server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from agentgym_envs import EnvFault, Malformed, TaskSet, make
from agentgym_envs.core.action_schema import ACT
from agentgym_envs.pool import EnvPool, Result, WorldSpec
from gymnasium.error import ResetNeeded
from remote_servers import BLOCKING, FaultyProxy, RemoteServer

TEXTCRAFT = "agentgym/TextCraft-v0"


def test_slots_match_a_local_environment(server: RemoteServer) -> None:
    """Each of 64 slots plays its own task, including an invalid action and a reply without an action."""
    env = make(TEXTCRAFT)
    actions = ["inventory", "xyzzy", Malformed("hm", "Say something."), "get 1 stick"]
    expected: dict[int, list[Any]] = {}
    for slot in range(64):
        expected[slot] = [env.reset(seed=slot), *(env.step(action) for action in actions)]
    received: dict[int, list[Any]] = {slot: [] for slot in range(64)}
    with EnvPool(f"agentgym_envs:{TEXTCRAFT}", 64, server.url) as pool:
        for slot in range(64):
            pool.reset(slot, seed=slot)
        while any(len(results) <= len(actions) for results in received.values()):
            for result in pool.recv():
                results = received[result.slot]
                if results:
                    outcome = result.observation, result.reward, result.terminated, result.truncated, result.info
                    results.append(outcome)
                else:
                    results.append((result.observation, result.info))
                if len(results) <= len(actions):
                    pool.send(result.slot, actions[len(results) - 1])
    assert received == expected


def start_episodes(pool: EnvPool) -> None:
    """Start an episode whose goal is 5 knocks in every slot."""
    for slot in range(len(pool)):
        pool.reset(slot, "door/train/5")
    assert [result.observation for result in receive(pool, len(pool))] == ["Knock 5 times."] * len(pool)


def receive(pool: EnvPool, count: int) -> list[Result]:
    results: list[Result] = []
    while len(results) < count:
        results += pool.recv()
    return results


def test_blocked_environment_does_not_delay_others(server: RemoteServer, tmp_path: Path) -> None:
    with EnvPool(BLOCKING, 4, server.url) as pool:
        start_episodes(pool)
        pool.send(0, f"hold {tmp_path}")
        for turn in range(1, 4):
            for slot in range(1, 4):
                pool.send(slot, "knock")
            assert {result.observation for result in receive(pool, 3)} == {f"You knocked {turn} times."}
        (tmp_path / "go").touch()
        assert [result.observation for result in receive(pool, 1)] == ["You waited."]


def test_replaced_environment_releases_its_session(server: RemoteServer, tmp_path: Path) -> None:
    before = len(server.sessions)
    with EnvPool(BLOCKING, 2, server.url) as pool:
        start_episodes(pool)
        pool.send(0, f"hold {tmp_path}", deadline=0.2)
        (result,) = receive(pool, 1)
        assert isinstance(result.error, EnvFault)
        pool.reset(0, "door/train/1")
        assert receive(pool, 1)[0].observation == "Knock 1 times."
        assert len(server.sessions) == before + 2
        (tmp_path / "go").touch()
    assert len(server.sessions) == before


@pytest.mark.parametrize("fault", ["drop", "cut"])
def test_batch_with_lost_response_is_executed_once(proxy: FaultyProxy, fault: str) -> None:
    with EnvPool(BLOCKING, 8, proxy.url) as pool:
        start_episodes(pool)
        proxy.faults[:] = [fault] * 2
        for slot in range(8):
            pool.send(slot, "knock")
        assert {result.observation for result in receive(pool, 8)} == {"You knocked 1 times."}


def test_invalid_call_does_not_affect_its_batch(server: RemoteServer) -> None:
    resets: list[dict[str, Any]] = [{"task": "door/train/3"}, {"task": 17}, {"split": "exam"}, {"task": "door/train/2"}]
    with EnvPool(BLOCKING, 4, server.url) as pool:
        start_episodes(pool)
        for slot, reset in enumerate(resets):
            pool.reset(slot, **reset)
        results = {result.slot: result for result in receive(pool, 4)}
    assert [results[slot].observation for slot in (0, 3)] == ["Knock 3 times.", "Knock 2 times."]
    assert [type(results[slot].error) for slot in (1, 2)] == [ValueError, ValueError]


def test_attributes_are_queried_over_http(server: RemoteServer) -> None:
    async def scenario() -> None:
        with EnvPool(BLOCKING, 1, server.url, options={"render_mode": "ansi"}) as pool:
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

    asyncio.run(scenario())


def test_slots_may_differ_in_environment_and_options(server: RemoteServer) -> None:
    specs = [WorldSpec(BLOCKING), WorldSpec(TEXTCRAFT, {"max_episode_steps": 1})]
    with EnvPool(specs, backend=server.url) as pool:
        for slot in range(2):
            pool.reset(slot, seed=0)
        receive(pool, 2)
        for slot in range(2):
            pool.send(slot, "inventory")
        assert {result.slot: result.truncated for result in receive(pool, 2)} == {0: False, 1: True}
