"""Algorithms, advantage estimators, samplers, horizons and reward shaping of other packages.

Each kind has a `Point`. What fills it is found by a name: one of this package's, one that an installed package has
registered as an entry point, or MODULE:NAME, whose module is imported then and not before. `run.json` has its class as
MODULE:CLASS with its fields, so that a run is resumed with the same.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import reduce
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_type_hints

from agentgym_eval.util.errors import RunStopped, UsageError, did_you_mean

from agentgym_trainer.algorithms import ADVANTAGES, AdvantageEstimator, Algorithm
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, FixedHorizon, Horizon, StepHorizon
from agentgym_trainer.curriculum.task_sampler import SAMPLERS, TaskSampler
from agentgym_trainer.reward_shaping import REWARDS, RewardShaping

_OURS = "agentgym_trainer."


class PluginError(RunStopped):
    """What another package's code did that a run can't go on with; the message is a sentence that names it."""


@dataclass(frozen=True, slots=True)
class PluginPoint:
    """A kind of setting that other packages may add to."""

    what: str
    """What it is called in messages."""
    contract: type[Any]
    """The protocol that it has to satisfy, or the class that it has to be of; what a field of a configuration is
    annotated with."""
    group: str
    """The entry points that other packages register theirs in."""
    ours: tuple[type[Any], ...]
    """The classes of this package, which `run.json` has by their names alone."""

    def find(self, name: str, known: Mapping[str, Any]) -> Any:
        """What is called `name`, made with its defaults where that is a class.

        Args:
            name: One of `known`, of an entry point, or MODULE:NAME.
            known: Those of this package.

        Raises:
            UsageError: when there is none, or it isn't what it has to be.
        """
        return known[name] if name in known else self.checked(find_named(name, self.what, known, self.group), name)

    def checked(self, found: Any, name: str) -> Any:
        """What was found as `name`, made with its defaults where that is a class.

        Raises:
            UsageError: when it isn't what it has to be.
        """
        if inspect.isclass(found):
            self._check_settings(found, name)
            try:
                found = found()
            except (TypeError, ValueError) as error:
                raise UsageError(f"{name} can't be made with its defaults: {error}") from error
        self._check_contract(found, name)
        if not (inspect.isfunction(found) and self._takes_functions):
            self._check_settings(type(found), name)
        return found

    def name_of(self, value: Any) -> str:
        """What `run.json` has for the class of a value, or for a function."""
        named = value if inspect.isfunction(value) else type(value)
        return named.__name__ if named in self.ours else f"{named.__module__}:{named.__qualname__}"

    def named(self, name: str | None, where: str) -> Any:
        """The class, or the function, of which `name_of` has this name.

        Args:
            name: As `run.json` has it; None where it has none.
            where: The setting, for the message.

        Raises:
            UsageError: when there is none any more.
        """
        ours = {noun.__name__: noun for noun in self.ours}
        if name in ours:
            return ours[name]
        if name is None or ":" not in name:
            raise UsageError(f"{where} can't be of type {name!r}. {nearest(str(name), ours)}")
        found = _attribute(name, self.what)
        if inspect.isclass(found):
            self._check_settings(found, name)
        elif not (inspect.isfunction(found) and self._takes_functions):
            raise UsageError(f"{where} can't be of type {name!r}, which is neither a class nor a function.")
        return found

    @property
    def _takes_functions(self) -> bool:
        return "__call__" in vars(self.contract)

    def _check_settings(self, noun: type[Any], name: str) -> None:
        """Refuse a class that couldn't be shown as flags, or written to `run.json` and read back."""
        if not is_dataclass(noun) or not noun.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # not in the stubs
            also = " or a function" if self._takes_functions else ""
            raise UsageError(
                f"{name} is no {self.what}: it has to be a frozen dataclass{also}, and the fields are its settings."
            )
        needed = [f.name for f in fields(noun) if f.init and f.default is MISSING and f.default_factory is MISSING]
        if needed:
            raise UsageError(
                f"{name} has no default for {' and '.join(needed)}: give every field one, for its flag to change."
            )
        try:
            get_type_hints(noun)
        except Exception as error:  # a name that only a type checker sees, or what else an annotation may hold
            raise UsageError(f"The types of the fields of {name} can't be read: {error}.") from error

    def _check_contract(self, value: Any, name: str) -> None:
        """Refuse what isn't of the class that it has to be, or lacks a part of the protocol."""
        where = f"{self.contract.__module__}.{self.contract.__qualname__}"
        if self.contract in self.ours:
            if not isinstance(value, self.contract):
                raise UsageError(f"{name} is no {self.what}: it is of {type(value).__name__} and not of {where}.")
            return
        parts = [
            part
            for part in dict.fromkeys([*inspect.get_annotations(self.contract), *vars(self.contract)])
            if part == "__call__" or not part.startswith("_")
        ]
        there_are = {*dir(type(value)), *getattr(value, "__dataclass_fields__", ())}
        lacks = [part for part in parts if part not in there_are]
        if lacks:
            raise UsageError(f"{name} is no {self.what}: it lacks {' and '.join(lacks)}. {where} says what it needs.")
        for part in parts:
            asked = getattr(self.contract, part, None)
            method = value if part == "__call__" else getattr(value, part)
            if inspect.isfunction(asked) and not _takes(method, asked):
                raise UsageError(
                    f"{name} is no {self.what}: {part} has to take ({', '.join(_given(asked))}), as {where} does."
                )


