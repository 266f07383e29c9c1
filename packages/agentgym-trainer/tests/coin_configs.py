"""Configurations of small runs in the coin environment, and a count of running tasks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from agentgym_trainer.algorithms import GRPO, GroupFilter
from agentgym_trainer.config import RLConfig, WorldConfig
from agentgym_trainer.rollout.runner import RolloutRunner
from coin_world import ENV

TASKS, SAMPLES = 3, 2


def coin_config(**settings: Any) -> RLConfig:
    defaults: dict[str, Any] = {
        "world": WorldConfig(ENV, agent="bare", instructions=False, backend="inline"),
        # An untrained model earns no rewards, so the entropy bonus provides the gradient.
        "algorithm": replace(GRPO, groups=GroupFilter(zero_variance="keep"), entropy=0.1),
        "tasks_per_step": TASKS,
        "group_size": SAMPLES,
        "steps": 5,
    }
    return RLConfig(**(defaults | settings))


def count_other_tasks(rollouts: RolloutRunner) -> int:
    """Return the number of asyncio tasks in the thread of the rollouts, without the one that counts."""

    async def count() -> int:
        return len(asyncio.all_tasks() - {asyncio.current_task()})

    return rollouts.run(count())
