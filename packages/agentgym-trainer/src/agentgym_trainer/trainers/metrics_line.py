"""A training step's line of `metrics.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.state import TrainingState
from agentgym_trainer.rollout.async_metrics import length_metrics, staleness_metrics
from agentgym_trainer.run.console import PHASES
from agentgym_trainer.run.metrics import step_metrics
from agentgym_trainer.trainers.rl_batch import Rollouts


def metrics_line(
    state: TrainingState,
    rollouts: Rollouts,
    metrics: dict[str, Any],
    config: RLConfig,
    *,
    worlds: Sequence[str],
    seconds: Mapping[str, float],
    gap: float | None,
) -> dict[str, Any]:
    """Return the line of a step, without its evaluation.

    Args:
        state: The state after the step.
        rollouts: The episodes of the step.
        metrics: The metrics of the update; `tokens` is taken out.
        config: The configuration of the run.
        worlds: Names of the environments.
        seconds: Seconds by phase. Those of `checkpoint` are of the step before, since this step's checkpoint is still
            to be written.
        gap: The latest mean difference between the log-probabilities of engine and learner; None if it is unknown.
    """
    stage, episodes = state.stage, step_metrics(rollouts.groups, worlds)
    tokens = episodes["tokens"] | rollouts.usage | metrics.pop("tokens")
    return {
        "step": state.step,
        "env_steps": state.env_steps,
        "horizon": stage.turns,
        "stage": {
            "number": stage.number,
            "since": stage.since,
            "why": stage.reason,
            **({} if stage.remaining is None else {"remaining": stage.remaining}),
        },
        **episodes,
        "staleness": staleness_metrics(rollouts.groups, state.step - 1, config.async_rollout.max_staleness),
        "lengths": length_metrics(rollouts.groups),
        **({} if gap is None else {"logprob_check_gap": gap}),
        "tokens": tokens,
        **metrics,
        "seconds": dict(seconds),
        "tokens_per_s": tokens["total"] / sum(seconds.get(name, 0.0) for name in PHASES),
    }
