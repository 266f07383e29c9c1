"""The groups of a step, and figures over their episodes. Knows neither models nor learners.

Figures are made of outcomes, which are small: with many processes each plays its share of the groups, and all see the
outcomes of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, stdev
from typing import Any, get_args

from agentgym_envs import Episode, StopReason
from agentgym_envs.episode import Kind

from agentgym_trainer.algorithms import Algorithm
from agentgym_trainer.algorithms.groups import Kind as GroupKind
from agentgym_trainer.algorithms.groups import Treatment
from agentgym_trainer.batch import make_batch
from agentgym_trainer.config import Config
from agentgym_trainer.extensions import blaming
from agentgym_trainer.horizon import improving
from agentgym_trainer.rewards import EnvironmentReward, RewardShaping, shaped_rewards
from agentgym_trainer.trajectory import Trajectory, outline

_UNSHAPED = EnvironmentReward()


@dataclass(frozen=True, slots=True)
class Outcome:
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
    prompted: int
    """Tokens that the agent read, without its own."""
    said: int
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
    def of(cls, episode: Episode, shaped: Sequence[float] | None = None) -> Outcome:
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
            prompted=sum(len(sample.prompt) for sample in samples),
            said=sum(len(sample.ids) for sample in samples),
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
    episodes: tuple[Outcome, ...]
    masked: frozenset[StopReason] = frozenset()
    """Episodes that stopped for one of these reasons are out of the loss."""

    @property
    def trained(self) -> list[Outcome]:
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
class Group:
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
        outcomes = tuple(Outcome.of(episode, self.shaped.get(episode.sample)) for episode in self.episodes)
        return GroupOutcome(self.number, self.kind, self.treatment, outcomes, self.masked)

    def rewards(self, episode: Episode) -> tuple[float, ...]:
        """The rewards that an episode of the group is trained on, one for each turn."""
        return self.shaped.get(episode.sample) or tuple(turn.reward for turn in episode.turns)

    @classmethod
    def judged(
        cls,
        episodes: Sequence[Episode],
        algorithm: Algorithm,
        *,
        masked: frozenset[StopReason] = frozenset(),
        number: int = 0,
        reward: RewardShaping = _UNSHAPED,
    ) -> Group:
        """The group that these episodes are, by the rules of the algorithm, the rewards that they are trained on and
        what its advantages compare.

        Raises:
            ValueError: when a shaped reward isn't a finite number; or whatever else the shaping raises.
            ExtensionError: when the advantage estimator of another package can't be used.
        """
        usable = tuple(e for e in episodes if not e.failed)
        shaped = {} if reward == _UNSHAPED else {e.sample: shaped_rewards(reward, e) for e in usable}
        group = cls(number, tuple(episodes), usable, "good", "keep", shaped, masked)
        outlines = make_batch([group.trajectory(e, outline(e)) for e in usable])
        with blaming(algorithm.advantages, doing=f"compare the episodes of {episodes[0].task_id}"):
            flat = algorithm.is_flat(outlines.experience)
        kind, treatment = algorithm.groups.judge(len(usable), flat=flat, failed=len(episodes) - len(usable))
        return replace(group, kind=kind, treatment=treatment)

    def trajectory(self, episode: Episode, lined_up: Trajectory) -> Trajectory:
        """An episode of the group as it is learned from: with the group's rewards, in the loss or out of it."""
        in_loss = episode.stop not in self.masked
        return replace(lined_up, group=str(self.number), rewards=self.rewards(episode), in_loss=in_loss)


def step_figures(groups: Sequence[GroupOutcome], worlds: Sequence[str]) -> dict[str, Any]:
    """Figures over all episodes of a step, over those of each world, and how many groups there are of each kind."""

    def figures(played: Sequence[GroupOutcome]) -> dict[str, Any]:
        return {
            **episode_figures([episode for group in played for episode in group.episodes]),
            "group_return_std": group_return_std(played),
        }

    kinds = Counter(group.kind for group in groups)
    return {
        **figures(groups),
        "worlds": {world: figures([group for group in groups if group.world == world]) for world in worlds},
        "groups": {"all": len(groups)} | {kind: kinds[kind] for kind in get_args(GroupKind)},
    }


