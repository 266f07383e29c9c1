"""Tests of the learning rate of runs on episodes."""

from __future__ import annotations

import pytest
import torch
from agentgym_trainer.config import Optimizer
from agentgym_trainer.trainers.trl_guard import GuardedTrainer


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("constant", [0.5, 1.0, 1.0, 1.0]), ("linear", [0.5, 1.0, 2 / 3, 1 / 3])],
)
def test_every_update_has_a_learning_rate_above_0(schedule: str, expected: list[float]) -> None:
    trainer = GuardedTrainer()
    trainer.optimizer, trainer.lr_scheduler = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0), None
    trainer.schedule = Optimizer(schedule=schedule, warmup=2)  # type: ignore[arg-type]
    scheduler = trainer.create_scheduler(4)
    assert trainer.create_scheduler(4) is scheduler
    rates: list[float] = []
    for _ in range(4):
        rates.append(trainer.optimizer.param_groups[0]["lr"])
        trainer.optimizer.step()
        scheduler.step()
    assert rates == pytest.approx(expected)
