"""Scale a recipe down to a smoke test that runs in seconds."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from agentgym_trainer.config import (
    AgentEvolConfig,
    BaseConfig,
    DataConfig,
    DPOConfig,
    Exploration,
    OfflineConfig,
    RLConfig,
)
from agentgym_trainer.config.scratch import Scratch

_S = TypeVar("_S", bound=BaseConfig)
_STEPS, _BATCH = 2, 4


def tiny(config: _S) -> _S:
    """Return the same run scaled down: two steps of a tiny model from scratch on a CPU, otherwise unchanged.

    Raises:
        TypeError: The kind of run is unknown.
    """
    small = replace(
        config,
        model="scratch",
        scratch=Scratch(vocab=320, hidden=32, layers=2, heads=2, context=4096, episodes=4),
        generation=replace(config.generation, max_tokens=8, max_context=4096),
        evaluation=replace(config.evaluation, tasks=2, test_tasks=2, every=min(2, config.evaluation.every)),
        save_every=1,
        device="cpu",
        precision="no",
    )
    match small:
        case RLConfig():
            return replace(
                small,
                warm_start=replace(small.warm_start, episodes=min(8, small.warm_start.episodes), epochs=1),
                imitation=replace(small.imitation, data=_few(small.imitation.data), batch=_BATCH),
                # So small a model never succeeds: all groups would be flat, and no update would be taken.
                algorithm=replace(small.algorithm, groups=replace(small.algorithm.groups, zero_variance="keep")),
                steps=_STEPS,
                tasks_per_step=2,
                group_size=2,
                minibatches=min(4, small.minibatches),
            )
        case DPOConfig():
            # An untrained model never succeeds; a very noisy expert sometimes does.
            data = replace(small.data, episodes=4 * _BATCH, noise=0.8)
            return replace(small, data=data, player="expert", samples=2 * _BATCH, batch=_BATCH, epochs=1)
        case AgentEvolConfig():
            # So small a model never succeeds and seldom completes a reply; train on all episodes without truncation.
            explored = Exploration(tasks=2, samples=2, keep="all")
            return replace(small, data=_few(small.data), batch=_BATCH, epochs=1, iterations=1, exploration=explored)
        case OfflineConfig():
            return replace(small, data=_few(small.data), batch=_BATCH, epochs=1)
        case _:
            raise TypeError(f"A run of kind {type(config).__name__} has no miniature.")


def _few(data: DataConfig) -> DataConfig:
    return replace(data, episodes=min(_STEPS * _BATCH, data.episodes))