def group_return_std(groups: Sequence[GroupOutcome]) -> float | None:
    """Standard deviation (n - 1 in the denominator) of the returns that the episodes of a group are trained on, as a
    mean over the groups in which at least two did not fail; None where there is no such group.
    """
    scored = [[episode for episode in group.episodes if episode.stop != "failed"] for group in groups]
    spreads = [
        stdev((e.score or 0.0) if e.shaped is None else e.shaped for e in episodes)
        for episodes in scored
        if len(episodes) > 1
    ]
    return fmean(spreads) if spreads else None


def episode_figures(episodes: Sequence[Outcome]) -> dict[str, Any]:
    """Means over the episodes that did not fail, None where all did; and tokens of all, whether they train or not."""
    scored = [episode for episode in episodes if episode.stop != "failed"]
    said = sum(episode.said for episode in episodes)

    def mean(figure: Callable[[Outcome], float | None]) -> float | None:
        known = [value for value in map(figure, scored) if value is not None]
        return fmean(known) if known else None

    return {
        "episodes": len(episodes),
        "success": mean(lambda episode: bool(episode.success)),
        "score": mean(lambda episode: episode.score or 0.0),
        **({"shaped_return": shaped} if (shaped := mean(lambda episode: episode.shaped)) is not None else {}),
        "turns": mean(lambda episode: episode.turns),
        "trials": mean(lambda episode: episode.trials),
        "valid": mean(lambda episode: episode.valid),
        "failed": len(episodes) - len(scored),
        "stops": dict(Counter(episode.stop for episode in episodes)),
        "segments": sum(episode.contexts for episode in episodes),
        "tokens": {"seen": said + sum(episode.prompted for episode in episodes), "said": said},
        "kinds": _by_kind(scored),
    }


def _by_kind(episodes: Sequence[Outcome]) -> dict[Kind, dict[str, float]]:
    """For each kind of turn that there is: how many an episode has, and how many tokens a reply, on average."""
    said: dict[Kind, list[int]] = {}
    for kind, tokens in (reply for episode in episodes for reply in episode.replies):
        said.setdefault(kind, []).append(tokens)
    return {
        kind: {"turns": len(tokens) / len(episodes), "tokens": fmean(tokens)} for kind, tokens in sorted(said.items())
    }


def success_figures(played: Mapping[Any, Iterable[Outcome]], world: str | None = None) -> dict[str, float | None]:
    """Success in an evaluation, of one world or of all, by the manner of sampling."""
    return {
        manner: success_rate([episode for episode in episodes if world in (None, episode.world)])
        for manner, episodes in played.items()
    }


def full_share(groups: Sequence[GroupOutcome], config: Config) -> float:
    """How much of a full batch trains, by completion tokens: those in the loss, over those of `tasks` x `samples`
    episodes as long as the step's are on average. 0 where nothing was said.
    """
    played = [episode for group in groups for episode in group.episodes]
    kept = [episode for group in groups if group.treatment == "keep" for episode in group.episodes]
    trained = sum(e.said for e in kept if e.stop != "failed" and e.stop not in config.masked)
    said = sum(episode.said for episode in played)
    return trained * len(played) / (said * config.tasks * config.samples) if said else 0.0


def success_rate(episodes: Iterable[Outcome]) -> float | None:
    """Mean over tasks, as reports have it; None when every episode failed."""
    by_task = task_means(episodes)
    return fmean(by_task.values()) if by_task else None


def success_by_task(groups: Iterable[GroupOutcome]) -> dict[str, float]:
    """Mean success of each task over all its groups; tasks of which every episode failed are left out."""
    return task_means(episode for group in groups for episode in group.episodes)


def task_means(episodes: Iterable[Outcome]) -> dict[str, float]:
    """Mean success of each task; tasks of which every episode failed are left out."""
    by_task: dict[str, list[bool]] = {}
    for episode in episodes:
        if episode.stop != "failed":
            by_task.setdefault(episode.task, []).append(bool(episode.success))
    return {task: fmean(known) for task, known in by_task.items()}


def cut_while_improving(groups: Sequence[GroupOutcome]) -> float:
    """Share of the episodes that the horizon ended while they were still earning."""
    scored = [episode for group in groups for episode in group.episodes if episode.stop != "failed"]
    return sum(episode.cut for episode in scored) / max(1, len(scored))
