"""Estimate the time of a training step on other hardware: simulated rollouts, and arithmetic for the rest.

    uv run python benchmarks/scale.py                  # the table of docs/scale.md
    uv run python benchmarks/scale_check.py            # the simulator compared with this machine

`simulator.py` simulates the rollouts; the time of a forward pass on a GPU follows from its bandwidth and FLOP/s. The
update takes its operations divided by their rate, or its bytes divided by theirs. Its memory is that of `train --plan`.

The efficiencies below are assumptions. The results show the bottleneck, within a factor of about two. They were not
compared with measurements on GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from agentgym_trainer.config import AsyncRollout, EngineSettings, RLConfig
from agentgym_trainer.planning.hardware import described
from agentgym_trainer.planning.phases import make_plan
from agentgym_trainer.recipes import RECIPES
from harness import arguments, show, write_json
from simulator import PassCost, Turn, simulate

BANDWIDTH_SHARE = 0.6
"""Share of a GPU's memory bandwidth that decoding reaches."""
PREFILL_MFU, TRAINING_MFU = 0.5, 0.25
"""Shares of the peak FLOP/s that prefill and training reach."""
EPOCHS, MICRO_TOKENS = 2, 16_384
"""Settings of the recipes for real models."""
PASS_OVERHEAD = 2e-3
"""Seconds per forward pass for launching, scheduling and sampling."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Episodes of an environment; lengths are medians of lognormal distributions."""

    name: str
    turns: int
    prompt: int
    """Tokens before the first reply."""
    completion: int
    """Tokens of a reply."""
    observation: int
    """Tokens of an observation."""
    latency: float
    """Seconds per step of the environment."""
    cpu_seconds: float
    """CPU time of a step."""

    def draw(self, tasks: int, samples: int, rng: np.random.Generator) -> list[list[Turn]]:
        """Draw the trajectories of a batch; only the first of a group prefills its prompt."""
        drawn: list[list[Turn]] = []
        for e in range(tasks * samples):
            turns = int(rng.integers(self.turns // 2, self.turns + 1))
            completion = np.maximum(1, self.completion * rng.lognormal(0, 0.6, turns)).astype(int)
            prefill = np.maximum(1, self.observation * rng.lognormal(0, 0.5, turns)).astype(int)
            prefill[0] = self.prompt if e % samples == 0 else 1
            shared = [self.prompt - int(prefill[0])] + [0] * (turns - 1)
            latency = (self.latency * rng.lognormal(0, 0.8, turns)).tolist()
            columns = prefill.tolist(), completion.tolist(), latency, shared
            drawn.append([Turn(*turn) for turn in zip(*columns, strict=True)])
        return drawn


WORKLOADS = (
    Workload("TextCraft", turns=30, prompt=900, completion=120, observation=40, latency=2e-5, cpu_seconds=2e-5),
    Workload("SciWorld", turns=30, prompt=700, completion=100, observation=120, latency=0.006, cpu_seconds=0.006),
    Workload("WebArena", turns=15, prompt=1500, completion=150, observation=800, latency=1.5, cpu_seconds=0.07),
)


@dataclass(frozen=True, slots=True)
class Model:
    """A language model in bfloat16."""

    name: str
    weights: float
    """Number of parameters."""
    cache: int
    """Bytes of KV cache per token."""


@dataclass(frozen=True, slots=True)
class GPU:
    """A GPU, according to its vendor."""

    name: str
    flops: float
    """Dense bfloat16, per second."""
    bandwidth: float
    """Bytes per second of its memory."""
    link: float
    """Bytes per second to other GPUs of its node, one way."""
    network: float
    """Bytes per second to other nodes."""


MODELS = {
    "1.5B": Model("Qwen2.5-1.5B", 1.54e9, 2 * 28 * 2 * 128 * 2),
    "7B": Model("Qwen2.5-7B", 7.6e9, 2 * 28 * 4 * 128 * 2),
    "32B": Model("Qwen2.5-32B", 32.8e9, 2 * 64 * 8 * 128 * 2),
}
H200 = GPU("H200", flops=989e12, bandwidth=4.8e12, link=450e9, network=50e9)


def pass_cost(model: Model, gpu: GPU, tensor_parallel: int = 1) -> PassCost:
    """Return the cost of a forward pass: reading all weights and KV caches, and two operations per weight and token."""
    memory = gpu.bandwidth * BANDWIDTH_SHARE * tensor_parallel
    token = 2 * model.weights / (gpu.flops * PREFILL_MFU * tensor_parallel)
    # The size of the KV cache isn't modelled: the limit on replies is reached before.
    return PassCost(PASS_OVERHEAD + 2 * model.weights / memory, token, token, model.cache / memory, max_replies=256)


@dataclass(frozen=True, slots=True)
class Plan:
    """Hardware and its use."""

    name: str
    model: Model
    learners: int
    """GPUs that train."""
    engines: int
    """GPUs that sample; 0 means those of the learner, alternating."""
    tensor_parallel: int = 1
    """GPUs of one engine."""
    overlap: bool = False
    """Whether engines sample during the update (`--async-rollout.max-staleness 1`)."""
    tasks: int = 32
    samples: int = 8
    per_node: int = 8
    gpu: GPU = H200

    @property
    def rate(self) -> float:
        """Bytes per second between the learner's GPUs."""
        return self.gpu.network if self.learners > self.per_node else self.gpu.link


@dataclass(frozen=True, slots=True)
class Step:
    """A training step."""

    rollout: float
    """Seconds, like the next three."""
    update: float
    weights: float
    seconds: float
    busy: float
    """Share of the rollout in which the engines compute."""
    tokens_per_second: float
    """Completion tokens per second of the step."""
    cores: float
    """CPU cores that the environments use during the rollout."""
    memory: float
    """Bytes on a GPU of the learner during the update, with activations."""


def step(plan: Plan, workload: Workload, *, seed: int = 0) -> Step:
    """Estimate a training step."""
    batch = workload.draw(plan.tasks, plan.samples, np.random.default_rng(seed))
    engines = max(1, (plan.engines or plan.learners) // plan.tensor_parallel)
    # A group is sampled by one engine, so its prompt is prefilled once.
    shares = [[batch[e] for e in range(len(batch)) if e // plan.samples % engines == n] for n in range(engines)]
    cost = pass_cost(plan.model, plan.gpu, plan.tensor_parallel)
    rollouts = [simulate(share, cost) for share in shares if share]
    rollout, busy = max(one.seconds for one in rollouts), sum(one.busy for one in rollouts)
    turns = [turn for trajectory in batch for turn in trajectory]
    update = update_seconds(plan, sum(turn.shared + turn.prefill + turn.completion for turn in turns))
    weights = weights_seconds(plan)
    seconds = max(rollout, update) + weights if plan.overlap else rollout + update + weights
    rate = sum(one.completion for one in rollouts) / seconds
    cores = len(turns) * workload.cpu_seconds / rollout
    return Step(
        rollout, update, weights, seconds, busy / (rollout * engines), rate, cores, update_bytes(plan, workload)
    )


def update_seconds(plan: Plan, tokens: int) -> float:
    """Return the longer of computation and communication.

    The reference's log-probabilities take 2 operations per weight and token, an epoch takes 8: a forward pass, another
    one for gradient checkpointing, and a backward pass. FSDP gathers bfloat16 weights for each of them, and reduces
    float32 gradients once per epoch and micro-batch.
    """
    operations = 2 + EPOCHS * 8
    compute = operations * plan.model.weights * tokens / (plan.learners * plan.gpu.flops * TRAINING_MFU)
    if plan.learners == 1:
        return compute
    micro_batches = max(1, round(tokens / (plan.learners * MICRO_TOKENS)))
    sent = micro_batches * (2 + EPOCHS * (3 * 2 + 4)) * plan.model.weights
    return max(compute, sent / plan.rate)


def update_bytes(plan: Plan, workload: Workload) -> float:
    """Return what the update takes on a GPU of the learner: weights, gradients and moments in float32, the reference,
    activations, what FSDP gathers, and what an engine on the same GPU keeps.
    """
    config = RECIPES[f"{workload.name.lower()}-scaling"].config
    assert isinstance(config, RLConfig)
    separate = EngineSettings(kind="vllm-server", urls=("http://10.0.1.1:8100",))
    engine = separate if plan.engines else EngineSettings(kind="vllm", memory=0.4)
    model, overlap = f"Qwen/{plan.model.name}-Instruct", AsyncRollout(max_staleness=int(plan.overlap))
    config = replace(config, model=model, engine=engine, async_rollout=overlap)
    return make_plan(config, described(f"{plan.learners}x{plan.gpu.name}")).phase("update").bytes


def weights_seconds(plan: Plan) -> float:
    """Return the time to send the weights to the engines.

    They are gathered in bfloat16 from all learners, and broadcast by NCCL to the GPUs of separate engines.
    """
    size = 2 * plan.model.weights
    gathered = size / plan.rate if plan.learners > 1 else 0.0
    one_node = plan.learners + plan.engines <= plan.per_node
    broadcast = size / (plan.gpu.link if one_node else plan.gpu.network) if plan.engines else 0.0
    return gathered + broadcast


PLANS = (
    Plan("one GPU", MODELS["1.5B"], learners=1, engines=0),
    Plan("8 GPUs, alternating", MODELS["7B"], learners=8, engines=0),
    Plan("8 GPUs, 4 + 4", MODELS["7B"], learners=4, engines=4),
    Plan("8 GPUs, 4 + 4, overlap", MODELS["7B"], learners=4, engines=4, overlap=True),
    Plan("2 + 2 nodes, overlap", MODELS["7B"], learners=16, engines=16, overlap=True, tasks=128),
    Plan("2 + 2 nodes, overlap", MODELS["32B"], learners=16, engines=16, tensor_parallel=2, overlap=True, tasks=128),
    Plan("8 + 8 nodes, overlap", MODELS["32B"], learners=64, engines=64, tensor_parallel=2, overlap=True, tasks=512),
)


def table(found: Sequence[tuple[Plan, Workload, Step]]) -> list[dict[str, str]]:
    """Return the rows of the table in docs/scale.md."""
    return [
        {
            "machines": plan.name,
            "model": plan.model.name,
            "episodes": str(plan.tasks * plan.samples),
            "environment": workload.name,
            "rollout s": f"{made.rollout:.0f}",
            "update s": f"{made.update:.0f}",
            "weights s": f"{made.weights:.1f}",
            "step s": f"{made.seconds:.0f}",
            "busy": f"{made.busy:.0%}",
            "tokens/s": f"{made.tokens_per_second:,.0f}",
            "cores": f"{made.cores:.1f}",
            "GB": f"{made.memory / 1e9:.0f}",
        }
        for plan, workload, made in found
    ]


def main() -> None:
    """Estimate all plans in all environments."""
    settings = arguments(__doc__, "out").parse_args()
    found = [(plan, workload, step(plan, workload)) for plan in PLANS for workload in WORKLOADS]
    show("Estimated training steps on H200s", table(found))
    write_json(settings.out, [{"plan": plan, "world": workload, "step": made} for plan, workload, made in found])


if __name__ == "__main__":
    main()
