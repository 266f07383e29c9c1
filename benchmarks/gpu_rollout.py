"""Sampling on a GPU: tokens/s of an engine by the number of concurrent trajectories, and its prefill.

    uv run python benchmarks/gpu_rollout.py --out gpu-rollout.json
    uv run --extra vllm python benchmarks/gpu_rollout.py --engines transformers vllm
    uv run python benchmarks/gpu_rollout.py --device cpu --tiny      # only shows that the script works

This script hasn't been run on a GPU yet, only with `--tiny` on a CPU.

A model with the architecture of Qwen2.5-0.5B and random weights in bfloat16; groups of 8 trajectories with the same
prompt; 6 turns; a prompt of 600 tokens, replies of 20 to 180, observations of 20 to 200. Environments respond
immediately; `rollout.py` measures with real ones. `prefill` is relative to an ideal prefix cache.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agentgym_trainer.engines.base import Engine, SamplingParams
from harness import arguments, device_name, show, write_json
from synthetic import Lengths, Shape, random_qwen2

GROUP = 8


@dataclass(frozen=True, slots=True)
class Talk:
    """Lengths of the trajectories, in tokens."""

    turns: int = 6
    prompt: int = 600
    said: Lengths = (20, 180)
    """Of a reply."""
    observed: Lengths = (20, 200)
    """Of an observation."""


@dataclass(frozen=True, slots=True)
class Measured:
    """An engine with a number of concurrent trajectories."""

    engine: str
    trajectories: int
    seconds: float
    tokens_per_second: float
    busy: float
    """Share of the time in which the engine computed."""
    over_minimum: float
    """Prefilled tokens, relative to the minimum."""
    peak_gb: float


def open_engine(kind: str, model: Any, folder: Path, shape: Shape) -> Engine:
    """Return the engine of this name. Replies end at their token limit: the end token is hardly ever sampled."""
    end_id = shape.vocab - 1
    if kind == "transformers":
        from agentgym_trainer.engines.hf.engine import transformers_engine

        return transformers_engine(model, end_id=end_id)
    from agentgym_trainer.engines.vllm.in_process import vllm_engine

    return vllm_engine(str(folder), 0.4, end_id=end_id, max_context=shape.context, dtype=model.dtype)


async def play(engine: Engine, talk: Talk, vocab: int, trajectories: int) -> int:
    """Play trajectories concurrently; return the minimal prefill in tokens."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(vocab - 1, size=talk.prompt).tolist() for _ in range(-(-trajectories // GROUP))]

    async def follow(number: int) -> int:
        own, context, observations = np.random.default_rng([1, number]), list(prompts[number // GROUP]), 0
        for turn in range(talk.turns):
            sampling = SamplingParams(max_tokens=int(own.integers(*talk.said)), seed=int(own.integers(2**62)))
            context += (await engine.generate(context, sampling)).ids
            if turn + 1 < talk.turns:
                observation = own.integers(vocab - 1, size=int(own.integers(*talk.observed))).tolist()
                context, observations = context + observation, observations + len(observation)
        return observations

    return talk.prompt * len(prompts) + sum(await asyncio.gather(*map(follow, range(trajectories))))


async def measure(engine: Engine, kind: str, talk: Talk, shape: Shape, counts: Sequence[int]) -> list[Measured]:
    """Measure all numbers of trajectories after a warm-up, and close the engine."""
    found: list[Measured] = []
    await play(engine, replace(talk, turns=1), shape.vocab, 2)
    for count in counts:
        await engine.sleep()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        before, began = replace(engine.usage), time.perf_counter()
        minimum = await play(engine, talk, shape.vocab, count)
        seconds, usage = time.perf_counter() - began, engine.usage
        rate = (usage.generated - before.generated) / seconds
        busy = (usage.busy - before.busy) / seconds
        prefill = (usage.prefilled - before.prefilled) / minimum
        peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
        found.append(Measured(kind, count, seconds, rate, busy, prefill, peak))
    await engine.close()
    return found


def table(found: Sequence[Measured]) -> list[dict[str, str]]:
    """Return a row for each engine and number of trajectories."""
    return [
        {
            "engine": row.engine,
            "trajectories": str(row.trajectories),
            "s": f"{row.seconds:.1f}",
            "tokens/s": f"{row.tokens_per_second:,.0f}",
            "busy": f"{row.busy:.0%}",
            "prefill": f"{row.over_minimum:.2f}",
            "peak GB": f"{row.peak_gb:.1f}",
        }
        for row in found
    ]


def main() -> None:
    """Measure all engines."""
    parser = arguments(__doc__, "out", "device", "tiny", device="cuda")
    parser.add_argument(
        "--engines", nargs="+", choices=("transformers", "vllm"), default=["transformers"], help="which"
    )
    parser.add_argument(
        "--trajectories", nargs="+", type=int, default=[1, 8, 32, 64, 128, 256, 512], help="concurrent trajectories"
    )
    settings = parser.parse_args()
    name = device_name(settings.device)
    print(name, flush=True)
    shape = Shape(64, 2, 2, 1, 128, 1024, 1024) if settings.tiny else Shape()
    talk = Talk(3, 60, (4, 20), (4, 20)) if settings.tiny else Talk()
    counts = settings.trajectories[:3] if settings.tiny else settings.trajectories
    dtype = torch.bfloat16 if settings.device == "cuda" else torch.float32
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        model = random_qwen2(shape, use_cache=True).to(settings.device, dtype)
        model.save_pretrained(folder)
        for kind in settings.engines:
            engine = open_engine(kind, model, Path(folder), shape)
            found += asyncio.run(measure(engine, kind, talk, shape, counts))
    show("Sampling", table(found))
    write_json(settings.out, {"device": name, "shape": shape, "talk": talk, "found": found})


if __name__ == "__main__":
    main()