POINTS: dict[type[Any], PluginPoint] = {
    point.contract: point
    for point in (
        PluginPoint("algorithm", Algorithm, "agentgym.algorithms", (Algorithm,)),
        PluginPoint(
            "advantage estimator", AdvantageEstimator, "agentgym.advantages", tuple(map(type, ADVANTAGES.values()))
        ),
        PluginPoint("horizon", Horizon, "agentgym.horizons", (FixedHorizon, StepHorizon, AdaptiveHorizon)),
        PluginPoint("sampler", TaskSampler, "agentgym.samplers", tuple(map(type, SAMPLERS.values()))),
        PluginPoint("reward shaping", RewardShaping, "agentgym.rewards", tuple(map(type, REWARDS.values()))),
    )
}
"""By the annotation of the fields of a configuration that hold them."""


def find_named(name: str, what: str, known: Iterable[str], group: str) -> Any:
    """What is registered as `name` by an installed package, or what MODULE:NAME says.

    Args:
        name: Of an entry point, or MODULE:NAME.
        what: It is called in messages.
        known: The names of those of this package, for the message.
        group: Of the entry points.

    Raises:
        UsageError: when there is none, or its module can't be imported.
    """
    if ":" in name:
        from agentgym_envs.core.registry import look_here

        look_here()
        return _attribute(name, what)
    registered = installed(group)[group]
    if name not in registered:
        raise UsageError(
            f"There is no {what} {name!r}. {nearest(name, [*known, *registered])} MODULE:NAME is one of yours."
        )
    return _attribute(registered[name].value, what)


def installed(*groups: str) -> dict[str, dict[str, EntryPoint]]:
    """What installed packages have registered in these groups of entry points, by name; none of it is imported."""
    registered = entry_points()
    return {group: {entry.name: entry for entry in registered.select(group=group)} for group in groups}


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for who asked for `name`: the nearest of what is known, and all of it."""
    near = difflib.get_close_matches(name, known := sorted(known), n=1, cutoff=0.5)
    there_are = f"There are: {', '.join(known)}."
    return f"Did you mean {near[0]!r}? {there_are}" if near else there_are


@contextmanager
def blaming(*parts: Any, doing: str, error: type[RunStopped] = PluginError) -> Generator[None]:
    """Say in a sentence what goes wrong in code of other packages; what goes wrong in this one's passes as it is.

    Args:
        parts: What is called while this is open.
        doing: What it was called for, as in "could not ...".
        error: What is raised.
    """
    from agentgym_envs.util.importing import described

    theirs = [_name(part) for part in parts if not _name(part).startswith(_OURS)]
    try:
        yield
    except RunStopped:
        raise
    except Exception as raised:
        if not theirs:
            raise
        raise error(f"{' or '.join(theirs)} could not {doing}: {described(raised)}.") from raised


def _name(part: Any) -> str:
    named = part if inspect.isfunction(part) else type(part)
    return f"{named.__module__}:{named.__qualname__}"


def _attribute(name: str, what: str) -> Any:
    """What MODULE:NAME says; NAME may have dots."""
    from agentgym_envs.util.importing import import_named

    path, _, attribute = name.partition(":")
    try:
        module = import_named(path, f"the {what} {name}")
    except ValueError as error:
        missing = isinstance(error.__cause__, ModuleNotFoundError) and error.__cause__.name == path.partition(".")[0]
        advice = " Install its package, or run the command in the folder that it lies in." if missing else ""
        raise UsageError(f"{error}{advice}") from error
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        if "<locals>" in attribute or path == "__main__":
            raise UsageError(
                f"{name} was defined within a function, a script or a notebook, where it can't be found again: define "
                "it at the top of a module of its own."
            ) from error
        public = [known for known in vars(module) if not known.startswith("_")]
        raise UsageError(f"{path} has no {attribute!r}.{did_you_mean(attribute, public)}") from error


def _given(method: Any) -> list[str]:
    """The names of the arguments that a method of a protocol is called with."""
    return list(inspect.signature(method).parameters)[1:]


def _takes(method: Any, asked: Any) -> bool:
    """Whether a method can be called with the arguments that the protocol's is called with."""
    try:
        inspect.signature(method).bind(*_given(asked))
    except (TypeError, ValueError):
        return False
    return True
