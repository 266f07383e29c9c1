"""The groups of a training step: the episodes of one task, and their outcomes.

Metrics are computed from outcomes, which are small: each process plays its share of the groups and receives the
outcomes of all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from agentgym_envs import Episode, StopReason
from agentgym_envs.episodes.episode import Kind
from agentgym_eval.metrics.failure_causes import Distances, failure_cause

from agentgym_trainer.algorithms import Algorithm
from agentgym_trainer.algorithms.group_filter import GroupKind as GroupKind
from agentgym_trainer.algorithms.group_filter import Treatment
from agentgym_trainer.curriculum.horizon import improving
from agentgym_trainer.plugins import blaming
from agentgym_trainer.reward_shaping import EnvironmentReward, RewardShaping, shaped_rewards
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Trajectory, outline, own_rewards

_UNSHAPED = EnvironmentReward()


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """An episode in numbers."""

    world: str
    task: str
    stop: StopReason
    score: float | None
    """None if the episode failed, as is `success`."""
    success: bool | None
    turns: int
    """Number of the policy's actions."""
    trials: int
    """Number of attempts at the task, for agents that try again."""
    valid: float | None
    """Share of valid actions; None without actions."""
    cut: bool
    """Whether the horizon truncated it while its rewards were still growing."""
    contexts: int
    """Number of contexts: one, unless the chat template rewrote history or a new trial began."""
    prompt_tokens: int
    """Tokens of prompts: instructions, observations and template."""
    completion_tokens: int
    """Tokens that the policy sampled."""
    replies: tuple[tuple[Kind, int], ...]
    """Kind and number of completion tokens of each of the policy's turns."""
    version: int | None
    """Version (number of updates) of the oldest weights that it was sampled with; None without samples."""
    tokens_by_version: tuple[tuple[int, int], ...] = ()
    """Pairs of a version of the weights and the number of completion tokens sampled with it, oldest first."""
    shaped: float | None = None
    """Sum of the shaped rewards; None where rewards aren't shaped, and if the episode failed."""
    error: str | None = None
    """Why it failed."""
    expert_turns: int = 0
    """Number of actions of the environment's expert before the policy's."""
    cause: str | None = None
    """Kind of its `FailureCause`; None for a success and if it failed."""

    @classmethod
    def of(
        cls, episode: Episode, shaped: Sequence[float] | None = None, distances: Distances | None = None
    ) -> EpisodeOutcome:
        """The outcome of an episode, with the shaped rewards of the policy's turns if there are any. Causes that need
        the expert are told only with its distances.
        """
        turns = [turn for turn in episode.turns if not turn.reply.expert]
        acts = [turn for turn in turns if turn.kind == "act"]
        samples = [turn.reply.sample for turn in turns if turn.reply.sample]
        trained = (turn.reply.sample for turn in turns if turn.loss and turn.reply.sample)
        versions = Counter(version for sample in trained for version in sample.token_versions)
        last = [turn.reward for turn in acts if turn.trial == turns[-1].trial]
        return cls(
            world=episode.env,
            task=episode.task_id,
            stop=episode.stop,
            score=episode.score,
            success=episode.success,
            turns=len(acts),
            # The reflection on a trial belongs to the next trial, which may never have begun.
            trials=len({0} | {turn.trial for before, turn in pairwise(episode.turns) if before.trial == turn.trial}),
            valid=fmean(turn.valid for turn in acts) if acts else None,
            cut=episode.stop == "truncated" and improving(last),
            contexts=sum(sample.fresh for sample in samples),
            prompt_tokens=sum(len(sample.prompt) for sample in samples),
            completion_tokens=sum(len(sample.ids) for sample in samples),
            replies=tuple((turn.kind, len(turn.reply.sample.ids) if turn.reply.sample else 0) for turn in turns),
            version=min((sample.version for sample in samples), default=None),
            tokens_by_version=tuple(sorted(versions.items())),
            shaped=None if shaped is None else sum(shaped),
            error=episode.error,
            cause=cause.kind if (cause := failure_cause(episode, distances=distances)) else None,
            expert_turns=sum(turn.kind == "act" and turn.reply.expert for turn in episode.turns),
        )


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """A group in numbers."""

    number: int
    """Index among all groups of the step."""
    kind: GroupKind
    treatment: Treatment
    episodes: tuple[EpisodeOutcome, ...]
    masked: frozenset[StopReason] = frozenset()
    """Episodes that stopped for one of these reasons are out of the loss."""
    stage: int = 0
    """Number of the horizon's stage in which it began."""

    @property
    def trained(self) -> list[EpisodeOutcome]:
        """The episodes that are in the loss."""
        return [e for e in self.episodes if self.treatment == "keep" and e.stop not in {"failed", *self.masked}]

    @property
    def world(self) -> str:
        """Id of the environment."""
        return self.episodes[0].world

    @property
    def task(self) -> str:
        """Id of the task."""
        return self.episodes[0].task

    def lag(self, version: int) -> int:
        """How many updates the oldest weights it was sampled with are behind `version`; 0 without samples."""
        return max((version - e.version for e in self.episodes if e.version is not None), default=0)


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """The episodes of one task in one step."""

    number: int
    """Index among all groups of the step."""
    episodes: tuple[Episode, ...]
    usable: tuple[Episode, ...]
    """Those that did not fail: they count in baselines and statistics."""
    kind: GroupKind
    treatment: Treatment
    shaped: Mapping[int, tuple[float, ...]]
    """Shaped rewards of the policy's turns, by the `sample` of episodes that didn't fail; empty without shaping."""
    masked: frozenset[StopReason] = frozenset()
    """Usable episodes that stopped for one of these reasons are out of the loss."""
    stage: int = 0
    """Number of the horizon's stage in which it began."""

    @property
    def outcome(self) -> GroupOutcome:
        """The group in numbers."""
        outcomes = tuple(EpisodeOutcome.of(episode, self.shaped.get(episode.sample)) for episode in self.episodes)
        return GroupOutcome(self.number, self.kind, self.treatment, outcomes, self.masked, self.stage)

    def rewards(self, episode: Episode) -> tuple[float, ...]:
        """The rewards that an episode of the group trains on, one for each of the policy's turns."""
        return self.shaped.get(episode.sample) or own_rewards(episode)

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[Episode],
        algorithm: Algorithm,
        *,
        masked: frozenset[StopReason] = frozenset(),
        number: int = 0,
        stage: int = 0,
        reward: RewardShaping = _UNSHAPED,
        has_teacher: bool = False,
    ) -> EpisodeGroup:
        """Classify a group by the algorithm's group filter.

        Args:
            episodes: All episodes of the group.
            algorithm: Decides which groups have zero variance, and what is done with each kind of group.
            masked: Stop reasons of episodes that are left out of the loss.
            number: Index among all groups of the step.
            stage: Number of the stage in which it began.
            reward: Reward shaping.
            has_teacher: Whether a teacher's log-probabilities give advantages, in groups of equal rewards, too.

        Raises:
            ValueError: if a shaped reward isn't a finite number; reward shaping may raise other exceptions.
            PluginError: if the advantage estimator of another package can't be used.
        """
        usable = tuple(e for e in episodes if not e.failed)
        shaped = {} if reward == _UNSHAPED else {e.sample: own_rewards(e, shaped_rewards(reward, e)) for e in usable}
        group = cls(number, tuple(episodes), usable, "ok", "keep", shaped, masked, stage)
        outlines = make_batch([group.trajectory(e, outline(e)) for e in usable])
        with blaming(algorithm.advantages, doing=f"compare the episodes of {episodes[0].task_id}"):
            flat = algorithm.is_flat(outlines.tokens)
        kind, treatment = algorithm.groups.classify(len(usable), zero_variance=flat, failed=len(episodes) - len(usable))
        taught = has_teacher and kind == "zero_variance"
        return replace(group, kind=kind, treatment="keep" if taught else treatment)

    def trajectory(self, episode: Episode, tokens: Trajectory) -> Trajectory:
        """The trajectory of an episode with its rewards and group, and whether it is in the loss."""
        in_loss = episode.stop not in self.masked
        return replace(tokens, group=str(self.number), rewards=self.rewards(episode), in_loss=in_loss)
