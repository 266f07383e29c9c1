"""vLLM in this process, on the device that also trains: the same code for its builds for CUDA and for CPUs.

It is told token ids and tells token ids; no tokenizer is loaded. Knows vLLM's parts, and nobody else does. vLLM is
imported when an engine is made: it takes seconds, and it is an extra.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import distributed

from agentgym_trainer.engines.base import Completion, Engine, EngineUsage, SamplingParams
from agentgym_trainer.engines.batching import Batching
from agentgym_trainer.engines.vllm.process import how_to_install, is_cpu_build, room_for
from agentgym_trainer.engines.vllm.worker import ADAPTER, check_heads, put_adapter, untied
from agentgym_trainer.models.weights import Weights

MISSING = f"The engine vllm needs vLLM, which isn't installed here: {how_to_install()}."


def vllm_engine(
    model: str,
    memory: float,
    *,
    end_id: int,
    max_context: int,
    dtype: torch.dtype,
    lora_rank: int = 0,
) -> Engine:
    """An engine for a model that lies in a folder, or that Hugging Face knows by name.

    Where `torch.distributed` is in use, every process makes an engine of its own, all at the same time.

    Args:
        model: Its weights are sampled from until others are loaded; beneath an adapter they stay.
        memory: Share of the GPU's memory that it takes, or GiB for its cache on a CPU.
        end_id: The token that ends a reply.
        max_context: The most tokens of a context and its reply; less where the model takes less.
        dtype: What it computes in.
        lora_rank: The rank of the adapters that will be loaded; 0 when whole models will be.

    Raises:
        ImportError: without vLLM; the message says how to install it.
        ValueError: when vLLM can't run the model, or the memory is too little.
    """
    if find_spec("vllm") is None:
        raise ImportError(MISSING)
    device = None if is_cpu_build() else torch.cuda.current_device()
    core = partial(
        VllmCore, model, memory, end_id=end_id, max_context=max_context, dtype=dtype, lora_rank=lora_rank,
        device=device,
    )  # fmt: skip
    return Batching(core, in_thread=True)


class VllmCore:
    """vLLM's own continuous batching, step by step."""

    def __init__(
        self,
        model: str,
        memory: float,
        usage: EngineUsage,
        *,
        end_id: int,
        max_context: int,
        dtype: torch.dtype,
        lora_rank: int,
        device: int | None,
    ) -> None:
        """Start vLLM on this GPU, or on the CPU where `device` is None. See `vllm_engine`."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(model)
        self.max_context: int = min(max_context, getattr(config, "max_position_embeddings", max_context))
        self._usage = usage
        self._end_id = end_id
        self._device = device
        self._adapter: Any = None
        self._asleep = False
        # It makes one if there is none yet; then it has to go again with the engine, and else it has to stay.
        self._owns_group = not distributed.is_initialized()
        knobs = {"model": model, "max_model_len": self.max_context, "dtype": dtype}
        with self._at_work():
            self._engine: Any = _start(knobs | _scheduling(memory, self.max_context, device), lora_rank, device)
            self._engine.set_weight_version("0")
        self._tied: bool = self._engine.model_config.hf_text_config.tie_word_embeddings

    def admit(self, number: int, ids: Sequence[int], sampling: SamplingParams) -> None:
        """Queue a request. Temperatures between 0 and 0.01 are 0.01 to vLLM."""
        from vllm.inputs.engine import tokens_input

        with self._at_work():
            self._wake()
            prompt, how = tokens_input(list(ids)), self._params(sampling)
            self._engine.add_request(str(number), prompt, how, lora_request=self._adapter)

    def step(self) -> list[tuple[int, Completion]]:
        """A forward pass for all."""
        with self._at_work():
            outputs = self._engine.step()
        return [(int(output.request_id), self._completion(output)) for output in outputs]

    def abort(self, numbers: Collection[int]) -> None:
        """Drop requests, whether they wait or are under way."""
        self._engine.abort_request([str(number) for number in numbers])

    def load(self, weights: Weights) -> None:
        """Copy a model's weights into vLLM's, or put an adapter in the place of the last one; and forget the cache.
        Requests under way are read again before they go on.
        """
        with self._at_work():
            self._wake()
            # First: where the scheduler runs ahead of the GPU, tokens of the old weights that haven't come out yet are
            # dropped, whatever they are, and sampled again with the new ones.
            self._engine.collective_rpc("synchronize_device")
            self._engine.reset_prefix_cache(reset_running_requests=True)
            if weights.adapter is None:
                tensors = untied(weights.tensors()) if self._tied else weights.tensors()
                self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
            else:
                self._engine.collective_rpc(put_adapter, args=(weights.tensors(), weights.adapter))
                self._adapter = _adapter_request()
            self._engine.set_weight_version(str(weights.version))

    def sleep(self) -> None:
        """Give the GPU's memory back: weights move to the host, the cache is dropped. On a CPU there is no such way."""
        if self._device is not None and not self._asleep:
            with self._at_work():
                self._engine.sleep(level=1)
            self._asleep = True

    def close(self) -> None:
        """Free everything."""
        client = self._engine.engine_core
        with self._at_work():
            if self._owns_group:
                client.shutdown()
            else:
                # Left to itself it would end the process group, which belongs to the training.
                client._finalizer.detach()
                self._engine.model_executor.shutdown()
        del self._engine
        gc.collect()
        if self._device is not None:
            torch.cuda.empty_cache()

    def _wake(self) -> None:
        if self._asleep:
            self._engine.wake_up()
            self._asleep = False

    def _params(self, sampling: SamplingParams) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            stop_token_ids=[self._end_id],
            # What the model's files call an end isn't one for our template.
            ignore_eos=True,
            logprobs=0 if sampling.temperature else None,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )

    def _completion(self, output: Any) -> Completion:
        reply = output.outputs[0]
        if reply.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"vLLM ended a reply with {reply.finish_reason!r}, which is neither stop nor length.")
        ids, reused = tuple(reply.token_ids), output.num_cached_tokens or 0
        self._usage.reused += reused
        self._usage.prefilled += len(output.prompt_token_ids) - reused
        self._usage.generated += len(ids)
        # None were asked for where the reply is greedy.
        chances = reply.logprobs or [None] * len(ids)
        logprobs = tuple(chance[token].logprob if chance else 0.0 for token, chance in zip(ids, chances, strict=True))
        versions = [int(span.version) for span in reply.weight_versions for _ in range(span.start, span.end)]
        return Completion.sampled(ids, logprobs, reply.finish_reason, versions)

    @contextmanager
    def _at_work(self) -> Generator[None]:
        """Every thread has a current GPU of its own, and on a CPU a number of threads, which vLLM's kernels must find
        set. There nothing is compiled: it would take longer than it saves.
        """
        with ExitStack() as stack:
            if self._device is None:
                torch.set_num_threads(torch.get_num_threads())
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            else:
                stack.enter_context(torch.cuda.device(self._device))
            yield


