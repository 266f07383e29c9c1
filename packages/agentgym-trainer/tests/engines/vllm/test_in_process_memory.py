"""Tests of what vLLM on a GPU frees, keeps and loads again, with a fake vLLM in place of the GPU's."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from agentgym_trainer.engines.base import Completion, EngineGone, EngineUsage, SamplingParams, Weights
from agentgym_trainer.engines.batching import Batching
from agentgym_trainer.engines.vllm import in_process
from agentgym_trainer.engines.vllm.in_process import VllmCore
from vllm_pairs import require_vllm

pytestmark = pytest.mark.long  # imports vLLM


class FakeVllm:
    """Logs what happens to its memory, and refuses what would fail on a GPU. It answers each request at once."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self.asleep: set[str] = set()
        self.holds = "start"
        self.requests: list[str] = []
        self.model_config = SimpleNamespace(hf_text_config=SimpleNamespace(tie_word_embeddings=False))
        self.compiled = True
        shutdown = SimpleNamespace(detach=lambda: None)
        self.engine_core = SimpleNamespace(shutdown=self.shutdown, _finalizer=shutdown)
        self.model_executor = SimpleNamespace(shutdown=self.shutdown)
        self.resets = True

    def _finalizer(self) -> None:
        self.compiled = False

    def shutdown(self) -> None:
        assert not self.asleep
        assert not self.compiled
        self.log.append("shutdown")

    def sleep(self, level: int = 1) -> None:
        assert not self.asleep
        self.asleep = {"weights", "kv_cache"}
        self.holds = self.holds if level == 1 else "nothing"
        self.log.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        assert self.asleep >= set(tags)
        self.asleep -= set(tags)
        self.log.append(f"wake {' '.join(tags)}")

    def collective_rpc(self, method: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> None:
        if method == "reload_weights":
            assert "weights" not in self.asleep
            ((name, tensor),) = kwargs["weights_iterator"]
            self.holds = f"{name} {tensor.item():g}"
            self.log.append("reload")
        elif callable(method):
            assert "weights" not in self.asleep
            self.log.append("adapter")
        else:
            assert method == "synchronize_device"

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        assert reset_running_requests
        return self.resets

    def set_weight_version(self, version: str) -> None:
        self.version = version

    def add_request(self, number: str, prompt: Any, params: Any, lora_request: Any) -> None:
        assert not self.asleep
        self.requests.append(number)

    def step(self) -> list[Any]:
        assert not self.asleep
        assert self.holds != "nothing"
        self.log.append(f"sample {self.holds}")
        span = SimpleNamespace(version=self.version, start=0, end=1)
        reply = SimpleNamespace(finish_reason="stop", token_ids=[1], logprobs=None, weight_versions=[span])
        done, self.requests = self.requests, []
        common = {"outputs": [reply], "num_cached_tokens": 0, "prompt_token_ids": [5]}
        return [SimpleNamespace(request_id=number, **common) for number in done]


@pytest.fixture
def log() -> list[str]:
    return []


@pytest.fixture
def engine(log: list[str], monkeypatch: pytest.MonkeyPatch) -> Batching:
    """An engine whose vLLM believes that it is on a GPU."""
    require_vllm()
    config = SimpleNamespace(from_pretrained=lambda name: SimpleNamespace(max_position_embeddings=64))
    monkeypatch.setattr("transformers.AutoConfig", config)
    monkeypatch.setattr(in_process, "_start", lambda *args: FakeVllm(log))
    monkeypatch.setattr(in_process, "_adapter_request", lambda: "adapter")
    monkeypatch.setattr(VllmCore, "_at_work", lambda core: nullcontext())
    monkeypatch.setattr(VllmCore, "_params", lambda core, sampling: sampling)
    options = {"end_id": 1, "max_context": 64, "dtype": torch.bfloat16, "lora_rank": 0, "device": 0}
    return Batching(lambda usage: VllmCore("start", 0.4, usage, **options), in_thread=False)


def weights(version: int, **options: Any) -> Weights:
    """Return weights of one tensor, whose value is the version."""
    return Weights(version, lambda: iter([("weight", torch.tensor(float(version)))]), **options)


def play(engine: Batching, *actions: Callable[[], Any]) -> list[int]:
    """Run actions of the engine, and return the versions of its replies."""

    async def scene() -> list[int]:
        results = [await action() for action in actions]
        return [result.version for result in results if isinstance(result, Completion)]

    return asyncio.run(scene())


async def _generate(engine: Batching) -> Any:
    return await engine.generate([5], SamplingParams(max_tokens=1))


def test_weights_that_were_replaced_are_dropped_and_arrive_before_the_cache(engine: Batching, log: list[str]) -> None:
    def generate() -> Any:
        return _generate(engine)

    versions = play(
        engine, lambda: engine.load(weights(1)), generate, engine.sleep, lambda: engine.load(weights(2)), generate
    )
    assert versions == [1, 2]
    assert log == [
        "reload", "sample weight 1", "sleep 2", "wake weights", "reload", "wake kv_cache", "sample weight 2",
    ]  # fmt: skip


@pytest.mark.parametrize("lasting", [True, False])
def test_sampling_after_sleep_loads_the_same_weights_again(engine: Batching, log: list[str], lasting: bool) -> None:
    def generate() -> Any:
        return _generate(engine)

    passes = iter([weights(1)])
    once = Weights(1, lambda: next(passes).tensors(), lasting=False)
    given = weights(1) if lasting else once
    assert play(engine, lambda: engine.load(given), engine.sleep, engine.sleep, generate, generate) == [1, 1]
    assert log == [
        "reload", "sleep 2", "wake weights", "reload", "wake kv_cache", "sample weight 1", "sample weight 1",
    ]  # fmt: skip


def test_weights_that_vllm_started_with_are_kept(engine: Batching, log: list[str]) -> None:
    play(engine, engine.sleep, lambda: _generate(engine))
    assert log == ["sleep 1", "wake weights kv_cache", "sample start"]


def test_base_model_of_an_adapter_is_kept(engine: Batching, log: list[str]) -> None:
    def generate() -> Any:
        return _generate(engine)

    adapter = weights(1, adapter={"r": 1})
    assert play(engine, lambda: engine.load(adapter), engine.sleep, generate) == [1]
    assert log == ["adapter", "sleep 1", "wake weights kv_cache", "sample start"]


@pytest.mark.parametrize("grouped", [False, True])
def test_another_engine_can_start_once_one_that_slept_is_closed(
    engine: Batching, log: list[str], monkeypatch: pytest.MonkeyPatch, grouped: bool
) -> None:
    """vLLM's allocator can't free what is asleep, and compiled code keeps the weights until vLLM's finalizer runs."""
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: grouped)
    play(engine, lambda: engine.load(weights(1)), engine.sleep, engine.close)
    assert log == ["reload", "sleep 2", "wake weights kv_cache", "shutdown"]


