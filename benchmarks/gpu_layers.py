r"""Updates with plain layers, with compiled ones (`--compile`) and, on a GPU, with Liger's kernels (`--kernels liger`).

    uv run --extra liger python benchmarks/gpu_layers.py --out layers.json
    uv run python benchmarks/gpu_layers.py --device cpu --model quickstart
    uv run python benchmarks/gpu_layers.py --device cpu --tiny      # only shows that the script works

This script hasn't been run on a GPU yet.

An update is `Learner.update` with GRPO on ragged multi-turn episodes, as in `gpu_train.py`: a model with random
weights, AdamW, one thread on a CPU, and on a GPU bfloat16 autocast over float32 weights and gradient checkpointing.
All ways take turns on the same weights in one process; the ratios of neighboring updates are the result. The first
update of a way, which compiles, isn't part of them. Every round has other episodes, so their rows have other lengths.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from accelerate import Accelerator
from agentgym_trainer.algorithms import Algorithm
from agentgym_trainer.config import Optimizer
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.attention import choose_attention
from agentgym_trainer.models.compiled import compile_layers
from agentgym_trainer.models.liger import apply_liger, why_not_liger
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.tokens.batch import make_batch
from gpu_train import make_trajectories
from harness import Spread, arguments, device_name, quiet, show, write_json
from synthetic import Shape, random_qwen2

SHAPES = {
    "0.5b": Shape(context=16_384),
    "smollm2": Shape(576, 30, 9, 3, 1536, 49_152, 8192),
    "quickstart": Shape(96, 3, 4, 4, 192, 512, 2048),
}
"""Shapes of Qwen2.5-0.5B, SmolLM2-135M and the model of the recipe `quickstart`, as Qwen2."""
TINY = Shape(64, 2, 4, 2, 128, 1024, 512)


@dataclass(frozen=True, slots=True)
class Work:
    """The episodes of an update."""

    episodes: int
    context: int
    """Longest episode."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The updates of one way to compute the layers."""

    way: str
    first_s: float
    """Seconds of its first update, with compilation."""
    seconds: tuple[float, ...]
    speedup: Spread
    """Time of the plain update of a round relative to this way's."""
    peak_gb: float | None
    """Peak of the tensors on a GPU; None on a CPU."""
    loss: float
    """Loss of its first update, which follows those of the ways before it."""


class Ways:
    """The ways to compute the layers of one model, which can be changed at any time."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.missing: dict[str, str] = {}
        """Why ways can't be used here."""
        if reason := why_not_liger(model.config.model_type, model.device):
            self.missing["liger"] = reason

    def use(self, way: str) -> None:
        """Compute layers in this way: plain, compiled or liger."""
        for module in self._model.modules():
            vars(module).pop("forward", None)
        if way == "liger":
            apply_liger(self._model)
        elif way == "compiled":
            compile_layers(self._model)

    @property
    def available(self) -> list[str]:
        """The ways that can be used here, plain first."""
        try:
            self.use("compiled")
        except ValueError as error:
            self.missing["compiled"] = str(error)
        return [way for way in ("plain", "compiled", "liger") if way not in self.missing]


def updates(shape: Shape, work: Work, device: str) -> tuple[Any, Callable[[int], float], int]:
    """Return a model, a function that updates it on the episodes of a round and returns the loss, and the number of
    tokens of round 0.
    """
    precision = "no" if device == "cpu" else "bf16"
    accelerator = Accelerator(cpu=device == "cpu", mixed_precision=precision)
    model = random_qwen2(shape)
    if device != "cpu":
        model.gradient_checkpointing_enable()
    policy = PolicyModel(model, attention=choose_attention(accelerator.device, precision))
    learner = Learner(policy, accelerator, Optimizer(lr=1e-6, micro_tokens=2 * work.context))
    algorithm = Algorithm()

    def batch(number: int) -> Any:
        # Another length makes all episodes other ones.
        return make_batch(make_trajectories(work.context - 8 * number, work.episodes, shape.vocab, padded=False))

    def update(number: int) -> float:
        packed = batch(number)
        tokens = learner.compute_logprobs(packed, algorithm)
        advantages = algorithm.compute_advantages(tokens, learner.total)
        return learner.update(packed, tokens, advantages, algorithm)["loss"]

    return model, update, len(batch(0).ids_S)


def measure(shape: Shape, work: Work, device: str, repeats: int) -> tuple[list[Measured], int, dict[str, str]]:
    """Measure all ways that can be used here; also return the tokens of an update, and why others can't."""
    quiet()
    model, update, tokens = updates(shape, work, device)
    ways = Ways(model)
    names = ways.available
    firsts: dict[str, tuple[float, float]] = {}
    peaks: dict[str, float | None] = {}
    for way in names:
        ways.use(way)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        began, loss = _now(device), update(0)
        firsts[way] = _now(device) - began, loss
        peaks[way] = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else None
        print(f"{way}: {firsts[way][0]:.1f} s for the first update", flush=True)
    rounds: dict[str, list[float]] = {way: [] for way in names}
    for number in range(repeats):
        for way in names:
            ways.use(way)
            began = _now(device)
            update(number + 1)
            rounds[way].append(_now(device) - began)
    found = [
        Measured(
            way, firsts[way][0], tuple(rounds[way]),
            Spread.of(plain / own for plain, own in zip(rounds["plain"], rounds[way], strict=True)),
            peaks[way], firsts[way][1],
        )
        for way in names
    ]  # fmt: skip
    return found, tokens, ways.missing


def _now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def table(found: Sequence[Measured], tokens: int) -> list[dict[str, str]]:
    """Return a row for each way."""
    return [
        {
            "layers": row.way,
            "first update s": f"{row.first_s:.1f}",
            "s": f"{min(row.seconds):.2f}",
            "tokens/s": f"{tokens / min(row.seconds):,.0f}",
            "times as fast as plain": str(row.speedup),
            "peak GB": "–" if row.peak_gb is None else f"{row.peak_gb:.1f}",
            "loss": f"{row.loss:.6f}",
        }
        for row in found
    ]


def main() -> None:
    """Measure and write JSON."""
    parser = arguments(__doc__, "out", "device", "tiny", "repeats", device="cuda", repeats=5)
    parser.add_argument("--model", choices=SHAPES, default="0.5b", help="shape of the model")
    parser.add_argument("--episodes", type=int, default=16, help="episodes of an update")
    parser.add_argument("--context", type=int, default=0, help="longest episode; 0: 4,096, on a CPU 512")
    settings = parser.parse_args()
    name, shape = device_name(settings.device), TINY if settings.tiny else SHAPES[settings.model]
    context = settings.context or (512 if settings.device == "cpu" else 4096)
    work = Work(4, 128) if settings.tiny else Work(settings.episodes, context)
    found, tokens, missing = measure(shape, work, settings.device, 2 if settings.tiny else settings.repeats)
    show(f"Updates of {tokens:,} tokens on {name}", table(found, tokens))
    for way, reason in missing.items():
        print(f"{way} wasn't measured: {reason}")
    ways = [asdict(row) for row in found]
    write_json(settings.out, {"device": name, "tokens": tokens, "ways": ways, "missing": missing})


if __name__ == "__main__":
    main()