def _start(knobs: Mapping[str, Any], lora_rank: int, device: int | None) -> Any:
    """Start vLLM with these of its arguments, and undo what else it does to this process."""
    set_threads = torch.set_num_threads
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    _let_llvmlite_pass()
    try:
        with warnings.catch_warnings(), torch.random.fork_rng([] if device is None else [device]):
            warnings.simplefilter("ignore")
            return _llm_engine({**knobs, **_adapters(lora_rank)}, device)
    finally:
        torch.set_num_threads = set_threads


def _let_llvmlite_pass() -> None:
    """VLLM looks for kernels in all that is imported. Where a world searches, numba is, and with it llvmlite, whose
    library makes a function of any name that it is asked for: vLLM takes the one called `__dict__` for a dictionary.
    """
    if ffi := sys.modules.get("llvmlite.binding.ffi"):
        ffi.lib._fntab.setdefault("__dict__", {})


def _llm_engine(knobs: Mapping[str, Any], device: int | None) -> Any:
    from vllm import EngineArgs
    from vllm.config.logging import LoggingConfig
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    class Here(UniProcExecutor):
        """A worker in this process, on this GPU, and this process's place in the training's process group."""

        def _distributed_args(self) -> tuple[str, int, int]:
            address, rank, _ = super()._distributed_args()
            return address, distributed.get_rank() if distributed.is_initialized() else rank, device or 0

    arguments = EngineArgs(
        **knobs,
        distributed_executor_backend=Here,
        skip_tokenizer_init=True,
        generation_config="vllm",  # the model's own defaults, such as top_k, would change what is sampled
        logprobs_mode="processed_logprobs",
        enable_prefix_caching=True,
        disable_log_stats=True,
        use_tqdm_on_load=False,
        logging_config=LoggingConfig(log_level="CRITICAL"),
    )
    config = arguments.create_engine_config()
    if device is None:
        check_heads(config.model_config)
    return LLMEngine(config, Here, log_stats=False, multiprocess_mode=False)


def _scheduling(memory: float, max_context: int, device: int | None) -> dict[str, Any]:
    """Of a GPU's memory a share, all of it to be lent back; on a CPU so many GiB for keys and values."""
    if device is not None:
        return {"gpu_memory_utilization": memory, "enable_sleep_mode": True}
    return {
        "kv_cache_memory_bytes": int(memory * 2**30),
        # Only whole blocks are reused; 32 tokens are the fewest that vLLM's kernels for CPUs like.
        "block_size": 32,
        # A prompt read in pieces would rewind its request's generator, which generators of CPUs can't.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(2048, max_context),
        "enforce_eager": True,
    }


def _adapters(rank: int) -> dict[str, Any]:
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": room_for(rank)} if rank else {}


def _adapter_request() -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest("policy", ADAPTER, "in memory")
