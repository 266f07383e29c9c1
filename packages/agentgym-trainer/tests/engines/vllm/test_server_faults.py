"""Servers of vLLM's that die, hang, forget, refuse, or are not what we need."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agentgym_trainer.engines.base import EngineGone
from agentgym_trainer.engines.vllm import backoff, weight_transfer
from agentgym_trainer.engines.vllm.client import VllmHttp
from agentgym_trainer.engines.vllm.server import VllmServer
from agentgym_trainer.engines.vllm.weight_transfer import offered
from agentgym_trainer.models.weights import Weights
from fake_vllm import ONE, FakeServer, FakeWorker, engine, play, weights
from patience import PATIENCE, eventually_async
from torch import Tensor
from toy_learner import coin_flags, train_cli


def test_a_server_that_comes_back_gets_requests_and_weights_again() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(weights(3))
        server.answering.clear()
        asking = [asyncio.create_task(sampler.generate([5] * n, ONE)) for n in range(1, 9)]
        await eventually_async(lambda: server.sampling == 8)
        server.die()
        await eventually_async(lambda: server.sampling == 0)
        await server.start()
        assert [(reply.ids[0], reply.version) for reply in await asyncio.gather(*asking)] == [
            (n, 3) for n in range(1, 9)
        ]
        assert [float(got["version"]) for got in server.worker.loaded] == [3.0]

    play(scene)


def test_a_load_survives_the_death_of_its_server() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(weights(3))
        stuck = {"/collective_rpc": [_hello, lambda: (server.die(), (200, {}))[1]]}
        server.instead = stuck
        loading = asyncio.create_task(sampler.load(weights(4)))
        await eventually_async(lambda: not stuck["/collective_rpc"])
        await server.start()
        await loading
        assert [float(got["version"]) for got in server.worker.loaded] == [4.0]

    play(scene)


def _hello() -> tuple[int, Any]:
    said = {"dtype": "float32", "logprobs_mode": "processed_logprobs", "max_context": 64, "lora_rank": 0}
    return 200, {"results": [said]}


@pytest.mark.parametrize("labels", [["default"], ["run@2.2", "run@none"], []], ids=["lost", "torn", "none"])
def test_a_reply_that_isnt_by_weights_of_ours_is_sampled_again(labels: list[str]) -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(weights(1))
        await sampler.load(weights(2))
        if labels == ["default"]:
            server.label = "default"  # restarted between two requests: nobody noticed
        else:
            body = {"token_ids": [5], "sampling_params": {"seed": 1}}
            server.instead["/inference/v1/generate"] = [lambda: (200, server.reply(body, labels))]
        assert (await sampler.generate([5], ONE)).version == 2
        assert len(server.worker.loaded) == (3 if labels == ["default"] else 2)

    play(scene)


def test_an_aborted_reply_is_sampled_again() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        body = {"token_ids": [5], "sampling_params": {"seed": 1}}
        server.instead["/inference/v1/generate"] = [lambda: (200, server.reply(body, ["default"], "abort"))]
        assert (await sampler.generate([5, 5], ONE)).ids == (2, 11)

    play(scene)


def test_a_server_that_never_ends_a_reply_is_as_good_as_away() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        body = {"token_ids": [5], "sampling_params": {"seed": 1}}
        server.instead["/inference/v1/generate"] = [lambda: (200, server.reply(body, ["default"], "abort"))] * 999
        with pytest.raises(EngineGone, match=r"unavailable for 0\.3 s: a reply ended by abort"):
            await sampler.generate([5], ONE)

    play(scene, patience=0.3)


def test_patience_has_an_end_and_everybody_is_told() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(weights(1))
        server.die()
        said = await asyncio.gather(*(sampler.generate([5], ONE) for _ in range(4)), return_exceptions=True)
        for error in said:
            assert isinstance(error, EngineGone)
            assert f"{server.url} has been unavailable for 0.2 s: ConnectError" in str(error)

    play(scene, patience=0.2)


def test_a_server_that_is_slow_is_not_away() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        sampler._http = VllmHttp(server.url, pulse=0.2)
        server.answering.clear()
        asking = asyncio.create_task(sampler.generate([5], ONE))
        await eventually_async(lambda: server.paths.count("/health") > 2)
        server.answering.set()
        assert (await asking).ids == (1, 11)

    play(scene)


def test_a_server_that_hangs_is_away() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        sampler._http = VllmHttp(server.url, pulse=0.2)
        server.answering.clear()
        server.well = False
        with pytest.raises(EngineGone, match=r"unavailable for 0\.4 s: (Read|Connect)Timeout"):
            await sampler.generate([5], ONE)

    play(scene, patience=0.4)


@pytest.mark.parametrize(
    ("path", "answer", "said"),
    [
        ("/collective_rpc", (404, {"detail": "Not Found"}), "VLLM_SERVER_DEV_MODE=1 vllm serve"),
        ("/inference/v1/generate", (403, {"error": {"message": "Scale-out is disabled"}}), "--enable-scale-out"),
    ],
)
def test_a_server_without_our_flags_is_refused_and_the_flags_named(path: str, answer: Any, said: str) -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.instead[path] = [lambda: answer]
        with pytest.raises(EngineGone, match=said):
            await sampler.generate([5], ONE)

    play(scene)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [("logprobs_mode", "raw_logprobs", "returns raw_logprobs"), ("max_model_len", 32, "--max-model-len 64")],
)
def test_a_server_that_samples_otherwise_is_refused(name: str, value: Any, said: str) -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        setattr(server.worker.vllm_config.model_config, name, value)
        with pytest.raises(EngineGone, match=said):
            await sampler.generate([5], ONE)

    play(scene)


def test_an_adapter_needs_room() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        with pytest.raises(EngineGone, match=r"up to rank 8, not 12. .* --max-lora-rank 16"):
            await sampler.load(weights(1, adapter={"r": 12}))

    play(scene)


def test_weights_that_dont_fit_end_the_run_at_once() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        def misfit(weights_iterator: Any) -> None:
            raise RuntimeError("no parameter of that name")

        server.worker.reload_weights = misfit
        with pytest.raises(EngineGone, match="no parameter of that name"):
            await sampler.load(weights(1))

    play(scene)


def test_what_the_learner_raises_is_raised() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        def torn() -> Iterator[tuple[str, Tensor]]:
            yield "one", torch.ones(3)
            raise ArithmeticError("no more memory")

        with pytest.raises(ArithmeticError, match="no more memory"):
            await sampler.load(Weights(1, torn))
        assert [set(got) for got in server.worker.loaded] == [{"one"}]
        assert server.label == "run@none"
        await sampler.load(weights(2))
        assert (await sampler.generate([5], ONE)).version == 2

    play(scene)


def test_a_load_that_was_given_up_is_made_good_by_the_next_request() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(weights(1))
        server.answering.clear()
        server.asked.clear()
        asking = asyncio.create_task(sampler.generate([5], ONE))
        await eventually_async(lambda: server.sampling)
        loading = asyncio.create_task(sampler.load(weights(2)))
        await eventually_async(lambda: "/pause" in server.paths)
        loading.cancel()
        server.answering.set()
        assert (await sampler.generate([5], ONE)).version == 2
        assert (await asking).versions == (1, 2)

    play(scene)


def test_a_fault_that_was_mended_while_nothing_was_sampled_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: 0.0)
    monkeypatch.setattr(backoff, "time", clock)

    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(weights(1))
        server.die()
        await server.start()
        await eventually_async(lambda: server.label == "run@1.1")
        clock.monotonic = lambda: PATIENCE + 1
        await sampler.load(weights(2))
        assert (await sampler.generate([5], ONE)).version == 2

    play(scene, watch_every=0.02)


def test_weights_that_stop_coming_leave_no_model_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()

    def stuck() -> Iterator[tuple[str, Tensor]]:
        yield "one", torch.ones(3)
        assert given_up.wait(PATIENCE)
        yield "two", torch.ones(3)

    def take(offer: Any) -> None:
        try:
            worker.agentgym_take_weights(offer.host, offer.port, offer.secret)
        finally:
            given_up.set()  # the weights come from the loop, which waits for them

    async def scene() -> None:
        async with offered(stuck, host="127.0.0.1") as offer:
            with pytest.raises(ConnectionError, match="lost before all weights were there: timed out"):
                await asyncio.to_thread(take, offer)

    worker = FakeWorker()

    monkeypatch.setattr(weight_transfer, "_SILENCE", 0.1)
    asyncio.run(scene())
    assert not any("two" in got for got in worker.loaded)


def test_servers_that_no_process_would_use_are_refused(tmp_path: Path) -> None:
    urls = ("--engine.kind", "vllm-server", "--engine.urls", "http://127.0.0.1:1", "http://127.0.0.1:2")
    flags = coin_flags(tmp_path / "run", "--warm-start.episodes", "0", *urls)
    assert train_cli(flags, tmp_path / "said") == 2
    assert "engine.urls names 2 servers" in " ".join((tmp_path / "said").read_text().split())


def test_a_server_that_lost_its_weights_gets_them_while_only_others_ask_it() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        other = engine(server, pushes=False)
        await asyncio.gather(sampler.load(weights(1)), other.load(weights(1)))
        server.die()
        await server.start()
        assert (await other.generate([5], ONE)).version == 1
        assert len(server.worker.loaded) == 1
        await other.close()

    play(scene, watch_every=0.05)


def test_two_runs_dont_take_each_others_weights() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(weights(1))
        stranger = engine(server, run="stranger")
        await stranger.load(weights(7))
        with pytest.raises(EngineGone, match=r"given the weights stranger@7\.1 while this run used it"):
            await sampler.generate([5], ONE)
        await stranger.close()

    play(scene)
