"""A player that takes as long as it is told to, and all that sampling ahead needs beside it."""

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


class Teller(Policy):
    """Says heads; in the tasks that are `held`, not before they are let go."""

    name = "teller"

    def __init__(self) -> None:
        self.version = 0
        self.held = set[str]()
        self.begun: list[str] = []
        self.error: Exception | None = None
        self.left = 0

    async def reply(self, seat: TurnContext) -> Reply:
        task, version = seat.info["task_id"], self.version
        first = len(seat.conversation) == 1
        if first:
            self.begun.append(task)
        await asyncio.sleep(0)
        await eventually_async(lambda: task not in self.held)
        if self.error is not None:
            raise self.error
        return Reply("heads", "stop", Sample((1,), (2,), (-0.5,), version, first))

    def forget(self, key: int) -> None:
        self.left += 1


def silent_engine() -> ScriptedEngine:
    """For rollouts whose player asks no engine."""
    return ScriptedEngine(lambda _: (), end_id=0)


class Table:
    """What an `Ahead` needs, and the tasks that it is dealt: of every world the first ones, then the next ones."""

    def __init__(
        self, config: RLConfig, stack: ExitStack, teller: Teller | None = None, rollouts: RolloutRunner | None = None
    ) -> None:
        Accelerator(cpu=True)
        self.config = config
        self.teller = teller or Teller()
        self.worlds: list[OpenEnvironment] = stack.enter_context(open_environments(config))
        self.rollouts = stack.enter_context(rollouts or RolloutRunner(silent_engine()))
        self.ranks = Ranks()
        self.reopen(self.draw)
        stack.callback(lambda: self.ahead.close())

    def reopen(self, draw: Draw) -> None:
        """Begin anew, with nothing in play."""
        self.ahead = AsyncCollector(self.rollouts, self.teller, self.config, self.worlds, draw, ranks=self.ranks)

    def draw(self, number: int, progress: TrainingState) -> list[GroupSpec]:
        each, dealt = self.config.tasks_per_step // len(self.worlds), list[GroupSpec]()
        for world in self.worlds:
            train = world.tasks.train
            tasks = [train[at % len(train)] for at in range(number * each, number * each + each)]
            dealt += group_specs(world, tasks, samples=SAMPLES, seed=number)
        return dealt

    def collect(self, step: int, turns: int = 3, before: Sequence[dict[str, Any]] = ()) -> list[EpisodeGroup]:
        """The groups for the update after `step`, with weights that have seen as many; in a run that goes on from what
        its processes had under way `before`.
        """
        self.teller.version = step
        return self.ahead.collect(TrainingState(Stage(turns), step=step, in_flight=list(before)))
