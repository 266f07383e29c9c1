"""Tests of the engine vllm-server against a fake server; `test_server.py` has tests with a real one."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch
from agentgym_trainer.engines.base import Completion, EngineUsage, SamplingParams
from agentgym_trainer.engines.vllm.server import VllmServer
from agentgym_trainer.engines.vllm.weight_transfer import fetch, offered
from agentgym_trainer.models.weights import Weights
from fake_vllm import SAMPLING, TENSORS, FakeServer, fake_weights, make_engine, run_scene
from patience import eventually_async


def test_generate_takes_and_returns_token_ids() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        assert await sampler.generate([5, 6, 7], SAMPLING) == Completion((3, 11), (-0.5, -1.0), "stop", 0)
        greedy = replace(SAMPLING, temperature=0.0, max_tokens=9)
        assert (await sampler.generate((5, 6), greedy)).logprobs == (0.0, 0.0)
        body = server.requests[-1][1]
        assert body == {
            "token_ids": [5, 6],
            "sampling_params": {
                "temperature": 0.0, "max_tokens": 9, "seed": 11, "stop_token_ids": [2], "ignore_eos": True,
                "logprobs": 0, "detokenize": False,
            },
        }  # fmt: skip
        assert sampler.usage == EngineUsage(prefilled=2, reused=3, generated=4, busy=sampler.usage.busy)
        assert sampler.usage.busy > 0

    run_scene(scene)


def test_a_proxy_for_the_web_is_not_asked_for_servers_of_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        assert (await sampler.generate([5, 6, 7], SAMPLING)).ids == (3, 11)

    run_scene(scene)


def test_invalid_requests_are_rejected() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        with pytest.raises(ValueError, match="60 tokens and a reply of up to 5 don't fit: this engine takes 1 to 64"):
            await sampler.generate([5] * 60, SamplingParams(max_tokens=5))
        with pytest.raises(ValueError, match=r"temperature of 0 or from 0\.01"):
            await sampler.generate([5], SamplingParams(temperature=0.005, max_tokens=5))
        server.overrides["/inference/v1/generate"] = [lambda: (400, {"error": {"message": "token 9 is out of range"}})]
        with pytest.raises(ValueError, match="token 9 is out of range"):
            await sampler.generate([9], SAMPLING)
        assert (await sampler.generate([5], SAMPLING)).ids == (1, 11)

    run_scene(scene, max_context=64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_load_transfers_exact_weights_while_sampling_is_paused(dtype: torch.dtype) -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.worker.vllm_config.model_config.dtype = dtype
        await sampler.load(fake_weights(4))
        (received,) = server.worker.loaded
        for name, tensor in TENSORS.items():
            assert torch.equal(received[name], tensor.to(dtype) if tensor.is_floating_point() else tensor)
        requests = server.paths[server.paths.index("/pause") :]
        assert requests == [
            "/pause", "/update_weight_version", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version",
            "/resume",
        ]  # fmt: skip
        assert sampler.version == (await sampler.generate([5], SAMPLING)).version == 4

    run_scene(scene)


def test_tied_head_is_loaded_with_or_without_its_name() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.worker.vllm_config.model_config.hf_text_config.tie_word_embeddings = True
        tied = {"model.embed_tokens.weight": torch.ones(2, 2), "lm_head.weight": torch.ones(2, 2)}
        for names in (tied, list(tied)[:1]):
            await sampler.load(Weights(1, lambda names=names: iter((name, tied[name]) for name in names)))
            assert list(server.worker.loaded[-1]) == list(tied)

    run_scene(scene)


def test_adapter_is_registered_once_and_again_after_a_restart() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        for version in (2, 3):
            await sampler.load(fake_weights(version, adapter={"r": 4, "target_modules": {"b", "a"}}))
            assert server.worker.loaded[-1]["config"] == {"r": 4, "target_modules": ["a", "b"]}
            assert server.worker.loaded[-1]["version"] == version
            assert (await sampler.generate([5], SAMPLING)).version == version
            assert server.requests[-1][1]["model"] == "run"
        assert server.paths.count("/v1/load_lora_adapter") == 1
        server.stop()
        await server.start()
        assert (await sampler.generate([5], SAMPLING)).version == 3
        assert server.adapters == {"run"}

    run_scene(scene)


def test_paused_replies_continue_with_the_new_weights() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        server.may_reply.clear()
        server.requests.clear()
        before = [asyncio.create_task(sampler.generate([5], SAMPLING)) for _ in range(5)]
        await eventually_async(lambda: server.sampling == 5)
        loading = asyncio.create_task(sampler.load(fake_weights(2)))
        await eventually_async(lambda: "/pause" in server.paths)
        after = [asyncio.create_task(sampler.generate([5], SAMPLING)) for _ in range(5)]
        # The load doesn't wait for running replies.
        await loading
        server.may_reply.set()
        assert {(reply.version, reply.versions) for reply in await asyncio.gather(*before)} == {(1, (1, 2))}
        assert {(reply.version, reply.versions) for reply in await asyncio.gather(*after)} == {(2, ())}

    run_scene(scene)


def test_cancelled_request_is_aborted_on_the_server() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.may_reply.clear()
        request = asyncio.create_task(sampler.generate([5], SAMPLING))
        await eventually_async(lambda: server.sampling)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        # What remains is this task, and the server's on a connection that stays open or is being closed.
        await eventually_async(lambda: not server.sampling and len(asyncio.all_tasks()) <= 2)

    run_scene(scene)


def test_only_one_process_pushes_weights_to_a_shared_server() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        other = make_engine(server, pushes=False)
        waiting = asyncio.create_task(other.load(fake_weights(1)))
        await eventually_async(lambda: "/weight_info" in server.paths)
        assert not waiting.done()
        await sampler.load(fake_weights(1))
        await waiting
        assert (await other.generate([5], SAMPLING)).version == other.version == 1
        assert len(server.worker.loaded) == 1
        await other.close()

    run_scene(scene)


def test_fetching_weights_requires_the_secret() -> None:
    async def scene() -> None:
        async with offered(lambda: iter(TENSORS.items()), host="127.0.0.1") as offer:
            with pytest.raises(ConnectionError, match="hung up"):
                await asyncio.to_thread(lambda: list(fetch(offer.host, offer.port, "0" * len(offer.secret))))
            assert len(await asyncio.to_thread(lambda: list(fetch(offer.host, offer.port, offer.secret)))) == len(
                TENSORS
            )
        with pytest.raises(ConnectionError, match="can't be reached"):
            list(fetch(offer.host, offer.port, offer.secret))

    asyncio.run(scene())


def test_an_awake_server_stays_paused_while_its_weights_are_replaced() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        server.may_reply.clear()
        running = asyncio.create_task(sampler.generate([5, 6], SAMPLING))
        await eventually_async(lambda: server.sampling)
        await sampler.load(fake_weights(2))  # the server asserts that it is paused
        server.may_reply.set()
        assert set((await running).versions) == {1, 2}

    run_scene(scene, sleeps=True)
