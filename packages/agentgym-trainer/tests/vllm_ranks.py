"""A vLLM engine in each process of a training run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from agentgym_trainer.engines.base import Completion, SamplingParams
from agentgym_trainer.engines.vllm.in_process import VllmCore, vllm_engine
from agentgym_trainer.models.weights import Weights
from transformers import AutoModelForCausalLM
from vllm_pairs import MEMORY, max_logprob_gap


def _fail_next_step() -> list[int]:
    """Make the next step of a core fail. The returned list is empty until it has failed."""
    step, failures = VllmCore.step, list[int]()

    def fail_once(core: VllmCore) -> Any:
        if not failures:
            failures.append(1)
            raise RuntimeError("the device is lost")
        return step(core)

    VllmCore.step = fail_once
    return failures


async def sample(start: str, rank: int) -> dict[str, Any]:
    """Sample before and after an update, and again after the engine core of the second process has failed once."""
    model = AutoModelForCausalLM.from_pretrained(start).eval()
    context = [5 + rank] * (10 + 30 * rank)
    engine = vllm_engine(start, MEMORY, end_id=1, max_context=128, dtype=torch.float32)
    completions: list[Completion] = []
    gaps: list[float] = []
    failures: list[int] = []
    for version in (1, 2, 2):
        if len(completions) < 2:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.05 * version)
            tensors = model.state_dict()
            await engine.load(Weights(version, lambda tensors=tensors: iter(tensors.items())))
        elif rank == 1:
            failures = _fail_next_step()
        completions.append(await engine.generate(context, SamplingParams(max_tokens=10 + 20 * rank, seed=rank)))
        gaps.append(max_logprob_gap(model, [context], completions[-1:]))
    await engine.close()
    return {"versions": [completion.version for completion in completions], "gaps": gaps, "replayed": bool(failures)}


def main(start: Path, out: Path) -> None:
    """Sample with the model in `start`, and write results to `out`. Afterwards, the processes still communicate."""
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    results = asyncio.run(sample(str(start), rank))
    total = accelerator.reduce(torch.tensor([1.0 + rank]), "sum")
    results |= {"processes": accelerator.num_processes, "sum": total.item()}
    (out / f"{rank}.json").write_text(json.dumps(results), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
