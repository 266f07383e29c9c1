"""What a run is told on: the test split, played once, when training is over.

By the model that the run began with and by the one that it left, as they lie on the disk. Nothing is decided any more,
so no decision has seen what is played here.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from agentgym_trainer.config import BaseConfig, Lora
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import MANNERS, RunFolder
from agentgym_trainer.run.metrics import success_metrics
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers.evaluation import Evaluator
from agentgym_trainer.trainers.setup import saved_model


def play_test(config: BaseConfig, folder: RunFolder, tracker: RunConsole, stopping: Stopping, *, steps: int) -> bool:
    """Play the test tasks with the first and the last model of a run. What was played before stays as it is.

    Args:
        config: Of the run.
        folder: Of the run, with its last model in it.
        tracker: Shows how it goes.
        stopping: Asked before each model: whether to leave it there.
        steps: Updates that the last model has seen; of an evolution, models trained.

    Returns:
        Whether all of it has been played; True where the configuration leaves the test out.

    Raises:
        UsageError: when a world or the engine can't be had.
        EngineError: when the engine can't be brought back.
        Stopped: when the run is to end at once. What was played to its end is kept.
    """
    if not config.evaluation.test:
        return True
    ranks = Ranks()
    start = str(folder.start) if folder.start.exists() else config.model
    for step, model in {0: start, steps: str(folder.model)}.items():
        if ranks.any(stopping()):
            return False
        if not ranks.broadcast(all(step in folder.evaluated_steps(manner, test=True) for manner in MANNERS)):
            _play(config, folder, tracker, stopping, model, step)
        if ranks.is_main:
            folder.tell(_figures(folder, step))
    return True


def _play(
    config: BaseConfig, folder: RunFolder, tracker: RunConsole, stopping: Stopping, model: str, step: int
) -> None:
    # Where an adapter trained, it has been merged into what lies on the disk.
    whole = replace(config, lora=Lora())
    with (
        open_environments(config) as worlds,
        tracker.showing(),
        saved_model(whole, model, folder.path, tracker.say, stopping.check, version=step) as (rollouts, chat),
    ):
        Evaluator(whole, folder, worlds, chat, tracker, rollouts).test(step, nullcontext)


def _figures(folder: RunFolder, step: int) -> dict[str, object]:
    """Success of a model on test tasks, of all worlds and of each, as a line of metrics has that of evaluations."""
    played = {
        manner: [EpisodeOutcome.of(episode) for episode in folder.read_evaluation(step, manner, test=True) or []]
        for manner in MANNERS
    }
    worlds = dict.fromkeys(outcome.world for outcomes in played.values() for outcome in outcomes)
    by_world = {world: {"test": success_metrics(played, world)} for world in worlds}
    return {"step": step, "test": success_metrics(played), "worlds": by_world}
