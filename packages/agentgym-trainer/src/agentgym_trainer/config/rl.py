"""Configuration of reinforcement learning."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Literal

from agentgym_trainer.algorithms import GRPO, Algorithm, GoalDistance, GroupRelative, NestedStepGroups, StepGroups
from agentgym_trainer.config.base import BaseConfig, at_least_one
from agentgym_trainer.config.data import DataConfig, check_tasks
from agentgym_trainer.config.distillation import Distillation
from agentgym_trainer.config.warnings import Warnings
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, BackwardHorizon
from agentgym_trainer.curriculum.task_sampler import TaskSampler, Uniform
from agentgym_trainer.reward_shaping import EnvironmentReward, PerTurn, RewardShaping


@dataclass(frozen=True)
class AsyncRollout:
    """Asynchronous rollouts: sample the next batches during the update."""

    max_staleness: int = 0
    """Maximum staleness: how many updates the weights that sampled an episode may be behind those that it trains. 0:
    exactly on-policy, rollouts and updates alternate."""
    on_stale: Literal["wait", "keep", "drop"] = "wait"
    """Which groups train if some are slow. wait: groups in the order in which their tasks were drawn; the learner waits
    for the oldest, so every group trains and none exceeds `max_staleness`. keep: the oldest complete groups; the
    learner doesn't wait for a slow group, which trains once it is complete, however stale. drop: like keep, but groups
    that exceed `max_staleness` are dropped, which biases training towards tasks with fast or short episodes."""
    correction: Literal["token", "sequence", "off"] = "token"
    """Level of the importance correction if the algorithm has none of its own (`algorithm.correction.level` off): it
    weights stale samples, token by token relative to the weights that sampled them (decoupled PPO, arXiv 2110.00641;
    AReaL, arXiv 2505.24298). It costs an extra forward pass of the model. Not used with a `max_staleness` of 0."""

    def __post_init__(self) -> None:
        if self.max_staleness < 0:
            raise ValueError(f"async_rollout.max_staleness must be at least 0, not {self.max_staleness}.")

    def corrected(self, algorithm: Algorithm) -> Algorithm:
        """Return the algorithm with the importance correction that asynchronous rollouts need."""
        own = algorithm.correction
        if not self.max_staleness or own.level != "off":
            return algorithm
        return replace(algorithm, correction=replace(own, level=self.correction))


@dataclass(frozen=True)
class CriticModel:
    """Architecture of the critic, for algorithms that have one."""

    where: Literal["head", "separate"] = "head"
    """head: a value head on the policy's trunk. separate: a separate model of the policy's size."""
    lr: float = 1e-5
    """Learning rate of the critic's own weights: the head, or the whole separate model."""

    def __post_init__(self) -> None:
        if self.lr <= 0:
            raise ValueError(f"critic.lr must be above 0, not {self.lr}.")


@dataclass(frozen=True)
class DAgger:
    """Rounds of DAgger (Ross, Gordon and Bagnell 2011, arXiv 1011.0686) after the imitation of the expert's episodes.

    In each round, the policy and the expert play episodes together, which are added to the data; then the policy trains
    on all of it. The expert must be able to act in any state, as in BabyAI, TextCraft and SearchQA.
    """

    rounds: int = 0
    """Number of rounds; 0: none."""
    episodes: int = 256
    """Episodes per round."""
    beta: float = 0.5
    """Probability that the expert replies in a turn instead of the policy. Its replies are trained on; those of the
    policy are context."""
    epochs: int = 1
    """Passes over the episodes of all rounds so far, at the end of each round."""

    def __post_init__(self) -> None:
        if self.rounds < 0 or min(self.episodes, self.epochs) < 1 or not 0 < self.beta <= 1:
            raise ValueError(
                "warm_start.dagger needs rounds >= 0, episodes and epochs >= 1, and a beta above 0 and at most 1."
            )


