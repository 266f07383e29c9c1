"""Sampling on a GPU: tokens/s of an engine against the number of trajectories at once, and what it reads.

    uv run python benchmarks/gpu/rollout.py --out gpu-rollout.json
    uv run --extra vllm python benchmarks/gpu/rollout.py --engines transformers vllm
    uv run python benchmarks/gpu/rollout.py --device cpu --tiny      # shows that the script works, and nothing else

This script has not been run on a GPU yet; only its miniature on a CPU has.

A model of the shape of Qwen2.5-0.5B with random weights in bfloat16, groups of 8 trajectories that begin alike, 6
turns: a prompt of 600 tokens, replies of 20 to 180, observations of 20 to 200. Worlds answer at once;
`benchmarks/rollout.py` has real ones. `over minimum` is tokens read over those that have to be read at least.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from agentgym_trainer.engines.base import Engine, SamplingParams
from rich.console import Console
from rich.table import Table

GROUP = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen2."""

    hidden: int = 896
    layers: int = 24
    heads: int = 14
    kv_heads: int = 2
    intermediate: int = 4864
    vocab: int = 151_936
    context: int = 4096


@dataclass(frozen=True, slots=True)
class Talk:
    """How much is said; from, to."""

    turns: int = 6
    prompt: int = 600
    said: tuple[int, int] = (20, 180)
    observed: tuple[int, int] = (20, 200)


@dataclass(frozen=True, slots=True)
class Figures:
    """What an engine came to with so many trajectories at once."""

    engine: str
    trajectories: int
    seconds: float
    tokens_per_second: float
    busy: float
    """Share of the time in which it was at work."""
    over_minimum: float
    peak_gb: float


def build_model(shape: Shape, device: torch.device) -> Any:
    """Random weights, embeddings tied."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return Qwen2ForCausalLM(config).to(device, dtype)


def open_engine(kind: str, model: Any, folder: Path, shape: Shape) -> Engine:
    """The engine by name. Replies end where they are told to: the token that would end one is hardly ever sampled."""
    if kind == "transformers":
        from agentgym_trainer.engines.hf.engine import transformers_engine

        return transformers_engine(model, end_id=shape.vocab - 1)
    from agentgym_trainer.engines.vllm.in_process import vllm_engine

    return vllm_engine(str(folder), 0.4, end_id=shape.vocab - 1, max_context=shape.context, dtype=model.dtype)


async def talk(engine: Engine, talk: Talk, vocab: int, trajectories: int) -> int:
    """Play them all at once. Returns the tokens that have to be read at least."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(vocab - 1, size=talk.prompt).tolist() for _ in range(-(-trajectories // GROUP))]

    async def play(number: int) -> int:
        own, context, read = np.random.default_rng([1, number]), list(prompts[number // GROUP]), 0
        for turn in range(talk.turns):
            sampling = SamplingParams(max_tokens=int(own.integers(*talk.said)), seed=int(own.integers(2**62)))
            context += (await engine.generate(context, sampling)).ids
            if turn + 1 < talk.turns:
                observed = own.integers(vocab - 1, size=int(own.integers(*talk.observed))).tolist()
                context, read = context + observed, read + len(observed)
        return read

    return talk.prompt * len(prompts) + sum(await asyncio.gather(*map(play, range(trajectories))))


async def measure(engine: Engine, kind: str, spoken: Talk, shape: Shape, counts: Sequence[int]) -> list[Figures]:
    """All numbers of trajectories, after a little that isn't counted."""
    found: list[Figures] = []
    await talk(engine, replace(spoken, turns=1), shape.vocab, 2)
    for count in counts:
        await engine.sleep()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        before, began = replace(engine.usage), time.perf_counter()
        minimum = await talk(engine, spoken, shape.vocab, count)
        seconds = time.perf_counter() - began
        said, read = engine.usage.generated - before.generated, engine.usage.prefilled - before.prefilled
        peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
        busy = (engine.usage.busy - before.busy) / seconds
        found.append(Figures(kind, count, seconds, said / seconds, busy, read / minimum, peak))
    await engine.close()
    return found


def show(found: Sequence[Figures], console: Console) -> None:
    """The table."""
    table = Table(title="Sampling", title_justify="left")
    for name in ("engine", "trajectories", "s", "tokens/s", "busy", "over minimum", "peak GB"):
        table.add_column(name, justify="left" if name == "engine" else "right")
    for row in found:
        rates = f"{row.tokens_per_second:,.0f}", f"{row.busy:.0%}", f"{row.over_minimum:.2f}", f"{row.peak_gb:.1f}"
        table.add_row(row.engine, str(row.trajectories), f"{row.seconds:.1f}", *rates)
    console.print(table)


def main() -> None:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a tiny model and short replies")
    parser.add_argument("--engines", nargs="+", choices=("transformers", "vllm"), default=["transformers"])
    parser.add_argument("--trajectories", nargs="+", type=int, default=[1, 8, 32, 64, 128, 256, 512])
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("There is no GPU here; --device cpu --tiny shows that the script works.")
    console = Console()
    name = torch.cuda.get_device_name() if asked.device == "cuda" else "CPU"
    console.print(name, highlight=False)
    shape = Shape(64, 2, 2, 1, 128, 1024, 1024) if asked.tiny else Shape()
    spoken = Talk(3, 60, (4, 20), (4, 20)) if asked.tiny else Talk()
    counts = asked.trajectories[:3] if asked.tiny else asked.trajectories
    found: list[Figures] = []
    with tempfile.TemporaryDirectory() as folder:
        model = build_model(shape, torch.device(asked.device))
        model.save_pretrained(folder)
        for kind in asked.engines:
            engine = open_engine(kind, model, Path(folder), shape)
            found += asyncio.run(measure(engine, kind, spoken, shape, counts))
    show(found, console)
    if asked.out is not None:
        record = {
            "device": name,
            "shape": asdict(shape),
            "talk": asdict(spoken),
            "found": [asdict(row) for row in found],
        }
        asked.out.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
