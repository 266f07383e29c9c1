"""How long a training step takes on machines that aren't here: simulated rollouts, and arithmetic for the rest.

    uv run python benchmarks/scale.py                  # the plans of docs/scale.md
    uv run python benchmarks/scale_check.py            # the simulator against what this machine really does

Rollouts are those of `simulator.py`; for a GPU the times of a pass come from its bandwidth and its arithmetic. What the
learner takes are operations over their rate, or bytes over theirs.

Efficiencies are assumptions, named below; only what sends weights was measured. The figures say what limits what, to a
factor of about two. What they come to on GPUs was not measured here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from simulator import Pass, Turn, simulate  # the file beside this one

BANDWIDTH_SHARE = 0.6
"""Of a GPU's memory bandwidth that decoding reaches."""
PREFILL_MFU, TRAINING_MFU = 0.5, 0.35
"""Shares of its arithmetic that reading prompts and training reach."""
WIRE = 0.9e9
"""Bytes per second that one process sends of its weights to vLLM servers, as measured on one core."""
PASS = 2e-3
"""Seconds of a pass that have to do with neither: launching, scheduling, sampling."""


# Worlds.


@dataclass(frozen=True, slots=True)
class Workload:
    """Episodes of a world; lengths are geometric means, of lognormal distributions."""

    name: str
    turns: int
    prompt: int
    """Tokens before the first reply."""
    said: int
    """Tokens of a reply."""
    observed: int
    """Tokens of an observation."""
    latency: float
    """Seconds of a world's step."""
    processor: float
    """Of these, the ones that a core computes."""

    def draw(self, tasks: int, samples: int, rng: np.random.Generator) -> list[list[Turn]]:
        """Trajectories of a batch; only the first of a group reads its prompt."""
        drawn: list[list[Turn]] = []
        for e in range(tasks * samples):
            turns = int(rng.integers(self.turns // 2, self.turns + 1))
            said = np.maximum(1, self.said * rng.lognormal(0, 0.6, turns)).astype(int)
            read = np.maximum(1, self.observed * rng.lognormal(0, 0.5, turns)).astype(int)
            read[0] = self.prompt if e % samples == 0 else 1
            shared = [self.prompt - int(read[0])] + [0] * (turns - 1)
            columns = read.tolist(), said.tolist(), (self.latency * rng.lognormal(0, 0.8, turns)).tolist(), shared
            drawn.append([Turn(*turn) for turn in zip(*columns, strict=True)])
        return drawn


WORKLOADS = (
    Workload("TextCraft", turns=30, prompt=900, said=120, observed=40, latency=2e-5, processor=2e-5),
    Workload("SciWorld", turns=30, prompt=700, said=100, observed=120, latency=0.006, processor=0.006),
    Workload("WebArena", turns=15, prompt=1500, said=150, observed=800, latency=1.5, processor=0.07),
)


# Machines.


@dataclass(frozen=True, slots=True)
class Model:
    """A language model in bfloat16."""

    name: str
    weights: float
    """How many."""
    cache: int
    """Bytes of keys and values per token."""


@dataclass(frozen=True, slots=True)
class GPU:
    """As its maker gives it."""

    name: str
    flops: float
    """Dense bfloat16, per second."""
    bandwidth: float
    """Bytes of its memory per second."""
    memory: float
    """Bytes."""
    link: float
    """Bytes per second to the others of its node, one way."""
    network: float
    """Bytes per second to other nodes."""


MODELS = {
    "1.5B": Model("Qwen2.5-1.5B", 1.54e9, 2 * 28 * 2 * 128 * 2),
    "7B": Model("Qwen2.5-7B", 7.6e9, 2 * 28 * 4 * 128 * 2),
    "32B": Model("Qwen2.5-32B", 32.8e9, 2 * 64 * 8 * 128 * 2),
}
H200 = GPU("H200", flops=989e12, bandwidth=4.8e12, memory=141e9, link=450e9, network=50e9)


def engine_pass(model: Model, gpu: GPU, together: int = 1) -> Pass:
    """The pass of an engine whose weights are shared out among the memories of so many GPUs.

    It reads all weights once and every context's keys and values; what each reply and each read token adds are two
    operations per weight.
    """
    memory = gpu.bandwidth * BANDWIDTH_SHARE * together
    token = 2 * model.weights / (gpu.flops * PREFILL_MFU * together)
    # A cache beyond what the weights leave of nine tenths of the memory isn't modelled: replies wait before.
    return Pass(PASS + 2 * model.weights / memory, token, token, model.cache / memory, replies=256)


@dataclass(frozen=True, slots=True)
class Plan:
    """Machines, and how they are used."""

    name: str
    model: Model
    learners: int
    """GPUs that train."""
    engines: int
    """GPUs that sample; 0: the learners' do, by turns."""
    together: int = 1
    """GPUs of one engine."""
    overlap: bool = False
    """Whether separate engines sample while the learner works (`--async-rollout.max-staleness 1`)."""
    tasks: int = 32
    samples: int = 8
    per_node: int = 8
    gpu: GPU = H200


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of a training step, and what they are spent on."""

    rollout: float
    learn: float
    push: float
    seconds: float
    busy: float
    """Share of the rollout in which the engines were at work."""
    said: float
    """Tokens said per second of the step."""
    cores: float
    """Processor cores that the worlds keep busy during the rollout."""
    memory: float
    """Bytes that a learner's GPU holds for good."""


def step(plan: Plan, work: Workload, *, seed: int = 0) -> Step:
    """What a step of the plan comes to."""
    batch = work.draw(plan.tasks, plan.samples, np.random.default_rng(seed))
    engines = max(1, (plan.engines or plan.learners) // plan.together)
    # Whole groups go to an engine, so that their prompt is read once.
    shares = [[batch[e] for e in range(len(batch)) if e // plan.samples % engines == n] for n in range(engines)]
    rolled = [simulate(share, engine_pass(plan.model, plan.gpu, plan.together)) for share in shares if share]
    rollout, busy = max(one.seconds for one in rolled), sum(one.busy for one in rolled)
    said = sum(one.said for one in rolled)
    turns = [turn for trajectory in batch for turn in trajectory]
    learn = learn_seconds(plan, sum(turn.shared + turn.read + turn.said for turn in turns))
    push = push_seconds(plan)
    seconds = max(rollout, learn) + push if plan.overlap else rollout + learn + push
    cores = len(turns) * work.processor / rollout
    return Step(rollout, learn, push, seconds, busy / (rollout * engines), said / seconds, cores, held_bytes(plan))


def learn_seconds(plan: Plan, tokens: int) -> float:
    """Log-probabilities once (2 operations per weight and token) and one update with activations computed twice (8);
    or, where that takes longer, what FSDP sends: the weights three times an update and gradients once.
    """
    compute = 10 * plan.model.weights * tokens / (plan.learners * plan.gpu.flops * TRAINING_MFU)
    if plan.learners == 1:
        return compute
    rate = plan.gpu.network if plan.learners > plan.per_node else plan.gpu.link
    micro = max(1, round(tokens / (plan.learners * 16_384)))
    return max(compute, micro * 4 * 2 * plan.model.weights / rate)


def held_bytes(plan: Plan) -> float:
    """Weights, gradients and Adam's two moments in float32, shared out by FSDP; and the copy of an engine that is there
    too. Activations and caches come on top.
    """
    engine = 0.0 if plan.engines else 2 * plan.model.weights / plan.together
    return 16 * plan.model.weights / plan.learners + engine


def push_seconds(plan: Plan) -> float:
    """Float32 weights gathered from all learners, and with engines of their own one copy in bfloat16 for each of their
    GPUs, sent by as many learners as there are engines.
    """
    rate = plan.gpu.network if plan.learners > plan.per_node else plan.gpu.link
    gathered = 4 * plan.model.weights / rate if plan.learners > 1 else 0.0
    engines = plan.engines // plan.together
    return gathered + 2 * plan.model.weights * plan.together * -(-engines // plan.learners) / WIRE


PLANS = (
    Plan("one GPU", MODELS["1.5B"], learners=1, engines=0),
    Plan("8 GPUs, by turns", MODELS["7B"], learners=8, engines=0),
    Plan("8 GPUs, 4 + 4", MODELS["7B"], learners=4, engines=4),
    Plan("8 GPUs, 4 + 4, overlap", MODELS["7B"], learners=4, engines=4, overlap=True),
    Plan("2 + 2 nodes, overlap", MODELS["7B"], learners=16, engines=16, overlap=True, tasks=128),
    Plan("2 + 2 nodes, overlap", MODELS["32B"], learners=16, engines=16, together=2, overlap=True, tasks=128),
    Plan("8 + 8 nodes, overlap", MODELS["32B"], learners=64, engines=64, together=2, overlap=True, tasks=512),
)


def show(found: Sequence[tuple[Plan, Workload, Step]], console: Console) -> None:
    """The table."""
    table = Table(title="A training step on H200s, as computed", title_justify="left")
    for name in (
        "machines",
        "model",
        "episodes",
        "world",
        "rollout s",
        "learn s",
        "push s",
        "step s",
        "busy",
        "tokens/s",
    ):
        table.add_column(name, justify="left" if name in ("machines", "model", "world") else "right")
    for name in ("cores", "GB"):
        table.add_column(name, justify="right")
    for plan, work, came in found:
        times = (f"{seconds:.1f}" for seconds in (came.rollout, came.learn, came.push, came.seconds))
        rates = f"{came.busy:.0%}", f"{came.said:,.0f}", f"{came.cores:.1f}", f"{came.memory / 1e9:.0f}"
        table.add_row(plan.name, plan.model.name, str(plan.tasks * plan.samples), work.name, *times, *rates)
    console.print(table)


def main() -> None:
    """Compute all plans in all worlds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    asked = parser.parse_args()
    found = [(plan, work, step(plan, work)) for plan in PLANS for work in WORKLOADS]
    show(found, Console())
    if asked.out is not None:
        rows = [{"plan": asdict(plan), "world": asdict(work), "step": asdict(came)} for plan, work, came in found]
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
