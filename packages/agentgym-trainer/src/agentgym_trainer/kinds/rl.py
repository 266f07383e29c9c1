"""Reinforcement learning."""

from __future__ import annotations

from dataclasses import replace

from agentgym_trainer.config import DAgger, RLConfig
from agentgym_trainer.kinds.base import BATCH, STEPS, RunKind, few


def _miniature(config: RLConfig) -> RLConfig:
    algorithm, kl = config.algorithm, config.algorithm.kl
    if kl.where == "reward" and getattr(algorithm.advantages, "scale", "none") == "std":
        kl = replace(kl, where="loss")  # refused with groups of equal rewards, which are kept here
    return replace(
        config,
        warm_start=replace(
            config.warm_start,
            episodes=min(8, config.warm_start.episodes),
            epochs=1,
            dagger=_few(config.warm_start.dagger),
        ),
        imitation=replace(config.imitation, data=few(config.imitation.data), batch=BATCH),
        # So small a model never succeeds: all groups would have zero variance, and no update would be taken.
        algorithm=replace(algorithm, kl=kl, groups=replace(algorithm.groups, zero_variance="keep")),
        steps=STEPS,
        tasks_per_step=2,
        turns_per_step=0,
        group_size=2,
        minibatches=min(4, config.minibatches),
    )


def _few(dagger: DAgger) -> DAgger:
    return replace(dagger, rounds=min(1, dagger.rounds), episodes=min(8, dagger.episodes), epochs=1)


RL = RunKind(
    "rl",
    RLConfig,
    "agentgym_trainer.trainers.rl:train",
    _miniature,
    x="env_steps",
    x_label="environment steps",
    plots_training=True,
    plots_loss=False,
)
