"""vLLM in this process, on the device that also trains, for both the CUDA and the CPU build of vLLM.

Inputs and outputs are token ids; no tokenizer is loaded. Of this package only this module and `worker` depend on vLLM's
internals. vLLM is an optional extra whose import takes seconds, so it is imported when an engine is created.
"""

from __future__ import annotations

import gc
import logging
import sys
import warnings
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import distributed

from agentgym_trainer.engines.base import Completion, Engine, EngineUsage, SamplingParams
from agentgym_trainer.engines.batching import Batching
from agentgym_trainer.engines.vllm.process import how_to_install, is_cpu_build, supported_rank
from agentgym_trainer.engines.vllm.worker import ADAPTER, check_heads, put_adapter, untied
from agentgym_trainer.models.weights import Weights

_logger = logging.getLogger(__name__)
_MOST_CONCURRENT = 1024
"""The most completions at a time that vLLM chooses by itself; it reserves memory for their logits."""
MISSING = f"The engine vllm needs vLLM, which isn't installed here: {how_to_install()}."


def vllm_engine(
    model: str,
    memory: float,
    *,
    end_id: int,
    max_context: int,
    dtype: torch.dtype,
    lora_rank: int = 0,
    device: torch.device | None = None,
    concurrent: int | None = None,
) -> Engine:
    """Return an engine for a model in a local folder or on the Hugging Face Hub.

    With `torch.distributed`, every process creates an engine of its own, all at the same time.

    Args:
        model: The initial weights; they stay the base model of adapters.
        memory: Share of the GPU's memory that vLLM uses, or GiB for its KV cache on a CPU.
        end_id: The token that ends a completion.
        max_context: The maximum number of tokens of a context and its completion; limited by the model's own maximum.
        dtype: The data type of the computation.
        lora_rank: The rank of the adapters that will be loaded; 0 when whole models will be.
        device: The device that trains; None: the current GPU. The CPU build of vLLM always uses the CPU.
        concurrent: Number of completions that a GPU samples at a time, at most 1,024; None: vLLM's own.

    Raises:
        ImportError: when vLLM isn't installed; the message says how to install it.
        ValueError: when vLLM can't run the model or needs a GPU that isn't used, or the memory is too small.
    """
    if find_spec("vllm") is None:
        raise ImportError(MISSING)
    core = partial(
        VllmCore, model, memory, end_id=end_id, max_context=max_context, dtype=dtype, lora_rank=lora_rank,
        device=_gpu(device), concurrent=concurrent,
    )  # fmt: skip
    return Batching(core, in_thread=True, dtype=dtype)


def _gpu(device: torch.device | None) -> int | None:
    """Return the index of the current GPU, or None for the CPU build of vLLM.

    Raises:
        ValueError: when the CUDA build is installed, and there is no GPU, or the run doesn't use it.
    """
    if is_cpu_build():
        return None
    if not torch.cuda.is_available() or (device is not None and device.type != "cuda"):
        raise ValueError(
            "the installed build of vLLM needs a GPU, and this run uses the CPU; choose the engine transformers, or "
            f"install the build that fits: {how_to_install()}."
        )
    return torch.cuda.current_device()


