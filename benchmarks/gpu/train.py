"""Training on a GPU: tokens/s, MFU and peak memory of updates, and a run from scratch to high success.

    uv run python benchmarks/gpu/train.py --out gpu.json
    uv run python benchmarks/gpu/train.py --device cpu --tiny      # shows that the script works, and nothing else

This script has not been run on a GPU yet; only its miniature on a CPU has.

Updates are `Learner.update` with GRPO on ragged multi-turn episodes of up to 4k and 16k tokens, a model of the shape of
Qwen2.5-0.5B with random weights, bfloat16 autocast over float32 weights, gradient checkpointing, AdamW. "packed" is how
`train` lays episodes out; "padded" is the same with every episode filled up to the longest with padding tokens, which
is what a batch of padded rows costs. Tokens/s counts the episodes' own tokens; so does MFU, whose FLOPs are those of
the mathematics: 6 per weight and token (the LM head at completion tokens only) and causal attention; what
checkpointing computes twice doesn't count.

The run from scratch is the quickstart's world with a larger model and more updates.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from agentgym_trainer.algorithms import Algorithm
from agentgym_trainer.config import Evaluation, Optimizer, RLConfig
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.attention import choose_attention
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.recipes import RECIPES, tiny
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import RunFolder
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Segment, Trajectory
from rich.console import Console
from rich.table import Table

GROUP = 4
PEAK_TFLOPS = {"A100": 312.0, "H100": 989.0, "H200": 989.0, "L40S": 362.0, "4090": 165.0}
"""Dense bfloat16, by what the device's name has in it, as its maker gives it."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen2."""

    hidden: int = 896
    layers: int = 24
    heads: int = 14
    kv_heads: int = 2
    intermediate: int = 4864
    vocab: int = 151_936


@dataclass(frozen=True, slots=True)
class Figures:
    """What one way of updating came to."""

    context: int
    layout: str
    episodes: int
    tokens: int
    positions: int
    """Token positions that went through the model, padding among them."""
    seconds: float
    tokens_per_second: float
    mfu: float | None
    """None where the device's peak isn't known."""
    peak_gb: float


def build_model(shape: Shape, context: int) -> Any:
    """Random weights in float32, embeddings tied."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
        use_cache=False,
    )
    torch.manual_seed(0)
    return Qwen2ForCausalLM(config)


def make_trajectories(context: int, episodes: int, vocab: int, *, padded: bool) -> list[Trajectory]:
    """Games whose lengths are evenly spread on a log scale from an eighth of the context up to it."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.uniform(np.log(context / 8), np.log(context), episodes)).astype(int)
    whole = int(lengths.max()) if padded else 0
    return [_trajectory(int(length), whole, f"task {e // GROUP}", vocab, rng) for e, length in enumerate(lengths)]


def _trajectory(length: int, whole: int, task: str, vocab: int, rng: np.random.Generator) -> Trajectory:
    """Replies of 20 to 120 tokens and observations of 50 to 300, filled up to `whole` tokens."""
    size = max(length, whole)
    said, turns = np.zeros(size, dtype=bool), np.full(size, -1)
    at, turn = length // 8, 0
    while at < length:
        end = min(length, at + int(rng.integers(20, 120)))
        said[at:end], turns[at:end] = True, turn
        at, turn = end + int(rng.integers(50, 300)), turn + 1
    logprobs = np.where(said, -np.log(vocab), 0.0)
    columns = rng.integers(0, vocab, size), said, logprobs, turns
    segment = Segment(*(tuple(column.tolist()) for column in columns))
    rewards = (0.0,) * (turn - 1) + (float(rng.random()),)
    return Trajectory((segment,), rewards, states=("",) * turn, observations=(("act", ""),) * turn, group=task)


def measure(
    shape: Shape, context: int, episodes: int, layout: str, accelerator: Accelerator, peak: float | None
) -> Figures:
    """Three updates after one that isn't counted."""
    plain = make_trajectories(context, episodes, shape.vocab, padded=False)
    batch = make_batch(make_trajectories(context, episodes, shape.vocab, padded=layout == "padded"))
    precision = accelerator.mixed_precision
    model = build_model(shape, context)
    model.gradient_checkpointing_enable()
    actor = PolicyModel(model, attention=choose_attention(accelerator.device, precision))
    learner = Learner(actor, accelerator, Optimizer(lr=1e-6, micro_tokens=2 * context))
    algorithm = Algorithm()
    experience = learner.compute_logprobs(batch, algorithm)
    credit = algorithm.compute_advantages(experience, learner.total)
    learner.update(batch, experience, credit, algorithm)
    _reset_peak(accelerator.device)
    began, updates = _now(accelerator.device), 3
    for _ in range(updates):
        learner.update(batch, experience, credit, algorithm)
    seconds = (_now(accelerator.device) - began) / updates
    tokens = sum(trajectory.tokens for trajectory in plain)
    mfu = None if peak is None else flops(model, shape, plain) / seconds / (peak * 1e12)
    memory = _peak_gb(accelerator.device)
    accelerator.free_memory()
    return Figures(context, layout, episodes, tokens, len(batch.ids_S), seconds, tokens / seconds, mfu, memory)


