"""What a run of reinforcement learning is told."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from agentgym_trainer.algorithms import GRPO, Algorithm
from agentgym_trainer.config.base import BaseConfig, at_least_one
from agentgym_trainer.config.data import DataConfig
from agentgym_trainer.config.warnings import Warnings
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon
from agentgym_trainer.curriculum.task_sampler import TaskSampler, Uniform
from agentgym_trainer.reward_shaping import EnvironmentReward, RewardShaping


@dataclass(frozen=True)
class AsyncRollout:
    """Sampling while the learner works."""

    max_staleness: int = 0
    """How many updates the weights that an episode was sampled with may lag behind those it trains. 0: exactly
    on-policy, rollouts and updates take turns."""
    on_stale: Literal["wait", "keep", "drop"] = "wait"
    """Which groups train, where some are slow. wait: those whose turn it is in the order in which tasks were drawn; the
    learner waits for the oldest, so every group trains and none lags further than `versions`. keep: the oldest that are
    complete; the learner doesn't wait for a slow group, which trains when it is complete, however far it lags. drop: as
    keep, but a group that lags further is left out, which biases training to tasks of fast or short episodes."""
    correction: Literal["token", "sequence", "off"] = "token"
    """The level of the algorithm's importance correction where it has none of its own (`algorithm.correction.level`
    off): it weighs what earlier weights sampled, token by token with the probability under the weights that sampled it
    (decoupled PPO, arXiv 2110.00641; AReaL, arXiv 2505.24298). It costs a pass of the model. 0 `versions` need none."""

    def __post_init__(self) -> None:
        if self.max_staleness < 0:
            raise ValueError(f"async_rollout.max_staleness is at least 0, not {self.max_staleness}.")

    def corrected(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with the importance correction that sampling ahead needs."""
        own = algorithm.correction
        if not self.max_staleness or own.level != "off":
            return algorithm
        return replace(algorithm, correction=replace(own, level=self.correction))


@dataclass(frozen=True)
class CriticModel:
    """Where the critic lives, for algorithms that have one."""

    where: Literal["head", "separate"] = "head"
    """A value head on the policy's own trunk, or a model of its own with the policy's size."""
    lr: float = 1e-5
    """Learning rate of what only the critic has: the head, or the whole separate model."""

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError(f"critic.lr must be above 0, not {self.lr}.")


@dataclass(frozen=True)
class WarmStart:
    """Imitation of an expert before reinforcement learning."""

    episodes: int = 0
    """Expert episodes on training tasks; 0 is no warm start."""
    noise: float = 0.0
    """Probability that the expert plays a random available action instead. Noisy experts teach the grammar and leave
    the strategy to reinforcement learning."""
    epochs: int = 1
    batch: int = 64
    """Episodes in one optimizer step."""
    lr: float = 1e-3

    def __post_init__(self) -> None:
        if self.episodes < 0 or min(self.epochs, self.batch) < 1 or not 0 <= self.noise <= 1:
            raise ValueError("warm_start needs episodes >= 0, epochs and batch >= 1, and a noise from 0 to 1.")


@dataclass(frozen=True)
class SFTTerm:
    """Imitation mixed into every update: the mean negative log-likelihood of what is said in demonstrations, beside the
    algorithm's loss (DAPG, arXiv 1709.10087; PPO-ptx, arXiv 2203.02155, eq. 2).
    """

    weight: float = 0.0
    """What it is multiplied by; 0 is no such term."""
    data: DataConfig = field(default_factory=lambda: DataConfig(episodes=256))
    batch: int = 16
    """Demonstrations in each update, dealt to its mini-batches; all are imitated once before any is again."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf or self.batch < 1:
            raise ValueError(
                "imitation needs a finite weight from 0 and a batch of at least 1; weight 0 is without it."
            )


@dataclass(frozen=True)
class RolloutFiles:
    """What of the rollouts is kept in the run's folder, for the viewer and other readers."""

    every: int = 1
    """Steps between those whose episodes are kept; the last step's are, too. 0 keeps none at all."""
    tokens: int = 2
    """Groups of such a step of which every token is kept besides, with its log-probability, advantage and entropy."""

    def __post_init__(self) -> None:
        if min(self.every, self.tokens) < 0:
            raise ValueError("rollouts needs every and tokens from 0; every 0 keeps no rollouts, tokens 0 no tokens.")


