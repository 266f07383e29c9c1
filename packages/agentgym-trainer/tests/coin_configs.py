"""Configurations of small runs in the coin world, and a look at what still runs."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from agentgym_trainer.algorithms import GRPO, GroupFilter
from agentgym_trainer.config import RLConfig, WorldConfig
from agentgym_trainer.rollout.runner import RolloutRunner
from coin_world import ENV

TASKS, SAMPLES = 3, 2


def coins(**settings: Any) -> RLConfig:
    known: dict[str, Any] = {
        "world": WorldConfig(ENV, agent="bare", instructions=False, backend="inline"),
        # A model that knows nothing earns nothing; what moves its weights is the entropy.
        "algorithm": replace(GRPO, groups=GroupFilter(zero_variance="keep"), entropy=0.1),
        "tasks_per_step": TASKS,
        "group_size": SAMPLES,
        "steps": 5,
    }
    return RLConfig(**(known | settings))


def others(rollouts: RolloutRunner) -> int:
    """How many tasks are in the thread of the rollouts, beside this question."""

    async def count() -> int:
        return len(asyncio.all_tasks() - {asyncio.current_task()})

    return rollouts.run(count())