@dataclass(frozen=True)
class WarmStart:
    """Supervised warm start on expert episodes before reinforcement learning."""

    episodes: int = 0
    """Number of expert episodes on training tasks; 0: no warm start."""
    noise: float = 0.0
    """Probability that the expert takes a random available action instead of its own. The model then also sees states
    that the expert itself would not reach."""
    imitate_noise: bool = False
    """Whether the random actions are in the loss; otherwise they are context. Imitating them teaches the action syntax
    and leaves the strategy to reinforcement learning."""
    imitate_labels: bool = False
    """Whether the expert's own replies are in the loss where it acts at random. Each costs a context."""
    rename: float = 0.0
    """Probability that an episode is renamed: the interchangeable names of its environment (items in TextCraft, colors
    in BabyAI, words of names in SearchQA's almanac, placeholder words and first names in MiniWoB++) are permuted in all
    of its texts, so that the model has to copy them."""
    copies: int = 1
    """How often each expert episode is in the data, each time renamed differently: few demonstrations then have many
    names."""
    epochs: int = 1
    """Passes over the expert episodes."""
    batch: int = 64
    """Episodes per optimizer step."""
    lr: float = 1e-3
    """Learning rate."""
    dagger: DAgger = field(default_factory=DAgger)

    def __post_init__(self) -> None:
        if self.episodes < 0 or min(self.epochs, self.batch) < 1:
            raise ValueError("warm_start needs episodes >= 0, and epochs and batch >= 1.")
        if self.lr <= 0:
            raise ValueError(f"warm_start.lr must be above 0, not {self.lr}.")
        if not 0 <= self.noise <= 1 or not 0 <= self.rename <= 1:
            raise ValueError("warm_start.noise and warm_start.rename are probabilities, from 0 to 1.")
        if self.copies < 1 or (self.copies > 1 and not self.rename):
            raise ValueError(
                "warm_start.copies is at least 1, and copies differ only by their names: set warm_start.rename, too."
            )
        if self.noise == 1 and not (self.imitate_noise or self.imitate_labels):
            raise ValueError(
                "With warm_start.noise 1 the expert never acts itself: set warm_start.imitate_labels, "
                "warm_start.imitate_noise or a lower noise."
            )
        if self.imitate_labels and (self.imitate_noise or not self.noise):
            raise ValueError(
                "warm_start.imitate_labels trains on what the expert would do instead of its random actions: set "
                "warm_start.noise, and not warm_start.imitate_noise."
            )
        if self.dagger.rounds and not self.episodes:
            raise ValueError("warm_start.dagger follows the imitation of the expert: set warm_start.episodes, too.")


@dataclass(frozen=True)
class SFTTerm:
    """An SFT term in every update: the mean negative log-likelihood of demonstrations, added to the algorithm's loss
    (DAPG, arXiv 1709.10087; PPO-ptx, arXiv 2203.02155, eq. 2).
    """

    weight: float = 0.0
    """Coefficient of the term; 0 turns it off."""
    data: DataConfig = field(default_factory=lambda: DataConfig(episodes=256))
    batch: int = 16
    """Demonstrations per update, split over its mini-batches; all are used once before any is repeated."""

    def __post_init__(self) -> None:
        if not 0 <= self.weight < math.inf or self.batch < 1:
            raise ValueError("imitation needs a finite weight from 0 and a batch of at least 1; weight 0 turns it off.")


@dataclass(frozen=True)
class RolloutFiles:
    """Rollouts to save in the run folder, for the viewer and other readers."""

    every: int = 1
    """Save the episodes of every N-th step and of the last one; 0: save none."""
    tokens: int = 2
    """Groups per saved step whose tokens are saved too, with log-probability, advantage and entropy of each."""

    def __post_init__(self) -> None:
        if min(self.every, self.tokens) < 0:
            raise ValueError(
                "rollouts.every and rollouts.tokens must be at least 0; every 0 saves no rollouts, tokens 0 no tokens."
            )


