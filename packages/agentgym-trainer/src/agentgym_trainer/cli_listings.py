"""The sections of `agentgym list` for training. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentgym_envs.util.listing import Listed, attribute_docs, first_sentence, settings_of

from agentgym_trainer.algorithms import ADVANTAGES, PRESETS, AdvantageEstimator, Algorithm, presets
from agentgym_trainer.curriculum.horizon import KINDS, FixedHorizon, Horizon, by_kind
from agentgym_trainer.curriculum.task_sampler import SAMPLERS, TaskSampler
from agentgym_trainer.engines.factory import ENGINES
from agentgym_trainer.engines.factory import GROUP as ENGINE_GROUP
from agentgym_trainer.kinds import kind_of
from agentgym_trainer.plugins import POINTS, installed
from agentgym_trainer.recipes import GROUP as RECIPE_GROUP
from agentgym_trainer.recipes import RECIPES
from agentgym_trainer.reward_shaping import REWARDS, RewardShaping


def recipes() -> Iterator[Listed]:
    """Yield the recipes."""
    for name, recipe in RECIPES.items():
        facts = {"kind": kind_of(recipe.config).name, "cost": recipe.cost, "model": recipe.config.model}
        facts["environments"] = ", ".join(" ".join([world.env, *world.options]) for world in recipe.config.worlds)
        yield Listed(name, recipe.about, recipe.cost, {key: fact for key, fact in facts.items() if fact})
    yield from _registered(RECIPE_GROUP)


def algorithms() -> Iterator[Listed]:
    """Yield the presets, described by the docstrings of their constants."""
    documented = attribute_docs(presets)
    names = {id(value): name for name, value in vars(presets).items()}
    for name, preset in PRESETS.items():
        about = documented.get(names.get(id(preset), ""), "")
        more = " ".join(about.partition("\n\n")[2].split())
        yield Listed(name, first_sentence(about), facts={"notes": more} if more else {}, settings=settings_of(preset))
    yield from _registered(POINTS[Algorithm].group)


def advantages() -> Iterator[Listed]:
    """Yield the advantage estimators."""
    return _by_class(ADVANTAGES, POINTS[AdvantageEstimator].group)


def samplers() -> Iterator[Listed]:
    """Yield the samplers of training tasks."""
    return _by_class(SAMPLERS, POINTS[TaskSampler].group)


def horizons() -> Iterator[Listed]:
    """Yield the horizon schedules."""
    schedules = by_kind(FixedHorizon())
    return _by_class({kind: schedules[kind] for kind in KINDS}, POINTS[Horizon].group)


def rewards() -> Iterator[Listed]:
    """Yield the kinds of reward shaping."""
    return _by_class(REWARDS, POINTS[RewardShaping].group)


def engines() -> Iterator[Listed]:
    """Yield the engines."""
    for name, engine in ENGINES.items():
        yield Listed(name, engine.about)
    yield from _registered(ENGINE_GROUP)


def _by_class(known: Mapping[str, Any], group: str) -> Iterator[Listed]:
    """Yield implementations, described by the docstrings of their classes, and those of other packages."""
    for name, value in known.items():
        yield Listed(name, first_sentence(type(value)), settings=settings_of(value))
    yield from _registered(group)


def _registered(group: str) -> Iterator[Listed]:
    """Yield what other packages have registered, without importing them."""
    for name, entry in sorted(installed(group)[group].items()):
        package = entry.dist.name if entry.dist else "another package"
        yield Listed(name, f"Of {package}: {entry.value}.")
