"""An engine over transformers' own continuous batching, which `rollout.py` compares with the engine `transformers`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from agentgym_trainer.engines.base import Completion, EngineUsage, SamplingParams
from agentgym_trainer.models.weights import Weights
from transformers import ContinuousBatchingConfig, GenerationConfig

PAGE = 32
"""Tokens per page of the KV cache: only whole pages are shared between requests, and the default of 256 is longer than
most prompts here."""


class ContinuousBatchingEngine:
    """Samples with `ContinuousBatchingManager`, which computes in a thread of its own.

    It lacks what training needs: the seed of a request is ignored, because all requests draw from torch's global random
    generator, and all have the same temperature, which is 1.
    """

    def __init__(self, model: Any, *, end_id: int, max_context: int, requests: int = 64) -> None:
        """Start the thread.

        Args:
            model: The model, whose attention implementation changes until `close`.
            end_id: The token that ends a completion.
            max_context: The maximum number of tokens of a context and its completion.
            requests: The maximum number of concurrent requests.
        """
        self.version, self.usage, self.max_context = 0, EngineUsage(), max_context
        self._manager = model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=True, temperature=1.0, top_k=0, eos_token_id=end_id),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE,
                num_blocks=2 * requests * max_context // PAGE,
                max_batch_tokens=4096,
                max_requests_per_batch=requests,
                return_logprobs=True,
                use_cuda_graph=False,
                use_async_batching=False,
                seed=0,
            ),
        )
        self._manager.start()
        self._pending, self._since = 0, 0.0

    async def generate(self, ids: Sequence[int], sampling: SamplingParams) -> Completion:
        """Sample a completion. See `Engine.generate`."""
        loop = asyncio.get_running_loop()
        finished: asyncio.Future[Any] = loop.create_future()
        if self._pending == 0:
            self._since = time.perf_counter()
        self._pending += 1
        request = f"r{self.usage.generated}-{id(finished)}"
        self._manager.register_result_handler(request, finished.set_result)
        self._manager.add_request(list(ids), request_id=request, max_new_tokens=sampling.max_tokens)
        output = await finished
        self._pending -= 1
        if self._pending == 0:
            self.usage.busy += time.perf_counter() - self._since
        self.usage.generated += len(output.generated_tokens)
        self.usage.prefilled += len(ids)
        full = len(output.generated_tokens) == sampling.max_tokens
        return Completion(
            tuple(output.generated_tokens), tuple(output.logprobs), "length" if full else "stop", self.version
        )

    async def load(self, weights: Weights) -> None:
        """Only update the version: the weights are shared with the model."""
        self.version = weights.version

    async def sleep(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """End the thread."""
        if self._manager.is_running():
            await asyncio.to_thread(self._manager.stop)
