"""Settings that a name chooses on the command line, with flags of their own: algorithm, advantages, horizon, sampler
and reward. Which flags there are hangs on what is chosen, so the names are looked for before the flags are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from itertools import pairwise
from typing import Annotated, Any

from tyro.conf import arg
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from agentgym_trainer.algorithms import ADVANTAGES, PRESETS, AdvantageEstimator, Algorithm
from agentgym_trainer.config import BaseConfig, RLConfig
from agentgym_trainer.curriculum.horizon import Horizon, by_kind
from agentgym_trainer.curriculum.task_sampler import SAMPLERS, TaskSampler
from agentgym_trainer.plugins import POINTS, PluginPoint
from agentgym_trainer.reward_shaping import REWARDS, RewardShaping


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting that a name stands for."""

    point: PluginPoint
    known: Mapping[str, Any]
    """Those of this package, by name."""


def choices(config: BaseConfig) -> dict[str, Choice]:
    """The settings that a name stands for, by the flag that gives the name, those that hold others first; none where a
    kind of run has no choice.
    """
    if not isinstance(config, RLConfig):
        return {}
    return {
        "algorithm": Choice(POINTS[Algorithm], PRESETS),
        "algorithm.advantages": Choice(POINTS[AdvantageEstimator], ADVANTAGES),
        "horizon": Choice(POINTS[Horizon], by_kind(config.horizon)),
        "sampler": Choice(POINTS[TaskSampler], SAMPLERS),
        "reward": Choice(POINTS[RewardShaping], REWARDS),
    }


def chosen(config: RLConfig, flags: Sequence[str]) -> RLConfig:
    """The configuration with what is named in its place.

    Raises:
        UsageError: when one of the names doesn't exist, or isn't what it has to be.
    """
    for flag, choice in choices(config).items():
        if (name := given(flags, f"--{flag}")) is not None:
            config = _with(config, flag.split("."), choice.point.find(name, choice.known))
    return config


def given(flags: Sequence[str], name: str) -> str | None:
    """The last value of a flag; None where it isn't there."""
    found = None
    for flag, following in pairwise([*flags, ""]):
        setting, equals, value = flag.partition("=")
        if setting.replace("_", "-") == name:
            found = value if equals else following
    return found


def registry() -> ConstructorRegistry:
    """How tyro makes flags of what fills a `Point`: of the fields of its class, not of the protocol that it satisfies;
    of a function, none.
    """
    rules = ConstructorRegistry()

    def itself(value: Any) -> Any:
        return value

    @rules.struct_rule
    def _of_its_class(info: StructTypeInfo) -> StructConstructorSpec | None:
        if info.type not in POINTS or is_dataclass(info.type):
            return None
        value = info.default
        if not is_dataclass(value):
            return StructConstructorSpec(instantiate=lambda: value, fields=())
        within: Any = Annotated[type(value), arg(name="")]
        return StructConstructorSpec(instantiate=itself, fields=(StructFieldSpec("value", type=within, default=value),))

    return rules


def _with(noun: Any, path: Sequence[str], value: Any) -> Any:
    """The dataclass with `value` at the end of a path of fields."""
    first, *rest = path
    return replace(noun, **{first: _with(getattr(noun, first), rest, value) if rest else value})