class VllmCore:
    """A `Core` that drives vLLM's own continuous batching step by step."""

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
        concurrent: int | None = None,
    ) -> None:
        """Start vLLM on this GPU, or on the CPU where `device` is None. See `vllm_engine`."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(model)
        self.max_context: int = min(max_context, getattr(config, "max_position_embeddings", max_context))
        self._usage = usage
        self._end_id = end_id
        self._device = device
        self._adapter: Any = None
        self._replaced = False
        """Whether the weights are no longer those that vLLM started with."""
        self._asleep: tuple[str, ...] = ()
        """What vLLM has freed."""
        # vLLM creates a process group if there is none yet. Only then may closing the engine destroy it.
        self._owns_group = not distributed.is_initialized()
        knobs = {"model": model, "max_model_len": self.max_context, "dtype": dtype}
        with self._at_work():
            scheduling = _scheduling(memory, self.max_context, device, concurrent)
            self._engine: Any = _start(knobs | scheduling, lora_rank, device)
            self._engine.set_weight_version("0")
        self._tied: bool = self._engine.model_config.hf_text_config.tie_word_embeddings

    def admit(self, number: int, ids: Sequence[int], sampling: SamplingParams) -> None:
        """Queue a request. vLLM raises temperatures between 0 and 0.01 to 0.01."""
        from vllm.inputs.engine import tokens_input

        with self._at_work():
            self._wake("weights", "kv_cache")
            prompt, params = tokens_input(list(ids)), self._params(sampling)
            self._engine.add_request(str(number), prompt, params, lora_request=self._adapter)

    def step(self) -> list[tuple[int, Completion]]:
        """Run one forward pass for all requests."""
        with self._at_work():
            outputs = self._engine.step()
        return [(int(output.request_id), self._completion(output)) for output in outputs]

    def abort(self, numbers: Collection[int]) -> None:
        """Drop requests, whether they are queued or running."""
        self._engine.abort_request([str(number) for number in numbers])

    def load(self, weights: Weights) -> None:
        """Copy a model's weights into vLLM's, or replace the adapter, and reset the prefix cache.

        Running requests are prefilled again before they continue.

        Raises:
            RuntimeError: when the prefix cache can't be reset.
        """
        with self._at_work():
            # Memory for the cache isn't needed yet, so the learner's weights and the gathered ones fit more easily.
            self._wake("weights")
            # First, because the scheduler may run ahead of the GPU: tokens of the old weights that haven't been
            # returned yet are dropped and sampled again with the new weights.
            self._engine.collective_rpc("synchronize_device")
            if not self._engine.reset_prefix_cache(reset_running_requests=True):
                raise RuntimeError("vLLM can't reset its prefix cache, which holds values of the old weights.")
            if weights.adapter is None:
                tensors = untied(weights.tensors()) if self._tied else weights.tensors()
                self._engine.collective_rpc("reload_weights", kwargs={"weights_iterator": tensors})
                self._replaced = True
            else:
                self._engine.collective_rpc(put_adapter, args=(weights.tensors(), weights.adapter))
                self._adapter = _adapter_request()
            # An update that starts after this must not change tensors that are still being read.
            self._engine.collective_rpc("synchronize_device")
            self._wake("kv_cache")
            self._engine.set_weight_version(str(weights.version))

    def sleep(self) -> bool:
        """Free the GPU's memory. On a CPU, vLLM doesn't support it.

        Weights that were loaded are dropped, and have to be loaded again. Those that vLLM started with, such as the
        base model of an adapter, are moved to the host.
        """
        if self._device is None or self._asleep:
            return False
        with self._at_work():
            self._engine.sleep(level=2 if self._replaced else 1)
        self._asleep = ("weights", "kv_cache")
        return self._replaced

    def close(self) -> None:
        """Free everything, so that another engine can start in this process."""
        client = self._engine.engine_core
        with self._at_work():
            try:
                # vLLM's allocator reports an error at the next allocation if what it frees is asleep.
                self._wake("weights", "kv_cache")
            except Exception as error:  # noqa: BLE001 - of a core that died, the rest must be freed whatever is raised
                _logger.warning("vLLM can't be woken to be closed, so this process may have no other one: %r", error)
            # What compiled code refers to. vLLM does this when the engine is collected, if the model is still there.
            self._engine._finalizer()
            if self._owns_group:
                client.shutdown()
            else:
                # vLLM's own shutdown would destroy the process group, which belongs to the training.
                client._finalizer.detach()
                self._engine.model_executor.shutdown()
        del self._engine
        gc.collect()
        if self._device is not None:
            torch.cuda.empty_cache()

    def _wake(self, *tags: str) -> None:
        """Allocate again what vLLM has freed of these: weights and kv_cache."""
        if freed := [tag for tag in tags if tag in self._asleep]:
            self._engine.wake_up(freed)
            self._asleep = tuple(tag for tag in self._asleep if tag not in freed)

    def _params(self, sampling: SamplingParams) -> Any:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        return SamplingParams(
            temperature=sampling.temperature,
            max_tokens=sampling.max_tokens,
            seed=sampling.seed,
            stop_token_ids=[self._end_id],
            # The end tokens in the model's files may differ from the one of our chat template.
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
        # Greedy requests don't ask for log-probabilities.
        by_position = reply.logprobs or [None] * len(ids)
        logprobs = tuple(found[token].logprob if found else 0.0 for token, found in zip(ids, by_position, strict=True))
        versions = [int(span.version) for span in reply.weight_versions for _ in range(span.start, span.end)]
        return Completion.sampled(ids, logprobs, reply.finish_reason, versions)

    @contextmanager
    def _at_work(self) -> Generator[None]:
        """Set up the calling thread: its current GPU, or on a CPU its number of threads, which vLLM's kernels require.

        On a CPU, nothing is compiled: it would take longer than it saves.
        """
        with ExitStack() as stack:
            if self._device is None:
                torch.set_num_threads(torch.get_num_threads())
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            else:
                stack.enter_context(torch.cuda.device(self._device))
            yield


def _start(knobs: Mapping[str, Any], lora_rank: int, device: int | None) -> Any:
    """Start vLLM with these arguments, and undo its side effects on this process."""
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
    """Work around a crash of vLLM when llvmlite is imported.

    vLLM looks for kernels in all imported modules. Environments with search import numba and thereby llvmlite, whose
    library creates a function for any attribute: vLLM would take the one called `__dict__` for a dictionary.
    """
    if ffi := sys.modules.get("llvmlite.binding.ffi"):
        ffi.lib._fntab.setdefault("__dict__", {})


def _llm_engine(knobs: Mapping[str, Any], device: int | None) -> Any:
    from vllm import EngineArgs
    from vllm.config.logging import LoggingConfig
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    statistics: Any = import_module("vllm.usage.usage_lib")
    statistics._USAGE_STATS_ENABLED = False  # a server gets an environment variable instead

    class Here(UniProcExecutor):
        """A worker in this process, on this GPU, with this process's rank in the training's process group."""

        def _distributed_args(self) -> tuple[str, int, int]:
            address, rank, _ = super()._distributed_args()
            return address, distributed.get_rank() if distributed.is_initialized() else rank, device or 0

    arguments = EngineArgs(
        **knobs,
        distributed_executor_backend=Here,
        skip_tokenizer_init=True,
        generation_config="vllm",  # the model's own defaults, such as top_k, would change the sampling distribution
        logprobs_mode="processed_logprobs",
        enable_prefix_caching=True,
        disable_log_stats=True,
        use_tqdm_on_load=False,
        logging_config=LoggingConfig(log_level="CRITICAL"),
    )
    # Larger batches than those of an unknown use, which a GPU would be idle with.
    config = arguments.create_engine_config(UsageContext.LLM_CLASS)
    if device is None:
        check_heads(config.model_config)
    return LLMEngine(config, Here, log_stats=False, multiprocess_mode=False)


def _scheduling(memory: float, max_context: int, device: int | None, concurrent: int | None) -> dict[str, Any]:
    """Return the settings of batches and memory: a share of the GPU's that `sleep` can free, or GiB for a CPU's KV
    cache.
    """
    if device is not None:
        batch = {} if concurrent is None else {"max_num_seqs": min(concurrent, _MOST_CONCURRENT)}
        return {"gpu_memory_utilization": memory, "enable_sleep_mode": True, **batch}
    return {
        "kv_cache_memory_bytes": int(memory * 2**30),
        # Only whole blocks are reused; 32 tokens is the smallest block size of vLLM's CPU kernels.
        "block_size": 32,
        # Chunked prefill would rewind the request's random generator, which CPU generators don't support.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(2048, max_context),
        "enforce_eager": True,
    }


def _adapters(rank: int) -> dict[str, Any]:
    return {"enable_lora": True, "max_loras": 1, "max_lora_rank": supported_rank(rank)} if rank else {}


def _adapter_request() -> Any:
    from vllm.lora.request import LoRARequest

    return LoRARequest("policy", ADAPTER, "in memory")
