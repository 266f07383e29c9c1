"""Settings that are selected by name on the command line: algorithm, advantages, horizon, sampler and reward.

Each selection determines which other flags exist, so the names are extracted before the flags are parsed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from agentgym_envs.cli.flags import given
from agentgym_envs.util.flag_markers import arg

from agentgym_trainer.algorithms import ADVANTAGES, PRESETS, AdvantageEstimator, Algorithm, GroupFilter
from agentgym_trainer.config import BaseConfig, RLConfig
from agentgym_trainer.curriculum.horizon import Horizon, by_kind
from agentgym_trainer.curriculum.task_sampler import SAMPLERS, TaskSampler
from agentgym_trainer.plugins import POINTS, PluginPoint
from agentgym_trainer.reward_shaping import REWARDS, RewardShaping

if TYPE_CHECKING:
    from tyro.constructors import ConstructorRegistry, StructTypeInfo

_S = TypeVar("_S", bound=BaseConfig)


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting that is selected by name."""

    point: PluginPoint
    known: Mapping[str, Any]
    """Implementations of this package by name."""


def choices(config: BaseConfig) -> dict[str, Choice]:
    """Return the settings that are selected by name, by flag, with outer settings before those nested in them. Empty
    for kinds of runs without such settings.
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
    """Return the configuration with the selections of the flags applied, as defaults of the other flags: it may be
    invalid without them.

    Raises:
        UsageError: A name doesn't exist, or its object doesn't satisfy the contract.
    """
    for flag, choice in choices(config).items():
        if (name := given(flags, f"--{flag}")) is not None:
            config = with_choice(config, flag, choice, name)
    return config


def with_choice(config: _S, flag: str, choice: Choice, name: str) -> _S:
    """Return the configuration with what `name` selects for the setting of `flag`. It isn't checked, since other
    settings may have to change with it. Another kind of advantages comes with its usual group filter, unless the filter
    was changed.

    Raises:
        UsageError: The name doesn't exist, or its object doesn't satisfy the contract.
    """
    before, config = config, _with(config, flag.split("."), choice.point.find(name, choice.known))
    if flag != "algorithm.advantages" or not isinstance(config, RLConfig) or not isinstance(before, RLConfig):
        return config
    usual, fitting = _usual_filter(before.algorithm.advantages), _usual_filter(config.algorithm.advantages)
    if fitting is None or usual in (None, fitting) or before.algorithm.groups != usual:
        return config
    return _with(config, ("algorithm", "groups"), fitting)


def _usual_filter(advantages: AdvantageEstimator) -> GroupFilter | None:
    """Return the group filter of the first preset that has this kind of advantages: those that don't compare within
    groups keep them all. None if no preset has it.
    """
    presets = (preset for preset in PRESETS.values() if type(preset.advantages) is type(advantages))
    return next((preset.groups for preset in presets), None)


def registry() -> ConstructorRegistry:
    """Return the rules by which tyro makes flags of plugins: from the fields of the object's class instead of the
    protocol's; functions have no flags.
    """
    from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec

    rules = ConstructorRegistry()

    def identity(value: Any) -> Any:
        return value

    @rules.struct_rule
    def _fields_of_class(info: StructTypeInfo) -> StructConstructorSpec | None:
        if info.type not in POINTS or is_dataclass(info.type):
            return None
        value = info.default
        if not is_dataclass(value):
            return StructConstructorSpec(instantiate=lambda: value, fields=())
        inner: Any = Annotated[type(value), arg(name="")]
        return StructConstructorSpec(
            instantiate=identity, fields=(StructFieldSpec("value", type=inner, default=value),)
        )

    return rules


def _with(config: Any, path: Sequence[str], value: Any) -> Any:
    """Return a copy of the dataclass with the nested field at `path` set to `value`, without `__post_init__`."""
    (first, *rest), changed = path, copy(config)
    object.__setattr__(changed, first, _with(getattr(config, first), rest, value) if rest else value)
    return changed
