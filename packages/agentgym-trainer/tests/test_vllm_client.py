"""The engine vllm-server against a server of a few lines: faults, and who waits for whom. The real one has tests of its
own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from agentgym_trainer.engines import Completion, EngineGone, Sampling, Usage
from agentgym_trainer.engines.vllm_http import VllmHttp
from agentgym_trainer.engines.vllm_process import Serving, VllmProcess, room_for
from agentgym_trainer.engines.vllm_server import VllmServer
from agentgym_trainer.engines.wire import fetch, offered
from agentgym_trainer.weights import Weights
from fake_vllm import FakeServer
from torch import Tensor

TENSORS = {
    "matrix": torch.arange(6.0).reshape(2, 3),
    "slanted": torch.arange(6.0).reshape(2, 3).T,
    "number": torch.tensor(3.5),
    "nothing": torch.empty(0, 4),
    "count": torch.tensor([7], dtype=torch.int64),
}
ONE = Sampling(max_tokens=16, seed=11)


def weights(version: int, **how: Any) -> Weights:
    return Weights(version, lambda: iter({**TENSORS, "version": torch.tensor(float(version))}.items()), **how)


def engine(server: FakeServer | Any, **how: Any) -> VllmServer:
    where = server.url if isinstance(server, FakeServer) else server
    return VllmServer(where, **{"run": "run", "end_id": 2, "max_context": 64, "patience": 30.0} | how)


def play(scene: Callable[[FakeServer, VllmServer], Awaitable[None]], **how: Any) -> None:
    """Run a scene with a server and an engine that asks it."""

    async def scenery() -> None:
        server = FakeServer()
        await server.start()
        sampler = engine(server, **how)
        try:
            async with asyncio.timeout(60):
                await scene(server, sampler)
        finally:
            await sampler.close()
            server.die()

    asyncio.run(scenery())


def test_ids_go_in_and_ids_come_out() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        assert await sampler.generate([5, 6, 7], ONE) == Completion((3, 11), (-0.5, -1.0), "stop", 0)
        greedy = replace(ONE, temperature=0.0, max_tokens=9)
        assert (await sampler.generate((5, 6), greedy)).logprobs == (0.0, 0.0)
        body = server.asked[-1][1]
        assert body == {
            "token_ids": [5, 6],
            "sampling_params": {
                "temperature": 0.0, "max_tokens": 9, "seed": 11, "stop_token_ids": [2], "ignore_eos": True,
                "logprobs": 0, "detokenize": False,
            },
        }  # fmt: skip
        assert sampler.usage == Usage(prefilled=2, reused=3, generated=4, busy=sampler.usage.busy)
        assert sampler.usage.busy > 0

    play(scene)


def test_requests_that_cant_be_met_are_refused() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        with pytest.raises(ValueError, match="60 tokens and a reply of up to 5 are more than the 64"):
            await sampler.generate([5] * 60, Sampling(max_tokens=5))
        with pytest.raises(ValueError, match=r"temperature of 0 or from 0\.01"):
            await sampler.generate([5], Sampling(temperature=0.001))
        server.instead["/inference/v1/generate"] = [lambda: (400, {"error": {"message": "token 9 is out of range"}})]
        with pytest.raises(ValueError, match="token 9 is out of range"):
            await sampler.generate([9], ONE)
        assert (await sampler.generate([5], ONE)).ids == (1, 11)

    play(scene, max_context=64)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_arrive_as_they_are_while_nothing_is_sampled(dtype: torch.dtype) -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.worker.vllm_config.model_config.dtype = dtype
        await sampler.load(weights(4))
        (got,) = server.worker.loaded
        for name, tensor in TENSORS.items():
            assert torch.equal(got[name], tensor.to(dtype) if tensor.is_floating_point() else tensor)
        pushed = server.paths[server.paths.index("/pause") :]
        assert pushed == [
            "/pause", "/update_weight_version", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version",
            "/resume",
        ]  # fmt: skip
        assert sampler.version == (await sampler.generate([5], ONE)).version == 4

    play(scene)


def test_a_tied_head_is_sent_once_with_or_without_its_name() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.worker.vllm_config.model_config.hf_text_config.tie_word_embeddings = True
        tied = {"model.embed_tokens.weight": torch.ones(2, 2), "lm_head.weight": torch.ones(2, 2)}
        for names in (tied, list(tied)[:1]):
            await sampler.load(Weights(1, lambda names=names: iter((name, tied[name]) for name in names)))
            assert list(server.worker.loaded[-1]) == list(tied)

    play(scene)


def test_adapters_are_adapters_and_named_once() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        for version in (2, 3):
            await sampler.load(weights(version, adapter={"r": 4, "target_modules": {"b", "a"}}))
            assert server.worker.loaded[-1]["config"] == {"r": 4, "target_modules": ["a", "b"]}
            assert server.worker.loaded[-1]["version"] == version
            assert (await sampler.generate([5], ONE)).version == version
            assert server.asked[-1][1]["model"] == "run"
        assert server.paths.count("/v1/load_lora_adapter") == 1
        server.die()
        await server.start()
        assert (await sampler.generate([5], ONE)).version == 3
        assert server.adapters == {"run"}

    play(scene)


def test_a_load_lets_replies_end_and_new_ones_wait() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(weights(1))
        server.answering.clear()
        server.asked.clear()
        before = [asyncio.create_task(sampler.generate([5], ONE)) for _ in range(5)]
        while server.sampling < 5:
            await asyncio.sleep(0.001)
        loading = asyncio.create_task(sampler.load(weights(2)))
        while "/pause" not in server.paths:
            await asyncio.sleep(0.001)
        after = [asyncio.create_task(sampler.generate([5], ONE)) for _ in range(5)]
        await asyncio.sleep(0.01)
        assert not loading.done()
        server.answering.set()
        assert {reply.version for reply in await asyncio.gather(*before)} == {1}
        assert {reply.version for reply in await asyncio.gather(*after)} == {2}
        await loading

    play(scene)


def test_a_server_that_comes_back_gets_requests_and_weights_again() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(weights(3))
        server.answering.clear()
        asking = [asyncio.create_task(sampler.generate([5] * n, ONE)) for n in range(1, 9)]
        while server.sampling < 8:
            await asyncio.sleep(0.001)
        server.die()
        await asyncio.sleep(0.05)
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
        while stuck["/collective_rpc"]:
            await asyncio.sleep(0.001)
        await server.start()
        await loading
        assert [float(got["version"]) for got in server.worker.loaded] == [4.0]

    play(scene)


def _hello() -> tuple[int, Any]:
    said = {"dtype": "float32", "logprobs_mode": "processed_logprobs", "max_context": 64, "lora_rank": 0}
    return 200, {"results": [said]}


@pytest.mark.parametrize("labels", [["default"], ["run@1.1", "run@2.2"], []], ids=["lost", "two", "none"])
def test_a_reply_that_isnt_by_one_version_of_ours_is_sampled_again(labels: list[str]) -> None:
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
        with pytest.raises(EngineGone, match=r"away for 0\.3 s: a reply ended by abort"):
            await sampler.generate([5], ONE)

    play(scene, patience=0.3)


def test_patience_has_an_end_and_everybody_is_told() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(weights(1))
        server.die()
        said = await asyncio.gather(*(sampler.generate([5], ONE) for _ in range(4)), return_exceptions=True)
        for error in said:
            assert isinstance(error, EngineGone)
            assert f"{server.url} has been away for 0.2 s: ConnectError" in str(error)

    play(scene, patience=0.2)


def test_a_server_that_hangs_is_away_and_one_that_is_slow_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        sampler._http = VllmHttp(server.url, pulse=0.05)
        server.seconds = 0.3
        assert (await sampler.generate([5], ONE)).ids == (1, 11)
        assert server.paths.count("/health") > 2
        server.well = False
        with pytest.raises(EngineGone, match=r"away for 0\.4 s: ReadTimeout"):
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
    [("logprobs_mode", "raw_logprobs", "gives raw_logprobs"), ("max_model_len", 32, "--max-model-len 64")],
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


def test_a_request_given_up_is_no_longer_sampled() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        server.answering.clear()
        asking = asyncio.create_task(sampler.generate([5], ONE))
        while not server.sampling:
            await asyncio.sleep(0.001)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        while server.sampling:
            await asyncio.sleep(0.001)
        assert len(asyncio.all_tasks()) <= 2  # this one, and the server's, on its way out

    play(scene)


def test_of_processes_that_share_a_server_one_pushes_and_the_others_wait() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        other = engine(server, pushes=False)
        waiting = asyncio.create_task(other.load(weights(1)))
        while "/weight_info" not in server.paths:
            await asyncio.sleep(0.001)
        assert not waiting.done()
        await sampler.load(weights(1))
        await waiting
        assert (await other.generate([5], ONE)).version == other.version == 1
        assert len(server.worker.loaded) == 1
        await other.close()

    play(scene)


def test_two_runs_dont_take_each_others_weights() -> None:
    async def scene(server: FakeServer, sampler: VllmServer) -> None:
        await sampler.load(weights(1))
        stranger = engine(server, run="stranger")
        await stranger.load(weights(7))
        with pytest.raises(EngineGone, match=r"given the weights stranger@7\.1 while this run used it"):
            await sampler.generate([5], ONE)
        await stranger.close()

    play(scene)


def test_weights_are_only_for_those_who_know_the_secret() -> None:
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


@dataclass(frozen=True)
class Script:
    """Any program in vLLM's place."""

    lines: str

    def command(self, port: int) -> list[str]:
        return [sys.executable, "-c", self.lines, str(port)]