@dataclass(frozen=True)
class RLConfig(BaseConfig):
    """A run of reinforcement learning."""

    sampler: TaskSampler = field(default_factory=Uniform)
    """Which training tasks a step plays."""
    algorithm: Algorithm = GRPO
    reward: RewardShaping = field(default_factory=EnvironmentReward)
    """The rewards that episodes are trained on; scores and success are the environment's whatever it is."""
    async_rollout: AsyncRollout = field(default_factory=AsyncRollout)
    critic: CriticModel = field(default_factory=CriticModel)
    warm_start: WarmStart = field(default_factory=WarmStart)
    imitation: SFTTerm = field(default_factory=SFTTerm)
    rollouts: RolloutFiles = field(default_factory=RolloutFiles)
    warnings: Warnings = field(default_factory=Warnings)
    steps: int = 300
    """Updates: one batch of new episodes each."""
    tasks_per_step: int = 32
    """Tasks in a batch."""
    group_size: int = 8
    """Episodes of each task."""
    epochs: int = 1
    """Passes over each batch."""
    minibatches: int = 1
    """Optimizer steps in each pass over a full batch: one of `tasks` x `samples` episodes that all train."""
    scale_minibatches: bool = True
    """Take fewer optimizer steps where groups are left out, so that each has about as many completion tokens as those
    of a full batch; at least one a pass. Otherwise as many steps are taken of whatever is left."""
    train_on_truncated: bool = True
    """Whether episodes that ended at the token budget (`length`) are in the loss. Those that aren't still count in the
    baseline of their group and in statistics of advantages."""
    truncation: Literal["reward", "mask", "bootstrap"] = "reward"
    """What becomes of episodes that the horizon or a world's time limit ended (`truncated`). reward: they train on what
    they earned, as if nothing could have followed. mask: they are out of the loss and count in baselines and in
    statistics. bootstrap: what the critic expects of the next observation is added, discounted; for GAE, and other
    estimators that do so (`bootstraps`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least_one(self, "steps", "tasks_per_step", "group_size", "epochs", "minibatches")
        if self.truncation == "bootstrap" and not getattr(self.algorithm.advantages, "bootstraps", False):
            raise ValueError(
                "truncation bootstrap needs advantages that go on from the values of a critic: choose an "
                "algorithm with GAE, such as ppo, or truncation reward or mask."
            )
        if self.minibatches > self.tasks_per_step * self.group_size:
            raise ValueError(
                f"{self.tasks_per_step * self.group_size} episodes can't be dealt into {self.minibatches} minibatches."
            )
        if self.imitation.weight and self.minibatches > self.imitation.batch:
            raise ValueError(
                f"{self.imitation.batch} demonstrations can't be dealt into {self.minibatches} minibatches; set "
                "imitation.batch to at least as many."
            )
        if self.group_size == 1 and self.algorithm.groups.single != "keep":
            raise ValueError(
                "With samples 1 every group is lonely and nothing would train: set samples to 2 or more, or choose an "
                "algorithm that compares no episodes of a task, such as ppo or reinforce++."
            )
        if isinstance(self.horizon, AdaptiveHorizon) and self.horizon.patience and not self.evaluation.every:
            raise ValueError("An adaptive horizon waits for evaluations: set evaluation.every, or horizon.patience 0.")

    @property
    def masked(self) -> frozenset[Literal["length", "truncated"]]:
        """Reasons to stop for which an episode is out of the loss."""
        masked = set[Literal["length", "truncated"]]()
        if not self.train_on_truncated:
            masked.add("length")
        if self.truncation == "mask":
            masked.add("truncated")
        return frozenset(masked)