@dataclass(frozen=True)
class RLConfig(BaseConfig):
    """A reinforcement-learning run."""

    sampler: TaskSampler = field(default_factory=Uniform)
    """Sampler of the training tasks of a step."""
    algorithm: Algorithm = GRPO
    reward: RewardShaping = field(default_factory=EnvironmentReward)
    """The rewards that episodes are trained on; reported scores and success are always the environment's."""
    async_rollout: AsyncRollout = field(default_factory=AsyncRollout)
    critic: CriticModel = field(default_factory=CriticModel)
    warm_start: WarmStart = field(default_factory=WarmStart)
    imitation: SFTTerm = field(default_factory=SFTTerm)
    distillation: Distillation = field(default_factory=Distillation)
    rollouts: RolloutFiles = field(default_factory=RolloutFiles)
    warnings: Warnings = field(default_factory=Warnings)
    save_async: Literal["auto", "on", "off"] = "auto"
    """Write checkpoints while training continues, from a copy of weights and optimizer state in host memory. One is
    written at a time, and the run ends only once it's whole. auto: on accelerators, and with several processes."""
    harness: str = ""
    """Function that plays the episodes, as MODULE:NAME or an entry point of the group `agentgym.harnesses`, instead of
    the environment's agent: it gets a task and the address of an OpenAI-compatible endpoint for the model in training,
    and returns a reward (`agentgym_trainer.gateway.harness.Harness`). Tasks are those of `world`."""
    harness_command: str = ""
    """Command that does the same in a process of its own, with OPENAI_BASE_URL and OPENAI_API_KEY in its environment
    and the task as JSON on its standard input. The last line that it prints is the reward."""
    harness_timeout: float = 600.0
    """Seconds after which an episode of a harness has failed."""
    harness_concurrency: int = 16
    """Concurrent episodes of a harness per process."""
    steps: int = 300
    """Updates, each on a new batch of episodes."""
    tasks_per_step: int = 32
    """Tasks per batch."""
    turns_per_step: int = 0
    """Number of turns per batch, to within half a group: if the episodes of `tasks_per_step` tasks have fewer, more
    tasks are played, so that short and long horizons train on about as many turns per update. Groups that others
    replaced don't count. 0: any number."""
    group_size: int = 8
    """Episodes per task."""
    epochs: int = 1
    """Passes over each batch."""
    minibatches: int = 1
    """Optimizer steps per pass over a full batch, which has `tasks_per_step` x `group_size` episodes that all train."""
    scale_minibatches: bool = True
    """Take fewer optimizer steps if groups are dropped, so that each has about as many completion tokens as those of a
    full batch; at least one per pass. Otherwise, and with labels (`distillation.expert`), which all groups have, the
    number of steps stays the same."""
    train_on_truncated: bool = True
    """Whether episodes that ended at the token budget (`length`) are in the loss. Otherwise they are masked, but still
    count in the baseline of their group and in statistics of advantages."""
    truncation: Literal["reward", "mask", "bootstrap"] = "reward"
    """How to treat episodes that ended at the horizon or at the environment's time limit (`truncated`). reward: train
    on their rewards, with value 0 after the last turn. mask: exclude them from the loss, but not from baselines and
    statistics. bootstrap: add the critic's discounted value of the next observation; for GAE and other estimators that
    support it (`bootstraps`)."""
    kernels: Literal["auto", "off", "liger"] = "auto"
    """Kernels of RMSNorm and gated MLPs in the models that train. liger: those of Liger (extra `liger`), on CUDA. off:
    PyTorch's. auto: Liger's if they are installed, know the model and nothing is compiled."""
    compile: bool = False
    """Compile the decoder layers of the models that train with torch.compile, once for packs of any length. Takes
    minutes at the start of a run and needs a C++ compiler. For models that aren't sharded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.compile and self.kernels == "liger":
            raise ValueError(
                "compile fuses the operations that Liger has kernels for: set kernels auto, or no compile."
            )
        at_least_one(self, "steps", "tasks_per_step", "group_size", "epochs", "minibatches", "harness_concurrency")
        self._check_harness()
        if self.turns_per_step < 0:
            raise ValueError(f"turns_per_step must be at least 0 (any number), not {self.turns_per_step}.")
        if self.turns_per_step and self.async_rollout.max_staleness:
            raise ValueError(
                "turns_per_step can't be combined with asynchronous rollouts, whose batches are groups in the order in "
                "which their tasks were drawn: set turns_per_step 0 or async_rollout.max_staleness 0."
            )
        self._check_quantization()
        if self.imitation.weight:
            check_tasks(self.imitation.data, len(self.worlds), "imitation.data")
        if self.truncation == "bootstrap" and not getattr(self.algorithm.advantages, "bootstraps", False):
            raise ValueError(
                "truncation bootstrap needs advantages that bootstrap from the values of a critic: choose an "
                "algorithm with GAE, such as ppo, or truncation reward or mask."
            )
        if self.minibatches > self.tasks_per_step * self.group_size:
            raise ValueError(
                f"{self.tasks_per_step * self.group_size} episodes can't be split into {self.minibatches} minibatches."
            )
        if self.imitation.weight and self.minibatches > self.imitation.batch:
            raise ValueError(
                f"{self.imitation.batch} demonstrations can't be split into {self.minibatches} minibatches; set "
                "imitation.batch to at least as many."
            )
        self._check_kl_in_rewards()
        if self.group_size == 1 and self.algorithm.groups.single != "keep":
            raise ValueError(
                "With group_size 1 no group has episodes to compare, and nothing would train: set group_size to 2 or "
                "more, or choose an algorithm that doesn't compare the episodes of a task, such as ppo or reinforce++."
            )
        if isinstance(self.horizon, AdaptiveHorizon) and self.horizon.patience and not self.evaluation.every:
            raise ValueError("An adaptive horizon needs evaluations: set evaluation.every, or horizon.patience 0.")

    def _check_kl_in_rewards(self) -> None:
        advantages, groups = self.algorithm.advantages, self.algorithm.groups
        if self.algorithm.kl.where == "reward" and not self.distillation.reward_weight:
            raise ValueError(
                "distillation.reward_weight 0 also leaves out a KL penalty in the reward: set algorithm.kl.where loss, "
                "or off."
            )
        if self.algorithm.kl.where != "reward" or getattr(advantages, "scale", "none") != "std":
            return
        consequence = (
            "a KL penalty on rewards would be divided by its own standard deviation, so that its weight had no effect: "
            "set algorithm.kl.where loss, or algorithm.advantages.scale none"
        )
        by_turn = isinstance(advantages, GroupRelative) and advantages.returns == "turn"
        if by_turn or isinstance(advantages, StepGroups | NestedStepGroups | GoalDistance):
            raise ValueError(
                "Turns or episodes that are compared may have equal rewards in groups that train because of others; "
                f"there, {consequence}."
            )
        if self.distillation.teacher or groups.zero_variance == "keep":
            raise ValueError(
                f"In groups whose rewards are equal, {consequence}, or without a teacher "
                "algorithm.groups.zero_variance drop."
            )

    def _check_harness(self) -> None:
        if self.harness and self.harness_command:
            raise ValueError("A run has one harness: set harness or harness_command, not both.")
        if not 0 < self.harness_timeout < math.inf:
            raise ValueError(f"harness_timeout must be finite and above 0, not {self.harness_timeout:g}.")
        if (self.harness or self.harness_command) and self.truncation == "bootstrap":
            raise ValueError(
                "truncation bootstrap needs the observation after the last action, which a harness doesn't show: "
                "choose truncation reward or mask."
            )
        if (self.harness or self.harness_command) and isinstance(self.horizon, BackwardHorizon):
            raise ValueError(
                "A backward horizon lets the environment's expert begin episodes, but a harness begins its own: choose "
                "the horizon fixed, step or adaptive."
            )
        if (self.harness or self.harness_command) and self.distillation.expert:
            raise ValueError(
                "distillation.expert replies in the turns of the environment's agent, which a harness doesn't have: "
                "leave distillation.expert empty, or learn from the log-probabilities of a distillation.teacher."
            )
        prompts = [world.prompt for world in self.worlds if world.prompt]
        if (self.harness or self.harness_command) and prompts:
            raise ValueError(
                f"A harness writes its own messages, so the prompt {prompts[0]} doesn't apply: leave it out."
            )
        shaped = isinstance(self.reward, PerTurn) and (self.reward.invalid_penalty or self.reward.format_bonus)
        if (self.harness or self.harness_command) and shaped:
            raise ValueError(
                "reward.invalid_penalty and reward.format_bonus judge an agent's actions, which a harness doesn't "
                "show: leave both 0, and let the harness's own reward judge them."
            )

    def _check_quantization(self) -> None:
        quantize = self.lora.quantize
        if quantize != "off" and self.algorithm.needs_critic and self.critic.where == "separate":
            raise ValueError(
                f"lora.quantize {quantize} doesn't work with a separate critic, which is a copy of the model whose "
                "weights all train: set critic.where head, or leave lora.quantize off."
            )
        if quantize != "off" and self.engine.urls:
            raise ValueError(
                f"With lora.quantize {quantize} an engine needs the base model that the run rounds and saves, which "
                "the servers of engine.urls don't have: let the run start a server (engine.devices), sample with "
                "another engine, or leave lora.quantize off."
            )

    @property
    def masked(self) -> frozenset[Literal["length", "truncated"]]:
        """Stop reasons whose episodes are masked in the loss."""
        masked = set[Literal["length", "truncated"]]()
        if not self.train_on_truncated:
            masked.add("length")
        if self.truncation == "mask":
            masked.add("truncated")
        return frozenset(masked)