FAMILY = """
import subprocess, sys, time
print(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
time.sleep(600)
"""
OWNER = f"""
import sys, time
from pathlib import Path
from types import SimpleNamespace
from agentgym_trainer.engines.vllm_process import VllmProcess
VllmProcess(SimpleNamespace(command=lambda port: [sys.executable, "-c", {FAMILY!r}]), Path(sys.argv[1])).start()
time.sleep(600)
"""


def test_our_server_ends_with_all_its_children_when_we_are_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(log)])
    while not log.is_file() or not log.read_text().endswith("\n"):
        assert owner.poll() is None
        time.sleep(0.01)
    child = psutil.Process(int(log.read_text()))
    family = [*psutil.Process(owner.pid).children(recursive=True)]
    assert child in family and len(family) == 3
    owner.kill()
    owner.wait()
    gone, alive = psutil.wait_procs(family, timeout=60)
    assert len(gone) == 3 and not alive


def test_a_server_of_ours_that_dies_is_started_once_more(tmp_path: Path) -> None:
    async def scene() -> None:
        process: Any = VllmProcess(Script("import sys; sys.exit('an error that it has')"), tmp_path / "log")
        sampler = engine(process)
        with pytest.raises(EngineGone, match="died again after a restart: an error that it has"):
            await sampler.generate([5], ONE)
        assert process.log.read_text().count("an error") == 2
        await sampler.close()
        await sampler.close()

    asyncio.run(scene())


def test_the_command_line_of_a_server_of_ours() -> None:
    serving = Serving(Path("start"), max_context=64, dtype="bfloat16", memory=0.5, devices="2,3", lora_rank=12)
    command = serving.command(8000)
    assert command[command.index("--max-model-len") + 1] == "64"
    assert command[command.index("--max-lora-rank") + 1] == "16" and "--enable-lora" in command
    assert "CUDA_VISIBLE_DEVICES=2,3" in command
    assert not {"--enable-lora", "CUDA_VISIBLE_DEVICES="} & {*replace(serving, devices="", lora_rank=0).command(1)}
    assert [room_for(rank) for rank in (1, 2, 8, 500, 9999)] == [1, 8, 8, 512, 9999]
