"""Everything a training run is told, as frozen dataclasses; and their way to and from JSON.

Importing this imports no torch, so `train --help` answers at once.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from agentgym_trainer.algorithms import GRPO, Algorithm
from agentgym_trainer.horizon import FixedHorizon, Horizon
from agentgym_trainer.scratch import Scratch


@dataclass(frozen=True)
class World:
    """The world, as the agent meets it."""

    env: str = "agentgym/TextCraft-v0"
    """Gymnasium id."""
    options: tuple[str, ...] = ()
    """Options of the world, each as key=value with a Python literal, such as "depth=(1, 2)"."""
    wrapper: Literal["react", "bare", "tags"] = "react"
    """How a reply becomes an action."""
    instructions: bool = True
    """Tell the agent the world's instructions as a system message."""


@dataclass(frozen=True)
class Generation:
    """How replies are sampled, in training and in sampled evaluation."""

    temperature: float = 1.0
    max_tokens: int = 512
    """Most tokens of a reply."""
    max_context: int = 8704
    """Most tokens of an episode; there generation stops and the episode is marked `length`."""

    def __post_init__(self) -> None:
        if self.temperature <= 0:
            raise ValueError(f"Training samples at a temperature above 0, not {self.temperature}.")
        if min(self.max_tokens, self.max_context) < 1:
            raise ValueError("generation.max_tokens and generation.max_context must be at least 1.")


@dataclass(frozen=True)
class Optimizer:
    """AdamW."""

    lr: float = 1e-6
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    """Gradients are scaled down to this norm."""
    warmup: int = 0
    """Optimizer steps over which the learning rate rises."""
    decay: int = 0
    """Optimizer steps after which the learning rate has fallen to 0, in a straight line; 0 keeps it constant."""
    micro_tokens: int = 16_384
    """Most token positions in one forward and backward pass; memory, not mathematics."""

    def __post_init__(self) -> None:
        if min(self.lr, self.clip_norm) <= 0 or min(self.weight_decay, self.warmup, self.decay) < 0:
            raise ValueError("optimizer needs lr and clip_norm above 0, and weight_decay, warmup and decay from 0.")
        if self.micro_tokens < 1:
            raise ValueError(f"optimizer.micro_tokens must be at least 1, not {self.micro_tokens}.")


@dataclass(frozen=True)
class WarmStart:
    """Imitation of an expert before reinforcement learning."""

    episodes: int = 0
    """Expert episodes on training tasks; 0 is no warm start."""
    noise: float = 0.0
    """Probability that the expert plays a random available action instead. Noisy experts teach the grammar and leave
    the strategy to reinforcement learning."""
    epochs: int = 1
    batch: int = 64
    """Episodes in one optimizer step."""
    lr: float = 1e-3

    def __post_init__(self) -> None:
        if self.episodes < 0 or min(self.epochs, self.batch) < 1 or not 0 <= self.noise <= 1:
            raise ValueError("warm_start needs episodes >= 0, epochs and batch >= 1, and a noise from 0 to 1.")


@dataclass(frozen=True)
class Evaluation:
    """Held-out evaluation."""

    tasks: int = 100
    """Test tasks, evenly spread over the split; 0 is all of them."""
    samples: int = 4
    """Sampled episodes of each task."""
    ks: tuple[int, ...] = (1, 4)
    """pass@k is reported for these."""
    every: int = 0
    """Steps between evaluations in the course of training; 0 evaluates before and after only."""

    def __post_init__(self) -> None:
        if min(self.tasks, self.every) < 0 or self.samples < 1:
            raise ValueError("evaluation needs tasks >= 0, every >= 0 and samples >= 1.")
        for k in self.ks:
            if not 1 <= k <= self.samples:
                raise ValueError(
                    f"pass@{k} needs at least {k} samples of each task; evaluation.samples is {self.samples}."
                )


@dataclass(frozen=True)
class Config:
    """A training run."""

    model: str = "Qwen/Qwen2.5-7B-Instruct"
    """A Hugging Face causal language model by name or path; "scratch" builds one on the spot."""
    scratch: Scratch = field(default_factory=Scratch)
    """Size of the model that "scratch" builds."""
    world: World = field(default_factory=World)
    algorithm: Algorithm = field(default_factory=GRPO)
    horizon: Horizon = field(default_factory=FixedHorizon)
    generation: Generation = field(default_factory=Generation)
    optimizer: Optimizer = field(default_factory=Optimizer)
    warm_start: WarmStart = field(default_factory=WarmStart)
    evaluation: Evaluation = field(default_factory=Evaluation)
    steps: int = 300
    """Updates: one batch of new episodes each."""
    tasks: int = 32
    """Tasks in a batch."""
    samples: int = 8
    """Episodes of each task."""
    slots: int = 256
    """Episodes played at once; more keep the engine busier and take more memory."""
    epochs: int = 1
    """Passes over each batch."""
    minibatches: int = 1
    """Optimizer steps in each pass."""
    layout: Literal["pad", "pack"] = "pack"
    """One segment a row, sorted by length (faster on a CPU), or rows filled with several."""
    train_cut: bool = True
    """Whether episodes that ended at the token budget take part in the loss."""
    save_every: int = 50
    """Steps between checkpoints."""
    keep: int = 2
    """Checkpoints kept."""
    threads: int = 1
    """Threads of torch on a CPU. With a busy neighbour, more can be many times slower."""
    device: Literal["auto", "cpu"] = "auto"
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision of accelerate. The weights stay float32: bfloat16 would round most of RL's small updates away."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, not {self.seed}.")
        counts = ("steps", "tasks", "samples", "slots", "epochs", "minibatches", "save_every", "keep", "threads")
        for name in counts:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}.")


def to_json(config: Any) -> Any:
    """A configuration as JSON values. Where a field may be of several types, its `type` is noted."""
    if not is_dataclass(config) or isinstance(config, type):
        return list(config) if isinstance(config, tuple) else config
    hints = get_type_hints(type(config))
    result: dict[str, Any] = {}
    for f in fields(config):
        value = getattr(config, f.name)
        result[f.name] = to_json(value)
        if len(_choices(hints[f.name])) > 1:
            result[f.name] = {"type": type(value).__name__, **asdict(value)}
    return result


def from_json(noun: type[Any], record: Mapping[str, Any], where: str = "") -> Any:
    """The configuration that `to_json` wrote.

    Raises:
        ValueError: for a key or type that doesn't exist, naming the nearest that does.
    """
    hints = get_type_hints(noun)
    known = {f.name for f in fields(noun)}
    for key in record:
        if key not in known:
            raise ValueError(f"There is no setting {where + key!r}. {_nearest(key, known)}")
    return noun(**{key: _value(hints[key], value, f"{where}{key}") for key, value in record.items()})


def _value(hint: Any, value: Any, where: str) -> Any:
    choices = _choices(hint)
    if len(choices) > 1:
        named = {choice.__name__: choice for choice in choices}
        record = dict(value)
        name = record.pop("type", None)
        if name not in named:
            raise ValueError(f"{where} can't be of type {name!r}. {_nearest(str(name), set(named))}")
        return from_json(named[name], record, f"{where}.")
    if choices:
        return from_json(choices[0], value, f"{where}.")
    return tuple(value) if get_origin(hint) is tuple else value


def _choices(hint: Any) -> list[type[Any]]:
    """The dataclasses that a field may hold."""
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    return [option for option in options if is_dataclass(option) and isinstance(option, type)]


def _nearest(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(sorted(known))}."
