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

from agentgym_trainer.algorithms import Algorithm
from agentgym_trainer.algorithms.group_filter import GroupKind as GroupKind
from agentgym_trainer.algorithms.group_filter import Treatment
from agentgym_trainer.curriculum.horizon import improving
from agentgym_trainer.plugins import blaming
from agentgym_trainer.reward_shaping import EnvironmentReward, RewardShaping, shaped_rewards
from agentgym_trainer.tokens.batch import make_batch
from agentgym_trainer.tokens.trajectory import Trajectory, outline

_UNSHAPED = EnvironmentReward()


@dataclass(frozen=True, slots=True)
class EpisodeOutcome:
    """What came of an episode, in numbers."""

    world: str
    task: str
    stop: StopReason
    score: float | None
    """None when it failed, and so is `success`."""
    success: bool | None
    turns: int
    """How many actions it has."""
    trials: int
    """How often the task was begun."""
    valid: float | None
    """Share of the actions that were understood; None when there are none."""
    cut: bool
    """Whether the horizon ended it while it was still earning."""
    contexts: int
    """Runs of tokens that the agent read: one, unless the chat template rewrote history or the conversation began
    anew."""
    prompt_tokens: int
    """Tokens that the agent read, without its own."""
    completion_tokens: int
    """Tokens that the agent sampled."""
    replies: tuple[tuple[Kind, int], ...]
    """What each turn was for, and how many tokens it said."""
    version: int | None
    """Number of updates that the oldest weights have seen that it was sampled with; None without samples."""
    tokens_by_version: tuple[tuple[int, int], ...] = ()
    """How many completion tokens were sampled with weights that had seen how many updates, oldest first."""
    shaped: float | None = None
    """Sum of the rewards that it is trained on; None where these are the environment's, and when it failed."""
    error: str | None = None
    """Why it failed."""

    @classmethod
    def of(cls, episode: Episode, shaped: Sequence[float] | None = None) -> EpisodeOutcome:
        """The outcome of an episode, which is trained on these rewards where they are shaped."""
        turns, acts = episode.turns, [turn for turn in episode.turns if turn.kind == "act"]
        samples = [turn.reply.sample for turn in turns if turn.reply.sample]
        said = (turn.reply.sample for turn in turns if turn.loss and turn.reply.sample)
        versions = Counter(version for sample in said for version in sample.token_versions)
        last = [turn.reward for turn in acts if turn.trial == turns[-1].trial]
        return cls(
            world=episode.env,
            task=episode.task_id,
            stop=episode.stop,
            score=episode.score,
            success=episode.success,
            turns=len(acts),
            # Of the first look back at an attempt, which belongs to the next one, nobody knows whether that begins.
            trials=len({0} | {turn.trial for before, turn in pairwise(turns) if before.trial == turn.trial}),
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
        )


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """What came of a group."""

    number: int
    """Its place among all groups of the step."""
    kind: GroupKind
    treatment: Treatment
    episodes: tuple[EpisodeOutcome, ...]
    masked: frozenset[StopReason] = frozenset()
    """Episodes that stopped for one of these reasons are out of the loss."""

    @property
    def trained(self) -> list[EpisodeOutcome]:
        """The episodes that are in the loss."""
        return [e for e in self.episodes if self.treatment == "keep" and e.stop not in {"failed", *self.masked}]

    @property
    def world(self) -> str:
        """Name of the world."""
        return self.episodes[0].world

    @property
    def task(self) -> str:
        """Id of the task."""
        return self.episodes[0].task

    def lag(self, version: int) -> int:
        """How many updates the weights that it was sampled with are behind `version`, at most; 0 without samples."""
        return max((version - e.version for e in self.episodes if e.version is not None), default=0)


@dataclass(frozen=True, slots=True)
class EpisodeGroup:
    """The episodes of one task in one step."""

    number: int
    """Its place among all groups of the step."""
    episodes: tuple[Episode, ...]
    usable: tuple[Episode, ...]
    """Those that did not fail: they count in baselines and statistics."""
    kind: GroupKind
    treatment: Treatment
    shaped: Mapping[int, tuple[float, ...]]
    """By the number of the attempt, the rewards that an episode that didn't fail is trained on, one for each turn.
    Empty where these are the environment's."""
    masked: frozenset[StopReason] = frozenset()
    """Usable episodes that stopped for one of these reasons are out of the loss."""

    @property
    def outcome(self) -> GroupOutcome:
        """What came of it."""
        outcomes = tuple(EpisodeOutcome.of(episode, self.shaped.get(episode.sample)) for episode in self.episodes)
        return GroupOutcome(self.number, self.kind, self.treatment, outcomes, self.masked)

    def rewards(self, episode: Episode) -> tuple[float, ...]:
        """The rewards that an episode of the group is trained on, one for each turn."""
        return self.shaped.get(episode.sample) or tuple(turn.reward for turn in episode.turns)

    @classmethod
    def from_episodes(
        cls,
        episodes: Sequence[Episode],
        algorithm: Algorithm,
        *,
        masked: frozenset[StopReason] = frozenset(),
        number: int = 0,
        reward: RewardShaping = _UNSHAPED,
    ) -> EpisodeGroup:
        """The group that these episodes are, by the rules of the algorithm, the rewards that they are trained on and
        what its advantages compare.

        Raises:
            ValueError: when a shaped reward isn't a finite number; or whatever else the shaping raises.
            ExtensionError: when the advantage estimator of another package can't be used.
        """
        usable = tuple(e for e in episodes if not e.failed)
        shaped = {} if reward == _UNSHAPED else {e.sample: shaped_rewards(reward, e) for e in usable}
        group = cls(number, tuple(episodes), usable, "ok", "keep", shaped, masked)
        outlines = make_batch([group.trajectory(e, outline(e)) for e in usable])
        with blaming(algorithm.advantages, doing=f"compare the episodes of {episodes[0].task_id}"):
            flat = algorithm.is_flat(outlines.experience)
        kind, treatment = algorithm.groups.classify(len(usable), zero_variance=flat, failed=len(episodes) - len(usable))
        return replace(group, kind=kind, treatment=treatment)

    def trajectory(self, episode: Episode, lined_up: Trajectory) -> Trajectory:
        """An episode of the group as it is learned from: with the group's rewards, in the loss or out of it."""
        in_loss = episode.stop not in self.masked
        return replace(lined_up, group=str(self.number), rewards=self.rewards(episode), in_loss=in_loss)
