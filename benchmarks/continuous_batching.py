"""Compare the engine `transformers` with the continuous batching of the transformers library, on random requests.

    uv run python benchmarks/continuous_batching.py --requests 8 64 --repeats 3 --out continuous-batching.json

A small model with random weights samples trajectories of six turns; groups of eight share their prompt. The engines
alternate in one process, on one thread. `rollout.py --engines transformers continuous-batching` compares the two with
environments.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.engines.base import Completion, Engine, EngineUsage, SamplingParams
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.models.scratch import build_model
from agentgym_trainer.models.weights import Weights
from harness import arguments, quiet, show, write_json
from transformers import ContinuousBatchingConfig, GenerationConfig

MODEL = Scratch(vocab=512, hidden=128, layers=3, heads=4, context=2048)
PROMPT, TURNS, OBSERVATION, REPLY = 250, 6, 40, (8, 60)
"""Tokens of a prompt, turns, tokens of an observation, and the range of a reply's budget."""

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
                num_blocks=requests * max_context // PAGE // 2,
                # Without flash attention, the mask is a dense matrix of this many rows and a column per cached token.
                max_batch_tokens=512,
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

    async def sleep(self) -> bool:
        """Do nothing."""
        return False

    async def close(self) -> None:
        """End the thread."""
        if self._manager.is_running():
            await asyncio.to_thread(self._manager.stop)


async def sample_trajectories(engine: Engine, count: int) -> int:
    """Sample trajectories concurrently, and return the number of completion tokens."""
    prompts = np.random.default_rng(0).integers(2, MODEL.vocab, (-(-count // 8), PROMPT)).tolist()

    async def sample(number: int) -> int:
        rng = np.random.default_rng(number)
        ids, tokens = list(prompts[number // 8]), 0
        for turn in range(TURNS):
            budget = int(rng.integers(*REPLY))
            reply = await engine.generate(ids, SamplingParams(1.0, budget, seed=number * TURNS + turn))
            ids += [*reply.ids, *rng.integers(2, MODEL.vocab, OBSERVATION).tolist()]
            tokens += len(reply.ids)
        return tokens

    return sum(await asyncio.gather(*map(sample, range(count))))


@torch.no_grad()
async def measure(name: str, count: int) -> dict[str, Any]:
    """Measure an engine with a number of concurrent trajectories."""
    model = build_model(MODEL, vocab=MODEL.vocab, end_id=0, pad_id=1, seed=0).eval()
    engine: Engine = (
        transformers_engine(model, end_id=0)
        if name == "transformers"
        else ContinuousBatchingEngine(model, end_id=0, max_context=MODEL.context // 2, requests=count)
    )
    began, used = time.perf_counter(), time.process_time()
    tokens = await sample_trajectories(engine, count)
    seconds, processor = time.perf_counter() - began, time.process_time() - used
    await engine.close()
    return {"engine": name, "requests": count, "tokens": tokens, "seconds": seconds, "processor": processor}


def table(trials: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return a row for each number of requests and engine."""
    kinds: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for trial in trials:
        kinds.setdefault((trial["requests"], trial["engine"]), []).append(trial)
    return [
        {
            "requests": str(count),
            "engine": engine,
            "tokens/s": f"{median(one['tokens'] / one['seconds'] for one in found):,.0f}",
            "tokens per second of CPU time": f"{median(one['tokens'] / one['processor'] for one in found):,.0f}",
        }
        for (count, engine), found in kinds.items()
    ]


def main() -> None:
    """Measure, print a table and write JSON."""
    parser = arguments(__doc__, "out", "repeats", out=Path("runs/continuous-batching.json"), repeats=3)
    parser.add_argument("--requests", type=int, nargs="+", default=[8, 64], help="numbers of concurrent trajectories")
    settings = parser.parse_args()
    quiet()
    trials = [
        asyncio.run(measure(name, count))
        for count in settings.requests
        for _ in range(settings.repeats)
        for name in ("transformers", "continuous-batching")
    ]
    write_json(settings.out, {"trials": trials})
    show("Engines", table(trials))


if __name__ == "__main__":
    main()
