"""What another package might add to training: good ones, and such as must be refused."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from agentgym_trainer.algorithms import GRPO, AdvantageEstimate, AdvantageEstimator, Algorithm, Clip, GroupRelative
from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.horizon import Stage, StepOutcome

if TYPE_CHECKING:
    from agentgym_envs import Episode
    from agentgym_trainer.algorithms.types import TokenBatch, Total
    from torch import Tensor


@dataclass(frozen=True)
class Bounds:
    """Settings within settings."""

    low: float = -1.0
    high: float | None = None


@dataclass(frozen=True)
class Scaled:
    """Another estimator's advantages, scaled."""

    needs_critic: ClassVar[bool] = False

    scale: float = 1.0
    """What they are multiplied by."""
    inner: AdvantageEstimator = field(default_factory=GroupRelative)
    bounds: Bounds = field(default_factory=Bounds)
    names: tuple[str, ...] = ()
    kind: Literal["a", "b"] = "a"

    def estimate(self, batch: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        assigned = self.inner.estimate(batch, penalty_N, total)
        return AdvantageEstimate(self.scale * assigned.advantages_N)


@dataclass(frozen=True)
class Misshapen(Scaled):
    def estimate(self, batch: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        return AdvantageEstimate(super().estimate(batch, penalty_N, total).advantages_N[1:])


@dataclass(frozen=True)
class Bootstrapped(Scaled):
    """Goes on from what the critic expects behind truncated episodes."""

    bootstraps: ClassVar[bool] = True


@dataclass(frozen=True)
class Weighted(Algorithm):
    """A loss of its own."""

    factor: float = 1.0
    broken: bool = False

    def loss(self, scores: Any, part: Any) -> tuple[Any, dict[str, Any]]:
        if self.broken:
            raise ZeroDivisionError("no loss today")
        loss, metrics = super().loss(scores, part)
        return self.factor * loss, metrics | {"factor": part.share * len(part.episode_M) * self.factor}


@dataclass(frozen=True)
class Given:
    """Weights as they are given."""

    weight: float = 1.0

    def weights(self, ids: Sequence[str], state: Mapping[str, float]) -> list[float]:
        return [self.weight] * len(ids)

    def after(self, state: dict[str, float], success: Mapping[str, float]) -> dict[str, float]:
        return {**state, "steps": state.get("steps", 0.0) + 1}


@dataclass(frozen=True)
class Numbered(Given):
    """Remembers by numbers, which are texts once a checkpoint is read."""

    def after(self, state: dict[str, float], success: Mapping[str, float]) -> Any:
        return {len(success): 1.0}


@dataclass(frozen=True)
class Jump:
    """So many turns after the first step, whatever is the longest."""

    turns: int = 2

    @property
    def longest(self) -> int:
        return 3

    def begin(self) -> Stage:
        return Stage(1)

    def after(self, stage: Stage, step: int, seen: StepOutcome) -> Stage:
        return Stage(self.turns, 1, step, "a jump")


@dataclass(frozen=True)
class Constant:
    """The same reward in every turn."""

    reward: float = 1.0
    turns: int | None = None

    def __call__(self, episode: Episode, /) -> list[float]:
        return [self.reward] * (len(episode.turns) if self.turns is None else self.turns)


@dataclass(frozen=True)
class Later:
    """No number once the weights have seen an update."""

    def __call__(self, episode: Episode, /) -> list[float]:
        version = max(turn.reply.sample.version for turn in episode.turns if turn.reply.sample)
        return [math.nan if version else 0.0] * len(episode.turns)


def by_stop(episode: Episode) -> list[float]:
    return [float(episode.stop == "terminated")] * len(episode.turns)


def two_arguments(episode: Episode, _: int) -> list[float]:
    return []


@dataclass
class Thawed:
    """A dataclass that isn't frozen."""


@dataclass(frozen=True)
class Needy:
    """A sampler of which a setting has no default."""

    needed: int

    def weights(self, ids: Sequence[str], state: Mapping[str, float]) -> list[float]:
        return []

    def after(self, state: dict[str, float], success: Mapping[str, float]) -> dict[str, float]:
        return state


@dataclass(frozen=True)
class Halves:
    """Half a sampler."""

    def weights(self, ids: Sequence[str], state: Mapping[str, float]) -> list[float]:
        return []


@dataclass(frozen=True)
class Stateless(Halves):
    """A sampler with a method that takes too little."""

    def after(self, state: dict[str, float]) -> dict[str, float]:
        return state


@dataclass(frozen=True)
class Refusing(Given):
    """A sampler that its defaults don't make."""

    def __post_init__(self) -> None:
        raise ValueError("weight needs thought.")


@dataclass(frozen=True)
class Hidden:
    """A reward shaping with a type that only a type checker sees."""

    of: TokenBatch | None = None

    def __call__(self, episode: Episode, /) -> list[float]:
        return []


NUMBER = 3
CLIPPED = Weighted(clip=Clip(high=0.3), kl=GRPO.kl)
JUMPING = RLConfig(horizon=Jump(), reward=by_stop)
