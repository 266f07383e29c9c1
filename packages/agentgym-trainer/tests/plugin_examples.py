"""Extensions of training as another package would define them, valid and invalid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from agentgym_envs import Policy, Reply, TurnContext
from agentgym_trainer.algorithms import GRPO, AdvantageEstimate, AdvantageEstimator, Algorithm, Clip, GroupRelative
from agentgym_trainer.config import RLConfig
from agentgym_trainer.curriculum.horizon import Stage, StepOutcome

if TYPE_CHECKING:
    from agentgym_envs import Episode
    from agentgym_trainer.algorithms.types import TokenBatch, Total
    from torch import Tensor


@dataclass(frozen=True)
class Bounds:
    """Nested settings."""

    low: float = -1.0
    high: float | None = None


@dataclass(frozen=True)
class Scaled:
    """Another estimator's advantages, scaled."""

    needs_critic: ClassVar[bool] = False

    scale: float = 1.0
    """Factor of the advantages."""
    inner: AdvantageEstimator = field(default_factory=GroupRelative)
    bounds: Bounds = field(default_factory=Bounds)
    names: tuple[str, ...] = ()
    kind: Literal["a", "b"] = "a"

    def estimate(self, batch: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        estimated = self.inner.estimate(batch, penalty_N, total)
        return AdvantageEstimate(self.scale * estimated.advantages_N)


@dataclass(frozen=True)
class Misshapen(Scaled):
    def estimate(self, batch: TokenBatch, penalty_N: Tensor | None, total: Total) -> AdvantageEstimate:
        return AdvantageEstimate(super().estimate(batch, penalty_N, total).advantages_N[1:])


@dataclass(frozen=True)
class Bootstrapped(Scaled):
    """An estimator that bootstraps from the critic's values after truncated episodes."""

    bootstraps: ClassVar[bool] = True


@dataclass(frozen=True)
class Weighted(Algorithm):
    """An algorithm with its own loss."""

    factor: float = 1.0
    broken: bool = False

    def loss(self, outputs: Any, micro_batch: Any) -> tuple[Any, dict[str, Any]]:
        if self.broken:
            raise ZeroDivisionError("no loss today")
        loss, metrics = super().loss(outputs, micro_batch)
        return self.factor * loss, metrics | {"factor": micro_batch.share * len(micro_batch.episode_M) * self.factor}


@dataclass(frozen=True)
class FixedWeights:
    """A sampler that gives all tasks the same weight."""

    weight: float = 1.0

    def weights(self, ids: Sequence[str], state: Mapping[str, float]) -> list[float]:
        return [self.weight] * len(ids)

    def after(self, state: dict[str, float], success: Mapping[str, float]) -> dict[str, float]:
        return {**state, "steps": state.get("steps", 0.0) + 1}


@dataclass(frozen=True)
class IntegerKeys(FixedWeights):
    """A sampler whose state has integer keys, which JSON turns into strings."""

    def after(self, state: dict[str, float], success: Mapping[str, float]) -> Any:
        return {len(success): 1.0}


@dataclass(frozen=True)
class Jump:
    """A horizon that changes to `turns` after the first step, even if that exceeds `longest`."""

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
    """A reward shaping with the same reward in every turn."""

    reward: float = 1.0
    turns: int | None = None

    def __call__(self, episode: Episode, /) -> list[float]:
        return [self.reward] * (len(episode.turns) if self.turns is None else self.turns)


@dataclass(frozen=True)
class NanAfterUpdate:
    """A reward shaping that returns NaN after the first update."""

    def __call__(self, episode: Episode, /) -> list[float]:
        version = max(turn.reply.sample.version for turn in episode.turns if turn.reply.sample)
        return [math.nan if version else 0.0] * len(episode.turns)


def by_stop(episode: Episode) -> list[float]:
    return [float(episode.stop == "terminated")] * len(episode.turns)


def two_arguments(episode: Episode, _: int) -> list[float]:
    return []


@dataclass
class NotFrozen:
    """A dataclass that isn't frozen."""


@dataclass(frozen=True)
class MissingDefault:
    """A sampler with a setting that has no default."""

    needed: int

    def weights(self, ids: Sequence[str], state: Mapping[str, float]) -> list[float]:
        return []

    def after(self, state: dict[str, float], success: Mapping[str, float]) -> dict[str, float]:
        return state


@dataclass(frozen=True)
class IncompleteSampler:
    """A sampler without `after`."""

    def weights(self, ids: Sequence[str], state: Mapping[str, float]) -> list[float]:
        return []


@dataclass(frozen=True)
class Stateless(IncompleteSampler):
    """A sampler with a method that takes too few arguments."""

    def after(self, state: dict[str, float]) -> dict[str, float]:
        return state


@dataclass(frozen=True)
class Refusing(FixedWeights):
    """A sampler that rejects its defaults."""

    def __post_init__(self) -> None:
        raise ValueError("weight needs thought.")


@dataclass(frozen=True)
class TypeCheckingOnly:
    """A reward shaping with a type that is imported for type checkers only."""

    of: TokenBatch | None = None

    def __call__(self, episode: Episode, /) -> list[float]:
        return []


NUMBER = 3
CLIPPED = Weighted(clip=Clip(high=0.3), kl=GRPO.kl)
JUMPING = RLConfig(horizon=Jump(), reward=by_stop)


class Tails(Policy):
    """A policy of a user that says tails."""

    name: str = "tails"

    async def reply(self, context: TurnContext) -> Reply:
        return Reply("tails")
