"""The final test of a run: the test split, played once after training.

Both the initial and the final model play, loaded from disk. All decisions have been made by then, so none depends on
the test tasks.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from agentgym_trainer.config import BaseConfig, Lora
from agentgym_trainer.distributed import Ranks
from agentgym_trainer.rollout.environments import open_environments
from agentgym_trainer.rollout.groups import EpisodeOutcome
from agentgym_trainer.run.console import RunConsole
from agentgym_trainer.run.folder import DECODINGS, RunFolder
from agentgym_trainer.run.metrics import success_metrics
from agentgym_trainer.stopping import Stopping
from agentgym_trainer.trainers.evaluation import Evaluator
from agentgym_trainer.trainers.setup import saved_model


def play_test(config: BaseConfig, folder: RunFolder, tracker: RunConsole, stopping: Stopping, *, steps: int) -> bool:
    """Play the test tasks with the initial and the final model of a run. Saved evaluations are not played again.

    Args:
        config: The configuration of the run.
        folder: The folder of the run, with its final model.
        tracker: Shows the progress.
        stopping: Called before each model; True ends the test early.
        steps: Number of updates of the final model; for AgentEvol, number of trained models.

    Returns:
        Whether the test is complete; True if the configuration disables it.

    Raises:
        UsageError: when an environment or the engine can't be started.
        EngineError: when the engine can't be recovered.
        Stopped: when the run must end immediately. Completed evaluations are kept.
    """
    if not config.evaluation.test:
        return True
    ranks = Ranks()
    start = str(folder.start) if folder.start.exists() else config.model
    for step, model in {0: start, steps: str(folder.model)}.items():
        if ranks.any(stopping()):
            return False
        if not ranks.broadcast(all(folder.read_evaluation(step, decoding, test=True) for decoding in DECODINGS)):
            _play(config, folder, tracker, stopping, model, step)
        if ranks.is_main:
            folder.notify(_metrics(folder, step))
    return True


def _play(
    config: BaseConfig, folder: RunFolder, tracker: RunConsole, stopping: Stopping, model: str, step: int
) -> None:
    # Adapters have been merged into the saved models.
    whole = replace(config, lora=Lora())
    with (
        open_environments(config) as worlds,
        tracker.showing(),
        saved_model(whole, model, folder.path, tracker.say, stopping.check, version=step) as (rollouts, chat),
    ):
        Evaluator(whole, folder, worlds, chat, tracker, rollouts).test(step, nullcontext)


def _metrics(folder: RunFolder, step: int) -> dict[str, object]:
    """Return the success of a model on test tasks, over all environments and for each, in the format of metrics."""
    played = {
        decoding: [EpisodeOutcome.of(episode) for episode in folder.read_evaluation(step, decoding, test=True) or []]
        for decoding in DECODINGS
    }
    worlds = dict.fromkeys(outcome.world for outcomes in played.values() for outcome in outcomes)
    by_world = {world: {"test": success_metrics(played, world)} for world in worlds}
    return {"step": step, "test": success_metrics(played), "worlds": by_world}
