"""A kind of training run, such as RL or SFT: everything that differs between kinds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from agentgym_trainer.config import BaseConfig, DataConfig
from agentgym_trainer.config.scratch import Scratch

STEPS, BATCH = 2, 4
"""Training steps and examples per step of a miniature run."""


def before_and_after(last: int) -> dict[int, str]:
    """Columns of the final table: the evaluations of the initial and of the final model."""
    return {0: "before", last: "after"}


@dataclass(frozen=True)
class RunKind:
    """A kind of training run. `KINDS` lists all of them."""

    name: str
    """Its name in `run.json`."""
    config: type[BaseConfig]
    train: str
    """The function that starts or resumes a run, as MODULE:FUNCTION; imported only when a run begins."""
    miniature: Callable[[Any], BaseConfig]
    """Shrinks a configuration, which `shrunk` has shrunk already, to a smoke test."""
    step_noun: str = "updates"
    """What a step is called in results and plots."""
    x: str = "step"
    """The metric on the x axis of the learning curve."""
    x_label: str = "updates"
    plots_training: bool = False
    """Whether the curve shows success on training tasks and the stages of the horizon."""
    plots_loss: bool = True
    """Whether the curve has a plot of the loss."""
    columns: Callable[[int], dict[int, str]] = before_and_after
    """Columns of the final table, by the step of their evaluation, from that of the final model."""


def shrunk(config: BaseConfig) -> BaseConfig:
    """What all miniatures share: a tiny model from scratch on a CPU, and few evaluation episodes."""
    width = 32 if config.lora.quantize == "off" else 64  # of a block of quantized weights
    plan, samples = config.evaluation, min(2, config.evaluation.samples)
    ks = tuple(sorted({min(k, samples) for k in plan.ks}))
    return replace(
        config,
        model="scratch",
        scratch=Scratch(vocab=320, hidden=width, layers=2, heads=2, context=4096, episodes=4),
        generation=replace(config.generation, max_tokens=8, max_context=4096),
        evaluation=replace(plan, tasks=2, test_tasks=2, samples=samples, ks=ks, every=min(2, plan.every)),
        save_every=1,
        device="cpu",
        precision="no",
    )


def few(data: DataConfig) -> DataConfig:
    """The data of a miniature run."""
    return replace(data, episodes=min(STEPS * BATCH, data.episodes))