def test_an_engine_that_cannot_be_woken_is_closed_with_a_warning(
    engine: Batching, log: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def out_of_memory(fake: FakeVllm, tags: list[str]) -> None:
        fake.asleep = set()
        raise RuntimeError("out of memory")

    monkeypatch.setattr(FakeVllm, "wake_up", out_of_memory)
    play(engine, engine.sleep, engine.close)
    assert log == ["sleep 1", "shutdown"]
    assert "out of memory" in caplog.text


def test_a_gpu_samples_all_conversations_at_a_time(engine: Batching, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Any] = []
    monkeypatch.setattr(in_process, "_start", lambda knobs, *args: started.append(knobs) or FakeVllm([]))
    options = {"end_id": 1, "max_context": 64, "dtype": torch.bfloat16, "lora_rank": 0, "device": 0}
    for concurrent in (256, 10_000, None):
        VllmCore("start", 0.4, EngineUsage(), concurrent=concurrent, **options)
    assert [knobs.get("max_num_seqs") for knobs in started] == [256, 1024, None]


def test_cache_that_cannot_be_reset_ends_the_engine(engine: Batching, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeVllm, "reset_prefix_cache", lambda *args, **kwargs: False)
    with pytest.raises(EngineGone, match="can't reset its prefix cache"):
        play(engine, lambda: engine.load(weights(1)))


def test_vllm_takes_the_calls_of_the_engine() -> None:
    require_vllm()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.llm_engine import LLMEngine
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner
        from vllm.v1.worker.gpu_worker import Worker

    signature(LLMEngine.sleep).bind(None, level=2)
    signature(LLMEngine.wake_up).bind(None, ["weights"])
    signature(LLMEngine.reset_prefix_cache).bind(None, reset_running_requests=True)
    signature(LLMEngine.set_weight_version).bind(None, "1")
    signature(LLMEngine.collective_rpc).bind(None, "reload_weights", kwargs={"weights_iterator": iter(())})
    signature(LLMEngine.collective_rpc).bind(None, print, args=(1,))
    signature(GPUModelRunner.reload_weights).bind(None, weights_iterator=iter(()))
    signature(Worker.synchronize_device).bind(None)
    signature(LLMEngine._cleanup_instance_caches).bind(None)
    assert UsageContext.LLM_CLASS.value == "LLM_CLASS"
