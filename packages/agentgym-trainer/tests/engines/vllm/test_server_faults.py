"""Tests of faults of vLLM servers: crashes, hangs, lost weights, refusals and unsuitable configurations."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.engines.vllm import backoff, weight_transfer
from agentgym_trainer.engines.vllm.client import Away, VllmHttp
from agentgym_trainer.engines.vllm.server import VllmServer
from agentgym_trainer.engines.vllm.weight_transfer import offered
from agentgym_trainer.models.weights import Weights
from fake_vllm import SAMPLING, FakeServer, FakeWorker, fake_weights, make_engine, run_scene
from patience import PATIENCE, eventually_async
from torch import Tensor


def test_restarted_server_gets_requests_and_weights_again() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(3))
        server.may_reply.clear()
        requests = [asyncio.create_task(sampler.generate([5] * n, SAMPLING)) for n in range(1, 9)]
        await eventually_async(lambda: server.sampling == 8)
        server.stop()
        await eventually_async(lambda: server.sampling == 0)
        await server.start()
        assert [(reply.ids[0], reply.version) for reply in await asyncio.gather(*requests)] == [
            (n, 3) for n in range(1, 9)
        ]
        assert [float(received["version"]) for received in server.worker.loaded] == [3.0]

    run_scene(scene)


def test_load_survives_a_crash_of_the_server() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(3))
        responses = {"/collective_rpc": [_server_info, lambda: (server.stop(), (200, {}))[1]]}
        server.overrides = responses
        loading = asyncio.create_task(sampler.load(fake_weights(4)))
        await eventually_async(lambda: not responses["/collective_rpc"])
        await server.start()
        await loading
        assert [float(received["version"]) for received in server.worker.loaded] == [4.0]

    run_scene(scene)


def _server_info() -> tuple[int, Any]:
    info = {"dtype": "float32", "logprobs_mode": "processed_logprobs", "max_context": 64, "lora_rank": 0}
    return 200, {"results": [info | {"weight_transfer": ""}]}


@pytest.mark.parametrize("labels", [["default"], ["run@2.2", "run@none"], []], ids=["lost", "torn", "none"])
def test_reply_with_unknown_weights_is_sampled_again(labels: list[str]) -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        await sampler.load(fake_weights(2))
        if labels == ["default"]:
            server.label = "default"  # as after a restart between two requests
        else:
            body = {"token_ids": [5], "sampling_params": {"seed": 1}}
            server.overrides["/inference/v1/generate"] = [lambda: (200, server.reply(body, labels))]
        assert (await sampler.generate([5], SAMPLING)).version == 2
        assert len(server.worker.loaded) == (3 if labels == ["default"] else 2)

    run_scene(scene)


def test_aborted_reply_is_sampled_again() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        body = {"token_ids": [5], "sampling_params": {"seed": 1}}
        server.overrides["/inference/v1/generate"] = [lambda: (200, server.reply(body, ["default"], "abort"))]
        assert (await sampler.generate([5, 5], SAMPLING)).ids == (2, 11)

    run_scene(scene)


def test_server_that_aborts_every_reply_counts_as_unavailable() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        body = {"token_ids": [5], "sampling_params": {"seed": 1}}
        server.overrides["/inference/v1/generate"] = [lambda: (200, server.reply(body, ["default"], "abort"))] * 999
        with pytest.raises(EngineGone, match=r"unavailable for 0\.3 s: a reply ended by abort"):
            await sampler.generate([5], SAMPLING)

    run_scene(scene, patience=0.3)


def test_all_requests_fail_when_patience_runs_out() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        server.stop()
        errors = await asyncio.gather(*(sampler.generate([5], SAMPLING) for _ in range(4)), return_exceptions=True)
        for error in errors:
            assert isinstance(error, EngineGone)
            assert f"{server.url} has been unavailable for 0.2 s: ConnectError" in str(error)

    run_scene(scene, patience=0.2)


def test_slow_server_counts_as_available() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        sampler._http = VllmHttp(server.url, pulse=0.2)
        server.may_reply.clear()
        request = asyncio.create_task(sampler.generate([5], SAMPLING))
        await eventually_async(lambda: server.paths.count("/health") > 2)
        server.may_reply.set()
        assert (await request).ids == (1, 11)

    run_scene(scene)


def test_hanging_server_counts_as_unavailable() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        sampler._http = VllmHttp(server.url, pulse=0.2)
        server.may_reply.clear()
        server.healthy = False
        with pytest.raises(EngineGone, match=r"unavailable for 0\.4 s: (Read|Connect)Timeout"):
            await sampler.generate([5], SAMPLING)

    run_scene(scene, patience=0.4)


@pytest.mark.parametrize(
    ("path", "response", "message"),
    [
        ("/collective_rpc", (404, {"detail": "Not Found"}), "VLLM_SERVER_DEV_MODE=1 vllm serve"),
        ("/inference/v1/generate", (403, {"error": {"message": "Scale-out is disabled"}}), "--enable-scale-out"),
    ],
)
def test_server_without_required_flags_is_rejected(path: str, response: Any, message: str) -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.overrides[path] = [lambda: response]
        with pytest.raises(EngineGone, match=message):
            await sampler.generate([5], SAMPLING)

    run_scene(scene)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("logprobs_mode", "raw_logprobs", "returns raw_logprobs"), ("max_model_len", 32, "--max-model-len 64")],
)
def test_server_with_other_sampling_settings_is_rejected(name: str, value: Any, message: str) -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        setattr(server.worker.vllm_config.model_config, name, value)
        with pytest.raises(EngineGone, match=message):
            await sampler.generate([5], SAMPLING)

    run_scene(scene)


def test_adapter_rank_above_the_maximum_is_rejected() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        with pytest.raises(EngineGone, match=r"up to rank 8, not 12. .* --max-lora-rank 16"):
            await sampler.load(fake_weights(1, adapter={"r": 12}))

    run_scene(scene)


def test_mismatched_weights_fail_without_retries() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        def misfit(weights_iterator: Any) -> None:
            raise RuntimeError("no parameter of that name")

        server.worker.reload_weights = misfit
        with pytest.raises(EngineGone, match="no parameter of that name"):
            await sampler.load(fake_weights(1))

    run_scene(scene)


def test_error_while_exporting_weights_is_raised() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        def failing_export() -> Iterator[tuple[str, Tensor]]:
            yield "one", torch.ones(3)
            raise ArithmeticError("no more memory")

        with pytest.raises(ArithmeticError, match="no more memory"):
            await sampler.load(Weights(1, failing_export))
        assert [set(received) for received in server.worker.loaded] == [{"one"}]
        assert server.label == "run@none"
        await sampler.load(fake_weights(2))
        assert (await sampler.generate([5], SAMPLING)).version == 2

    run_scene(scene)


def test_next_request_completes_a_cancelled_load() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        server.may_reply.clear()
        server.requests.clear()
        request = asyncio.create_task(sampler.generate([5], SAMPLING))
        await eventually_async(lambda: server.sampling)
        loading = asyncio.create_task(sampler.load(fake_weights(2)))
        await eventually_async(lambda: "/pause" in server.paths)
        loading.cancel()
        server.may_reply.set()
        assert (await sampler.generate([5], SAMPLING)).version == 2
        assert (await request).versions == (1, 2)

    run_scene(scene)


def test_repaired_fault_does_not_count_against_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(backoff, "time", clock)

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        server.stop()
        await server.start()
        await eventually_async(lambda: server.label == "run@1.1")
        clock.monotonic = lambda: PATIENCE + 1
        await sampler.load(fake_weights(2))
        assert (await sampler.generate([5], SAMPLING)).version == 2

    run_scene(scene, watch_every=0.02)


@pytest.mark.parametrize("lost", [False, True])
def test_server_that_falls_asleep_while_the_watch_asks_it_is_left_alone(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise take back the GPU's memory while the learner needs it."""
    monkeypatch.setattr(backoff, "_FIRST", 0.0)

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        asked, may_answer, label = asyncio.Event(), asyncio.Event(), sampler._http.label

        async def late_label() -> str:
            asked.set()
            await may_answer.wait()
            if lost:
                raise Away("the connection was lost")
            return await label()

        await sampler.load(fake_weights(1))
        monkeypatch.setattr(sampler._http, "label", late_label)
        await asked.wait()
        await sampler.sleep()
        monkeypatch.setattr(sampler._http, "label", label)
        may_answer.set()
        for _ in range(50):  # several times as many round trips as the watch would need to wake the server
            await sampler._http.alive()
        assert server.asleep == {"weights", "kv_cache"}
        assert len(server.worker.loaded) == 1
        assert (await sampler.generate([5], SAMPLING)).version == 1

    run_scene(scene, watch_every=0.01, sleeps=True)


