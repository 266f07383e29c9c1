r"""Updates on a GPU: tokens/s, MFU and peak memory.

    uv run python benchmarks/gpu_train.py --out gpu.json
    uv run python benchmarks/gpu_train.py --device cpu --tiny      # only shows that the script works

This script hasn't been run on a GPU yet, only with `--tiny` on a CPU.

An update is `Learner.update` with GRPO on ragged multi-turn episodes of up to 4k and 16k tokens: a model with the
architecture of Qwen2.5-0.5B and random weights, bfloat16 autocast over float32 weights, AdamW, and gradient
checkpointing (without it: `--no-checkpointing`).
"packed" is the layout of `train`; "padded" fills every episode up to the longest with padding tokens, which costs as
much as a batch of padded rows. Tokens/s counts the episodes' own tokens. So does MFU, with 6 FLOPs per weight and token
(for the LM head, per completion token) and causal attention, without the recomputation of checkpointing.

A training run from scratch on a GPU needs no script:

    uv run train --scratch.vocab 1024 --scratch.hidden 256 --scratch.layers 6 --scratch.heads 8 --optimizer.lr 3e-4 \
        --optimizer.micro-tokens 65536 --warm-start.episodes 4000 --warm-start.lr 2e-3 --steps 200 \
        --tasks-per-step 32 --slots 256 --precision bf16
"""

from __future__ import annotations

import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from agentgym_trainer.algorithms import Algorithm
from agentgym_trainer.config import Optimizer
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.attention import choose_attention
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Trajectory
from harness import arguments, device_name, show, write_json
from synthetic import Shape, draw_turns, log_uniform, one_segment, random_qwen2

GROUP = 4
UPDATES = 3
PEAK_TFLOPS = {"A100": 312.0, "H100": 989.0, "H200": 989.0, "L40S": 362.0, "4090": 165.0}
"""Dense bfloat16 according to the vendor, by a part of the device's name."""


@dataclass(frozen=True, slots=True)
class Measured:
    """An update with one context length and layout."""

    context: int
    layout: str
    episodes: int
    tokens: int
    positions: int
    """Token positions of the forward pass, including padding."""
    seconds: float
    tokens_per_second: float
    mfu: float | None
    """None if the peak FLOP/s of the device are unknown."""
    peak_gb: float


def make_trajectories(context: int, episodes: int, vocab: int, *, padded: bool) -> list[Trajectory]:
    """Return episodes of an eighth of the context up to all of it, uniform on a logarithmic scale."""
    rng = np.random.default_rng(0)
    lengths = log_uniform(context / 8, context, episodes, rng)
    longest = max(lengths) if padded else 0
    return [_trajectory(length, longest, f"task {e // GROUP}", vocab, rng) for e, length in enumerate(lengths)]


