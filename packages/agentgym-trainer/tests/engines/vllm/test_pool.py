"""Tests of several vLLM servers that all training processes share, and of the routing of requests among them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest
import torch
from agentgym_trainer.engines.base import EngineGone, SamplingParams
from agentgym_trainer.engines.vllm import prefix_router
from agentgym_trainer.engines.vllm.pool import VllmPool
from agentgym_trainer.engines.vllm.prefix_router import PrefixRouter
from agentgym_trainer.models.weights import Weights
from fake_vllm import SAMPLING, TENSORS, FakeServer, fake_weights, make_engine
from patience import PATIENCE, eventually_async
from torch import Tensor

TASKS = [[task] * 100 for task in range(8)]
"""Prompts of three whole blocks."""


def chosen(router: PrefixRouter, *contexts: list[int]) -> list[int]:
    """Return the servers of requests that run one after the other."""
    servers: list[int] = []
    for ids in contexts:
        with router.routed(ids) as server:
            servers.append(server)
    return servers


def test_turns_of_an_episode_go_to_the_same_server() -> None:
    router = PrefixRouter(3)
    with ExitStack() as running:
        first = [running.enter_context(router.routed(task)) for task in TASKS]
    assert sorted(first) == [0, 0, 0, 1, 1, 1, 2, 2]
    for extra in range(1, 4):
        contexts = [[*task, *[9] * 50 * extra] for task in reversed(TASKS)]
        assert chosen(router, *contexts) == first[::-1]


def test_episodes_of_a_task_share_a_server_until_it_has_much_more_to_do() -> None:
    router = PrefixRouter(2)
    with ExitStack() as running:
        servers = [running.enter_context(router.routed([*TASKS[0], episode])) for episode in range(20)]
        assert servers[:5] == [0] * 5
        assert servers.count(1) >= 5
        assert max(router.running) - min(router.running) <= prefix_router._SLACK + 1
    assert router.running == [0, 0]


def test_servers_of_old_prefixes_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_router, "_REMEMBERED", 6)
    router = PrefixRouter(2)
    with router.routed(TASKS[0]):
        assert chosen(router, *TASKS[1:3]) == [1, 1]
    assert len(router._server_of) == 6
    assert chosen(router, TASKS[0]) == [0]
    assert chosen(router, TASKS[2]) == [1]


async def _servers(count: int) -> list[FakeServer]:
    servers = [FakeServer() for _ in range(count)]
    for server in servers:
        await server.start()
    return servers


def run_pools(scene: Any, *, servers: int, processes: int) -> None:
    """Run a coroutine function with servers and the pool of each process."""

    async def main() -> None:
        started = await _servers(servers)
        pools = [
            VllmPool([make_engine(server, pushes=n % processes == rank) for n, server in enumerate(started)])
            for rank in range(processes)
        ]
        try:
            async with asyncio.timeout(PATIENCE):
                await scene(started, pools)
        finally:
            for pool in pools:
                await pool.close()
            for server in started:
                server.stop()

    asyncio.run(main())


@pytest.mark.parametrize(("servers", "processes"), [(3, 1), (3, 2), (2, 3)])
def test_each_server_gets_the_weights_from_one_process(servers: int, processes: int) -> None:
    passes: list[int] = []

    def once(version: int) -> Weights:
        remaining = iter([fake_weights(version)])

        def tensors() -> Iterator[tuple[str, Tensor]]:
            passes.append(version)
            return next(remaining).tensors()

        return Weights(version, tensors, lasting=False)

    async def scene(started: list[FakeServer], pools: list[VllmPool]) -> None:
        for version in (1, 2):
            await asyncio.gather(*(pool.load(once(version)) for pool in pools))
            for pool in pools:
                contexts = [[*task, 1] for task in TASKS]
                replies = await asyncio.gather(*(pool.generate(ids[:40], SAMPLING) for ids in contexts))
                assert {reply.version for reply in replies} == {pool.version} == {version}
        for server in started:
            assert [received["version"] for received in server.worker.loaded] == [1, 2]
            assert all(torch.equal(server.worker.loaded[0][name], tensor) for name, tensor in TENSORS.items())
            assert server.paths.count("/inference/v1/generate")
        assert sorted(passes) == [1] * processes + [2] * processes

    run_pools(scene, servers=servers, processes=processes)


def test_no_server_is_sent_the_last_weights_while_new_ones_replace_them() -> None:
    async def scene(started: list[FakeServer], pools: list[VllmPool]) -> None:
        (pool,) = pools

        def tensors() -> Iterator[tuple[str, Tensor]]:
            assert all(server.lock.locked() for server in pool._servers)
            return fake_weights(1).tensors()

        await pool.load(Weights(1, tensors, lasting=False))
        assert not any(server.lock.locked() for server in pool._servers)

    run_pools(scene, servers=2, processes=1)


def test_pass_of_all_processes_is_made_though_a_server_is_unsuitable() -> None:
    read: list[str] = []

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, tensor in fake_weights(1).tensors():
            read.append(name)
            yield name, tensor

    async def scene(started: list[FakeServer], pools: list[VllmPool]) -> None:
        started[0].worker.vllm_config.model_config.logprobs_mode = "raw_logprobs"
        with pytest.raises(EngineGone, match="returns raw_logprobs"):
            await pools[0].load(Weights(1, tensors, lasting=False))
        assert read == [*TENSORS, "version"]

    run_pools(scene, servers=1, processes=1)


def test_usage_is_that_of_all_servers() -> None:
    async def scene(started: list[FakeServer], pools: list[VllmPool]) -> None:
        (pool,) = pools
        await pool.load(fake_weights(1))
        for server in started:
            server.may_reply.clear()
        requests = [asyncio.create_task(pool.generate(task[:40], SamplingParams(max_tokens=2))) for task in TASKS]
        await eventually_async(lambda: [server.sampling for server in started] == [4, 4])
        for server in started:
            server.may_reply.set()
        await asyncio.gather(*requests)
        usage = pool.usage
        assert (usage.prefilled, usage.reused, usage.generated) == (8, 8 * 39, 16)
        assert usage.busy > 0

    run_pools(scene, servers=2, processes=1)


def test_server_that_is_gone_ends_the_engine() -> None:
    async def scene(started: list[FakeServer], pools: list[VllmPool]) -> None:
        started[1].worker.vllm_config.model_config.logprobs_mode = "raw_logprobs"
        with pytest.raises(EngineGone, match="returns raw_logprobs"):
            await pools[0].load(fake_weights(1))
        assert [received["version"] for received in started[0].worker.loaded] == [1]

    run_pools(scene, servers=2, processes=1)