def flops(model: Any, shape: Shape, trajectories: Sequence[Trajectory]) -> float:
    """Of one update: forward and twice that backward, 2 per multiplication and addition."""
    head = shape.vocab * shape.hidden
    body = sum(parameter.numel() for parameter in model.parameters()) - head
    lengths = [trajectory.tokens for trajectory in trajectories]
    said = sum(sum(trajectory.segments[0].loss_mask) for trajectory in trajectories)
    # Scores and their use on values, for the half of the pairs that causal attention has.
    attention = shape.layers * shape.hidden * sum(2 * length**2 for length in lengths)
    return 6 * body * sum(lengths) + 6 * head * said + 3 * attention


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def _reset_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()


def _peak_gb(device: torch.device) -> float:
    """Of tensors on a GPU; of the process on a CPU, where a peak stays for good."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def show(found: Sequence[Figures], console: Console) -> None:
    """The table."""
    table = Table(title="One update", title_justify="left")
    for name in ("context", "layout", "padding", "s", "tokens/s", "MFU", "peak GB"):
        table.add_column(name, justify="right")
    for row in found:
        rate = f"{row.seconds:.2f}", f"{row.tokens_per_second:,.0f}", "–" if row.mfu is None else f"{row.mfu:.1%}"
        padding = f"{1 - row.tokens / row.positions:.0%}"
        table.add_row(f"{row.context:,}", row.layout, padding, *rate, f"{row.peak_gb:.1f}")
    console.print(table)


def from_scratch(device: str, out: Path, console: Console, *, small: bool) -> dict[str, Any]:
    """A whole run of `train`, and success on test tasks before and after it."""
    from agentgym_trainer.run.summary import show_results
    from agentgym_trainer.trainers.rl import train
    from agentgym_trainer.trainers.test_split import play_test

    base = RECIPES["quickstart"].config
    config: RLConfig = replace(
        base,
        scratch=replace(base.scratch, vocab=1024, hidden=256, layers=6, heads=8),
        optimizer=replace(base.optimizer, lr=3e-4, micro_tokens=65_536),
        warm_start=replace(base.warm_start, episodes=4000, lr=2e-3),
        evaluation=Evaluation(tasks=0, test_tasks=0, samples=4, ks=(1, 4), every=50),
        steps=200,
        tasks_per_step=32,
        slots=256,
        device="cpu" if device == "cpu" else "auto",
        precision="no" if device == "cpu" else "bf16",
    )
    config = tiny(config) if small else config
    folder = RunFolder.create(out, config, "benchmark")
    began = time.monotonic()
    tracker = RunConsole(console)
    reached = train(config, folder, tracker, Stopping())
    play_test(config, folder, tracker, Stopping(), steps=reached.step)
    show_results(config, folder, console, seconds=time.monotonic() - began)
    summary: dict[str, Any] = json.loads(folder.summary.read_text())
    return summary


def main() -> None:
    """Measure, print a table, write JSON; then train."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, short episodes, two training steps")
    parser.add_argument("--peak-tflops", type=float, help="the device's, dense bfloat16; known ones need none")
    parser.add_argument("--run", type=Path, default=Path("runs/gpu-from-scratch"), help="folder of the training run")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no GPU here; --device cpu --tiny shows that the script works.")
    console = Console()
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    peak = asked.peak_tflops or next((flops for known, flops in PEAK_TFLOPS.items() if known in name), None)
    accelerator = Accelerator(cpu=asked.device == "cpu", mixed_precision="no" if asked.device == "cpu" else "bf16")
    attention = choose_attention(accelerator.device, accelerator.mixed_precision)
    console.print(f"{name}, attention {attention}", highlight=False)
    shape = Shape(64, 2, 4, 2, 128, 1024) if asked.tiny else Shape()
    sizes = ((128, 8), (512, 4)) if asked.tiny else ((4096, 32), (16_384, 16))
    found = [
        measure(shape, context, episodes, layout, accelerator, peak)
        for context, episodes in sizes
        for layout in ("packed", "padded")
    ]
    show(found, console)
    summary = from_scratch(asked.device, asked.run, console, small=asked.tiny)
    if asked.out is not None:
        rows = [asdict(row) for row in found]
        record = {"device": name, "attention": attention, "peak_tflops": peak, "updates": rows, "from_scratch": summary}
        asked.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
