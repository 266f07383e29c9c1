"""An engine vllm in each process of a training."""

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
from vllm_pairs import MEMORY, gap


def _dying_once() -> list[int]:
    """Let the next step of a core fail; the list tells how many have."""
    step, died = VllmCore.step, list[int]()

    def dying(core: VllmCore) -> Any:
        if not died:
            died.append(1)
            raise RuntimeError("the device is lost")
        return step(core)

    VllmCore.step = dying
    return died


async def sample(start: str, rank: int) -> dict[str, Any]:
    """Sample before and after an update; then the engine of the second process dies, while the first's goes on."""
    model = AutoModelForCausalLM.from_pretrained(start).eval()
    context = [5 + rank] * (10 + 30 * rank)
    engine = vllm_engine(start, MEMORY, end_id=1, max_context=128, dtype=torch.float32)
    said: list[Completion] = []
    gaps: list[float] = []
    died: list[int] = []
    for version in (1, 2, 2):
        if len(said) < 2:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.05 * version)
            tensors = model.state_dict()
            await engine.load(Weights(version, lambda tensors=tensors: iter(tensors.items())))
        elif rank == 1:
            died = _dying_once()
        said.append(await engine.generate(context, SamplingParams(max_tokens=10 + 20 * rank, seed=rank)))
        gaps.append(gap(model, [context], said[-1:]))
    await engine.close()
    return {"versions": [one.version for one in said], "gaps": gaps, "replayed": bool(died)}


def main(start: Path, out: Path) -> None:
    """Given a model's folder and one for results. Afterwards the processes must still be able to talk to each other."""
    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    seen = asyncio.run(sample(str(start), rank))
    total = accelerator.reduce(torch.tensor([1.0 + rank]), "sum")
    seen |= {"processes": accelerator.num_processes, "sum": total.item()}
    (out / f"{rank}.json").write_text(json.dumps(seen), encoding="utf-8")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
