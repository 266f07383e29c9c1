"""Tests that compare planned with measured memory: updates of the real learner, profiled on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from agentgym_trainer.algorithms import PPO
from agentgym_trainer.config import CriticModel, Generation, Lora, Optimizer, RLConfig
from agentgym_trainer.config.scratch import Scratch
from agentgym_trainer.models.load import with_lora
from agentgym_trainer.models.scratch import build_model
from agentgym_trainer.planning.hardware import Hardware
from agentgym_trainer.planning.phases import make_plan
from agentgym_trainer.tokens.trajectory import Trajectory
from torch.profiler import ProfilerActivity, profile
from toy_learner import VOCAB, make_learner, random_segment, update_on

LONGEST, EPISODES = 256, 4
CONFIG = RLConfig(
    model="scratch",
    scratch=Scratch(vocab=VOCAB, hidden=128, layers=4, heads=4, context=2 * LONGEST),
    generation=Generation(max_context=LONGEST),
    optimizer=Optimizer(micro_tokens=LONGEST * EPISODES),
    tasks_per_step=2,
    group_size=2,
    device="cpu",
)


def peak_allocated(do: Callable[[], object]) -> int:
    """Return the most bytes that `do` has allocated in torch's CPU memory at any time, beyond those before it."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        do()
    events: Any = profiler.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return int(max(np.cumsum([size for _, size in changes])))


def measured_update(config: RLConfig, accelerator: Accelerator) -> int:
    """Return the peak of the second update's memory, when AdamW has its moments."""
    model = build_model(config.scratch, vocab=VOCAB, end_id=2, pad_id=0, seed=0)
    if config.gradient_checkpointing == "on":
        model.gradient_checkpointing_enable()
    critic = config.critic.where if config.algorithm.needs_critic else None
    if config.lora.rank:
        model = with_lora(
            model.to(torch.bfloat16 if accelerator.mixed_precision == "bf16" else torch.float32), config.lora, seed=0
        )
    learner = make_learner(
        model, critic=critic, accelerator=accelerator, micro_tokens=config.optimizer.micro_tokens,
        reference=config.algorithm.needs_reference,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    episodes = [
        Trajectory((random_segment([(1, LONGEST - 1)], rng),), (float(e),), ("x",), (("act", "x"),), f"task-{e % 2}")
        for e in range(EPISODES)
    ]
    update_on(learner, episodes, config.algorithm)
    return peak_allocated(lambda: update_on(learner, episodes, config.algorithm))


@pytest.mark.parametrize("precision", ["no", pytest.param("bf16", marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({}, id="plain"),
        pytest.param({"gradient_checkpointing": "on"}, id="checkpointing", marks=pytest.mark.long),
        pytest.param({"lora": Lora(rank=8)}, id="lora"),
        pytest.param({"algorithm": PPO, "critic": CriticModel(where="separate")}, id="separate-critic"),
    ],
)
def test_planned_memory_of_an_update_is_the_measured_one(
    change: dict[str, Any], precision: Any, accelerator_of: Callable[[str], Accelerator]
) -> None:
    config = replace(CONFIG, precision=precision, **change)
    plan = make_plan(config, Hardware("CPU", 1))
    planned = sum(part.bytes for part in plan.phase("update").device if part.name in ("activations", "gradients"))
    assert planned == pytest.approx(measured_update(config, accelerator_of(precision)), rel=0.15)
