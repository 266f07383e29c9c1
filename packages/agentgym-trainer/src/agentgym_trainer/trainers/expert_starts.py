"""Checks before a run in which the environments' experts play the first turns of episodes (`BackwardHorizon`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentgym_envs import EpisodeSpec, play_many
from agentgym_eval.policies.policies import Oracle
from agentgym_eval.util.errors import UsageError

from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.horizon import BackwardHorizon
from agentgym_trainer.rollout.environments import OpenEnvironment


def check_expert_starts(config: RLConfig, worlds: Sequence[OpenEnvironment], say: Callable[[str], None]) -> None:
    """Check that every environment has an expert, and say if the run ends before the policy plays whole tasks. Do
    nothing for other horizons.

    Raises:
        UsageError: when an expert doesn't solve its environment's first training task; the message says why.
    """
    horizon = config.horizon
    if not isinstance(horizon, BackwardHorizon):
        return
    for world in worlds:
        _check_expert(world)
    if horizon.whole_from >= config.steps:
        say(
            f"In none of the {config.steps} steps the policy plays whole tasks, since the last stage of the horizon "
            f"begins after {horizon.whole_from}: lower --horizon.every, or raise --steps."
        )


def _check_expert(world: OpenEnvironment) -> None:
    task = world.tasks.train[0]
    (episode,) = play_many(world.wrapped, Oracle(), [EpisodeSpec(task.id, seed=0)], retries=0)
    if not episode.success:
        why = (
            episode.error or f"it stopped after {episode.acts} turns ({episode.stop}) with a score of {episode.score:g}"
        )
        raise UsageError(
            f"A backward horizon needs an expert, and that of {world.name} did not solve {task.id}: {why}. Choose "
            "another horizon, such as --horizon step, or an environment whose expert solves its tasks."
        )
