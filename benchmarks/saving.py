r"""Checkpoints written at once and in the background: for how long training stops, and until they are whole.

    uv run python benchmarks/saving.py --out saving.json
    uv run python benchmarks/saving.py --device cpu --tiny      # only shows that the script works

Every repetition saves the weights and moments of the same learner in both ways, in turn: with the architecture of
Qwen2.5-0.5B on a GPU, of 47M weights on a CPU. Training stops during `save`; in the background it would continue until
the checkpoint is whole, which this script waits for. The first save in the background also allocates the host memory
that later ones reuse; it is reported by itself. The disk is that of the temporary folder, or of `--folder`.

This script hasn't been run on a GPU yet, only on a CPU.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from accelerate import Accelerator
from agentgym_trainer.config import Optimizer
from agentgym_trainer.curriculum.horizon import Stage
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.models.scratch import train_tokenizer
from agentgym_trainer.run.checkpoint import Checkpoints
from harness import Spread, arguments, device_name, show, write_json
from synthetic import Shape, random_qwen2

SIZES = {
    "cuda": Shape(),
    "cpu": Shape(hidden=512, layers=10, heads=8, kv_heads=2, intermediate=1536, vocab=32_768),
    "tiny": Shape(hidden=32, layers=2, heads=2, kv_heads=1, intermediate=64, vocab=320),
}


@dataclass(frozen=True, slots=True)
class Saved:
    """One checkpoint."""

    way: str
    blocked_s: float
    """Seconds for which training stops."""
    whole_s: float
    """Seconds until the checkpoint is whole."""


def make_learner(shape: Shape, device: str) -> Learner:
    """Return a learner with random weights that has taken one step, so that AdamW has its moments."""
    actor = PolicyModel(random_qwen2(shape))
    learner = Learner(actor, Accelerator(cpu=device == "cpu"), Optimizer())
    for weight in learner.policy.parameters():
        weight.grad = torch.randn_like(weight)
    learner.optimizer.step()
    learner.optimizer.zero_grad()
    return learner


def measure(learner: Learner, tokenizer: Any, folder: Path, repeats: int) -> list[Saved]:
    """Save in both ways in turn; the first two checkpoints are warm-ups."""
    both = {
        name: Checkpoints(folder / name, keep=1, say=print, background=name == "background")
        for name in ("at once", "background")
    }
    return [
        _save(name, checkpoints, learner, tokenizer, step)
        for step in range(1, repeats + 2)
        for name, checkpoints in both.items()
    ]


def _save(name: str, checkpoints: Checkpoints, learner: Learner, tokenizer: Any, step: int) -> Saved:
    began = time.perf_counter()
    checkpoints.save(learner, tokenizer, TrainingState(Stage(1), step))
    blocked = time.perf_counter() - began
    checkpoints.finish()
    return Saved(name, blocked, time.perf_counter() - began)


def main() -> None:
    """Measure, print a table and write the record."""
    parser = arguments(__doc__, "out", "repeats", "device", "tiny", repeats=5)
    parser.add_argument("--folder", type=Path, help="folder on the disk to write to")
    settings = parser.parse_args()
    device = settings.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_num_threads(1)
    learner = make_learner(SIZES["tiny" if settings.tiny else device], device)
    weights = sum(weight.numel() for weight in learner.policy.parameters())
    with TemporaryDirectory(dir=settings.folder) as folder:
        tokenizer = train_tokenizer(["one two three"] * 8, 300, "words")
        first, *saved = measure(learner, tokenizer, Path(folder), settings.repeats)[1:]
    ways = {way: [each for each in saved if each.way == way] for way in ("at once", "background")}
    blocked = {way: Spread.of(each.blocked_s for each in found) for way, found in ways.items()}
    rows = [
        {
            "checkpoint": way,
            "training stops, s": str(blocked[way]),
            "whole, s": str(Spread.of(each.whole_s for each in found)),
        }
        for way, found in ways.items()
    ]
    ratio = blocked["background"].median / blocked["at once"].median
    show(f"{weights / 1e6:,.0f}M weights on {device_name(device)}, {settings.repeats} of each", rows)
    print(f"In the background, training stops for {ratio:.2f} of the time (first time: {first.blocked_s:.2f} s).")
    record = {"device": device_name(device), "weights": weights, "first": asdict(first), "ratio": ratio,
              "saved": [asdict(each) for each in saved]}  # fmt: skip
    write_json(settings.out, record)


if __name__ == "__main__":
    main()