def _trajectory(length: int, padded_length: int, task: str, vocab: int, rng: np.random.Generator) -> Trajectory:
    """Return an episode with replies of 20 to 120 tokens and observations of 50 to 300."""
    loss_mask, turns = draw_turns(length, length // 8, (20, 120), (50, 300), rng)
    padding = max(0, padded_length - length)
    loss_mask, turns = np.pad(loss_mask, (0, padding)), np.pad(turns, (0, padding), constant_values=-1)
    logprobs = np.where(loss_mask, -np.log(vocab), 0.0)
    ids = rng.integers(0, vocab, length + padding)
    return one_segment(ids, loss_mask, logprobs, turns, float(rng.random()), task)


def measure(
    shape: Shape,
    context: int,
    episodes: int,
    layout: str,
    accelerator: Accelerator,
    peak: float | None,
    *,
    checkpointing: bool,
) -> Measured:
    """Take the mean of some updates after a warm-up update."""
    unpadded = make_trajectories(context, episodes, shape.vocab, padded=False)
    batch = make_batch(make_trajectories(context, episodes, shape.vocab, padded=layout == "padded"))
    device = accelerator.device
    model = random_qwen2(replace(shape, context=context))
    if checkpointing:
        model.gradient_checkpointing_enable()
    policy = PolicyModel(model, attention=choose_attention(device, accelerator.mixed_precision))
    learner = Learner(policy, accelerator, Optimizer(lr=1e-6, micro_tokens=2 * context))
    algorithm = Algorithm()
    experience = learner.compute_logprobs(batch, algorithm)
    advantages = algorithm.compute_advantages(experience, learner.total)
    learner.update(batch, experience, advantages, algorithm)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = _now(device)
    for _ in range(UPDATES):
        learner.update(batch, experience, advantages, algorithm)
    seconds = (_now(device) - began) / UPDATES
    tokens = sum(trajectory.tokens for trajectory in unpadded)
    mfu = None if peak is None else flops(model, shape, unpadded) / seconds / (peak * 1e12)
    memory = _peak_gb(device)
    accelerator.free_memory()
    return Measured(context, layout, episodes, tokens, len(batch.ids_S), seconds, tokens / seconds, mfu, memory)


def flops(model: Any, shape: Shape, trajectories: Sequence[Trajectory]) -> float:
    """Return the FLOPs of an update: the forward pass, and twice as many for the backward pass."""
    head = shape.vocab * shape.hidden
    body = sum(parameter.numel() for parameter in model.parameters()) - head
    lengths = [trajectory.tokens for trajectory in trajectories]
    completion = sum(sum(trajectory.segments[0].loss_mask) for trajectory in trajectories)
    # Scores and weighted values, for the half of the pairs that causal attention computes.
    attention = shape.layers * shape.hidden * sum(2 * length**2 for length in lengths)
    return 6 * body * sum(lengths) + 6 * head * completion + 3 * attention


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _peak_gb(device: torch.device) -> float:
    """Return the peak of the tensors on a GPU, or of the process on a CPU, where it can't be reset."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def table(found: Sequence[Measured]) -> list[dict[str, str]]:
    """Return a row for each context length and layout."""
    return [
        {
            "context": f"{row.context:,}",
            "layout": row.layout,
            "padding": f"{1 - row.tokens / row.positions:.0%}",
            "s": f"{row.seconds:.2f}",
            "tokens/s": f"{row.tokens_per_second:,.0f}",
            "MFU": "–" if row.mfu is None else f"{row.mfu:.1%}",
            "peak GB": f"{row.peak_gb:.1f}",
        }
        for row in found
    ]


def main() -> None:
    """Measure all context lengths and layouts."""
    parser = arguments(__doc__, "out", "device", "tiny", device="cuda")
    parser.add_argument(
        "--peak-tflops", type=float, help="dense bfloat16 peak of a device that the script doesn't know"
    )
    parser.add_argument("--no-checkpointing", action="store_true", help="keep all activations for the backward pass")
    settings = parser.parse_args()
    name = device_name(settings.device)
    peak = settings.peak_tflops or next((flops for part, flops in PEAK_TFLOPS.items() if part in name), None)
    precision = "no" if settings.device == "cpu" else "bf16"
    accelerator = Accelerator(cpu=settings.device == "cpu", mixed_precision=precision)
    attention = choose_attention(accelerator.device, accelerator.mixed_precision)
    print(f"{name}, attention {attention}", flush=True)
    shape = Shape(64, 2, 4, 2, 128, 1024) if settings.tiny else Shape()
    sizes = ((128, 8), (512, 4)) if settings.tiny else ((4096, 32), (16_384, 16))
    found = [
        measure(shape, context, episodes, layout, accelerator, peak, checkpointing=not settings.no_checkpointing)
        for context, episodes in sizes
        for layout in ("packed", "padded")
    ]
    show("One update", table(found))
    write_json(settings.out, {"device": name, "attention": attention, "peak_tflops": peak, "updates": found})


if __name__ == "__main__":
    main()