def test_interrupted_transfer_leaves_no_partial_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    transfer_failed = threading.Event()

    def stalling_export() -> Iterator[tuple[str, Tensor]]:
        yield "one", torch.ones(3)
        assert transfer_failed.wait(PATIENCE)
        yield "two", torch.ones(3)

    def take(offer: Any) -> None:
        try:
            worker.agentgym_take_weights(offer.host, offer.port, offer.secret)
        finally:
            transfer_failed.set()  # the export runs in the event loop, which waits for it

    async def scene() -> None:
        async with offered(stalling_export, host="127.0.0.1") as offer:
            with pytest.raises(ConnectionError, match="lost before all weights were there: timed out"):
                await asyncio.to_thread(take, offer)

    worker = FakeWorker()

    monkeypatch.setattr(weight_transfer, "_SILENCE", 0.1)
    asyncio.run(scene())
    assert not any("two" in received for received in worker.loaded)


def test_process_that_does_not_push_samples_from_a_server_that_is_ahead() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        other = make_engine(server, pushes=False)
        await asyncio.gather(sampler.load(fake_weights(1)), other.load(fake_weights(1)))
        await sampler.load(fake_weights(2))
        other._ready = False  # as after a fault
        assert (await other.generate([5], SAMPLING)).version == 2
        await other.load(fake_weights(2))
        await other.close()

    run_scene(scene)


def test_weights_are_restored_while_only_other_processes_sample() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        other = make_engine(server, pushes=False)
        await asyncio.gather(sampler.load(fake_weights(1)), other.load(fake_weights(1)))
        server.stop()
        await server.start()
        assert (await other.generate([5], SAMPLING)).version == 1
        assert len(server.worker.loaded) == 1
        await other.close()

    run_scene(scene, watch_every=0.05)


def test_two_runs_cannot_share_a_server() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(fake_weights(1))
        stranger = make_engine(server, run="stranger")
        await stranger.load(fake_weights(7))
        with pytest.raises(EngineGone, match=r"given the weights stranger@7\.1 while this run used it"):
            await sampler.generate([5], SAMPLING)
        await stranger.close()

    run_scene(scene)
