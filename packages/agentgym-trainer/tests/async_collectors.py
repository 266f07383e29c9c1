"""A collector that samples ahead, with a policy whose episodes tests can block."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from accelerate import Accelerator
from agentgym_envs import Policy, Reply, Sample, TurnContext
from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.horizon import Stage
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.engines.scripted import ScriptedEngine
from agentgym_trainer.rollout.async_collector import AsyncCollector, Draw
from agentgym_trainer.rollout.environments import GroupSpec, OpenEnvironment, group_specs, open_environments
from agentgym_trainer.rollout.groups import EpisodeGroup
from agentgym_trainer.rollout.runner import RolloutRunner
from coin_configs import SAMPLES
from patience import eventually_async


class BlockablePolicy(Policy):
    """Replies "heads"; in tasks of `blocked_tasks`, only after they are unblocked."""

    name = "blockable"

    def __init__(self) -> None:
        self.version = 0
        self.blocked_tasks = set[str]()
        self.started: list[str] = []
        self.error: Exception | None = None
        self.forgotten = 0

    async def reply(self, context: TurnContext) -> Reply:
        task, version = context.info["task_id"], self.version
        first = len(context.conversation) == 1
        if first:
            self.started.append(task)
        await asyncio.sleep(0)
        await eventually_async(lambda: task not in self.blocked_tasks)
        if self.error is not None:
            raise self.error
        return Reply("heads", "stop", Sample((1,), (2,), (-0.5,), version, first))

    def forget(self, key: int) -> None:
        self.forgotten += 1


def unused_engine() -> ScriptedEngine:
    """Return an engine for rollouts whose policy doesn't use it."""
    return ScriptedEngine(lambda _: (), end_id=0)


class CollectorSetup:
    """An `AsyncCollector` with everything it needs. It draws the tasks of each environment in order."""

    def __init__(
        self,
        config: RLConfig,
        stack: ExitStack,
        policy: BlockablePolicy | None = None,
        rollouts: RolloutRunner | None = None,
    ) -> None:
        Accelerator(cpu=True)
        self.config = config
        self.policy = policy or BlockablePolicy()
        self.worlds: list[OpenEnvironment] = stack.enter_context(open_environments(config))
        self.rollouts = stack.enter_context(rollouts or RolloutRunner(unused_engine()))
        self.ranks = Ranks()
        self.reopen(self.draw)
        stack.callback(lambda: self.collector.close())

    def reopen(self, draw: Draw) -> None:
        """Replace the collector by a new one without episodes in flight."""
        self.collector = AsyncCollector(self.rollouts, self.policy, self.config, self.worlds, draw, ranks=self.ranks)

    def draw(self, number: int, progress: TrainingState) -> list[GroupSpec]:
        count, specs = self.config.tasks_per_step // len(self.worlds), list[GroupSpec]()
        for world in self.worlds:
            train = world.tasks.train
            tasks = [train[at % len(train)] for at in range(number * count, number * count + count)]
            specs += group_specs(world, tasks, samples=SAMPLES, seed=number)
        return specs

    def collect(self, step: int, turns: int = 3, before: Sequence[dict[str, Any]] = ()) -> list[EpisodeGroup]:
        """Collect the groups for the update after `step`, with the weights of that step.

        Args:
            before: What the processes of an interrupted run had in flight.
        """
        self.policy.version = step
        return self.collector.collect(TrainingState(Stage(turns), step=step, in_flight=list(before)))
