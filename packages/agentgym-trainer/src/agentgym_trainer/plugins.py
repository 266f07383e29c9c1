"""Plugins: algorithms, advantage estimators, samplers, horizons and reward shaping of other packages.

Each kind has a `PluginPoint`. A plugin is found by name: a name of this package, an entry point of an installed
package, or MODULE:NAME, which is imported on use. `run.json` stores its class as MODULE:CLASS with its fields, so that
a resumed run uses the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import reduce
from importlib.metadata import EntryPoint, entry_points
from typing import Any, get_type_hints

from agentgym_eval.util.errors import RunStopped, UsageError, did_you_mean, nearest

from agentgym_trainer.algorithms import ADVANTAGES, AdvantageEstimator, Algorithm
from agentgym_trainer.curriculum.horizon import AdaptiveHorizon, BackwardHorizon, FixedHorizon, Horizon, StepHorizon
from agentgym_trainer.curriculum.task_sampler import SAMPLERS, TaskSampler
from agentgym_trainer.reward_shaping import REWARDS, RewardShaping

_OURS = "agentgym_trainer."


class PluginError(RunStopped):
    """Code of another package failed or broke its contract, so the run can't continue; the message names the code."""


@dataclass(frozen=True, slots=True)
class PluginPoint:
    """A kind of setting that other packages can provide implementations of."""

    what: str
    """Name of the kind in messages."""
    contract: type[Any]
    """The protocol to satisfy, or the class to be an instance of; the annotation of the field of a configuration."""
    group: str
    """Group of entry points for other packages."""
    ours: tuple[type[Any], ...]
    """Classes of this package, which `run.json` stores without their module."""

    def find(self, name: str, known: Mapping[str, Any]) -> Any:
        """Return the implementation called `name`; a class is instantiated with its defaults.

        Args:
            name: One of `known`, an entry point, or MODULE:NAME.
            known: Implementations of this package by name.

        Raises:
            UsageError: There is none of this name, or it doesn't satisfy the contract.
        """
        return known[name] if name in known else self.checked(find_named(name, self.what, known, self.group), name)

    def checked(self, found: Any, name: str) -> Any:
        """Check what was found as `name`, and return it; a class is instantiated with its defaults.

        Raises:
            UsageError: It doesn't satisfy the contract.
        """
        if inspect.isclass(found):
            self._check_settings(found, name)
            try:
                found = found()
            except (TypeError, ValueError) as error:
                raise UsageError(f"{name} can't be created with its defaults: {error}") from error
        self.check_contract(found, name)
        if not (inspect.isfunction(found) and self._takes_functions):
            self._check_settings(type(found), name)
        return found

    def name_of(self, value: Any) -> str:
        """Return the name of the class of a value, or of a function, for `run.json`."""
        target = value if inspect.isfunction(value) else type(value)
        return target.__name__ if target in self.ours else f"{target.__module__}:{target.__qualname__}"

    def named(self, name: str | None, path: str) -> Any:
        """Return the class or function with this name, the inverse of `name_of`.

        Args:
            name: Name in `run.json`; None if it has none.
            path: The setting, for the message.

        Raises:
            UsageError: It doesn't exist any more.
        """
        ours = {kind.__name__: kind for kind in self.ours}
        if name in ours:
            return ours[name]
        if name is None or ":" not in name:
            raise UsageError(f"{path} can't be of type {name!r}. {nearest(str(name), ours)}")
        found = _attribute(name, self.what)
        if inspect.isclass(found):
            self._check_settings(found, name)
        elif not (inspect.isfunction(found) and self._takes_functions):
            raise UsageError(f"{path} can't be of type {name!r}, which is neither a class nor a function.")
        return found

    @property
    def _takes_functions(self) -> bool:
        return "__call__" in vars(self.contract)

    def _check_settings(self, kind: type[Any], name: str) -> None:
        """Refuse a class that can't be converted to flags, or to JSON and back."""
        if not is_dataclass(kind) or not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # not in the stubs
            also = " or a function" if self._takes_functions else ""
            raise UsageError(
                f"{name} is no {self.what}: it must be a frozen dataclass{also}, and the fields are its settings."
            )
        required = [f.name for f in fields(kind) if f.init and f.default is MISSING and f.default_factory is MISSING]
        if required:
            raise UsageError(
                f"{name} has no default for {' and '.join(required)}: give every field one, which its flag can change."
            )
        try:
            get_type_hints(kind)
        except Exception as error:  # such as a name that is only imported for type checkers
            raise UsageError(f"The types of the fields of {name} can't be read: {error}.") from error

    def check_contract(self, value: Any, name: str) -> None:
        """Check that a value is an instance of the class, or has the members of the protocol.

        Raises:
            UsageError: It isn't, or lacks a member.
        """
        contract = f"{self.contract.__module__}.{self.contract.__qualname__}"
        if self.contract in self.ours:
            if not isinstance(value, self.contract):
                raise UsageError(f"{name} is no {self.what}: it is of {type(value).__name__} and not of {contract}.")
            return
        members = [
            member
            for member in dict.fromkeys([*inspect.get_annotations(self.contract), *vars(self.contract)])
            if member == "__call__" or not member.startswith("_")
        ]
        present = {*dir(value), *getattr(value, "__dataclass_fields__", ())}
        lacks = [member for member in members if member not in present]
        if lacks:
            raise UsageError(
                f"{name} is no {self.what}: it lacks {' and '.join(lacks)}. {contract} documents what it needs."
            )
        for member in members:
            declared = getattr(self.contract, member, None)
            method = value if member == "__call__" else getattr(value, member)
            if inspect.isfunction(declared) and not _accepts(method, declared):
                parameters = ", ".join(_parameters(declared))
                raise UsageError(f"{name} is no {self.what}: {member} must take ({parameters}), as in {contract}.")


POINTS: dict[type[Any], PluginPoint] = {
    point.contract: point
    for point in (
        PluginPoint("algorithm", Algorithm, "agentgym.algorithms", (Algorithm,)),
        PluginPoint(
            "advantage estimator", AdvantageEstimator, "agentgym.advantages", tuple(map(type, ADVANTAGES.values()))
        ),
        PluginPoint(
            "horizon", Horizon, "agentgym.horizons", (FixedHorizon, StepHorizon, AdaptiveHorizon, BackwardHorizon)
        ),
        PluginPoint("sampler", TaskSampler, "agentgym.samplers", tuple(map(type, SAMPLERS.values()))),
        PluginPoint("reward shaping", RewardShaping, "agentgym.rewards", tuple(map(type, REWARDS.values()))),
    )
}
"""Plugin points by the annotation of the configuration fields that hold their implementations."""


def find_named(name: str, what: str, known: Iterable[str], group: str) -> Any:
    """Return what an installed package has registered as `name`, or the object MODULE:NAME.

    Args:
        name: Name of an entry point, or MODULE:NAME.
        what: Name of the kind in messages.
        known: Names in this package, for the message.
        group: Group of entry points.

    Raises:
        UsageError: There is none of this name, or its module can't be imported.
    """
    if ":" in name:
        return _attribute(name, what)
    registered = installed(group)[group]
    if name not in registered:
        raise UsageError(
            f"There is no {what} {name!r}. {nearest(name, [*known, *registered])} Name your own as MODULE:NAME."
        )
    return _attribute(registered[name].value, what)


def installed(*groups: str) -> dict[str, dict[str, EntryPoint]]:
    """Return the entry points of installed packages in these groups, by group and name, without importing them."""
    registered = entry_points()
    return {group: {entry.name: entry for entry in registered.select(group=group)} for group in groups}


@contextmanager
def blaming(*parts: Any, doing: str, error: type[RunStopped] = PluginError) -> Generator[None]:
    """Turn exceptions from other packages' code, also its `sys.exit`, into an error that names it. Those of this
    package are not changed.

    Args:
        parts: The objects that are called in the context.
        doing: The purpose of the calls, as in "could not ...".
        error: Type of the raised error.
    """
    from agentgym_envs.core.feedback import ends_caller
    from agentgym_envs.util.importing import described

    foreign = [_name(part) for part in parts if not _name(part).startswith(_OURS)]
    try:
        yield
    except RunStopped:
        raise
    except (Exception, SystemExit) as raised:
        if not foreign or (isinstance(raised, SystemExit) and ends_caller(raised)):
            raise
        cause = None if isinstance(raised, StopIteration) else raised  # which `contextlib` would raise again
        raise error(f"{' or '.join(foreign)} could not {doing}: {described(raised)}.") from cause


def _name(part: Any) -> str:
    target = part if inspect.isfunction(part) else type(part)
    return f"{target.__module__}:{target.__qualname__}"


def _attribute(name: str, what: str) -> Any:
    """Import the object MODULE:NAME, where NAME may have dots. The module may be in the working folder."""
    from agentgym_envs.core.registration import look_here
    from agentgym_envs.util.importing import import_named

    look_here()
    path, _, attribute = name.partition(":")
    try:
        module = import_named(path, f"the {what} {name}")
    except ValueError as error:
        raise UsageError(str(error)) from error
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        if "<locals>" in attribute or path == "__main__":
            raise UsageError(
                f"{name} was defined within a function, a script or a notebook, from where it can't be imported: "
                "define it at the top of a module of its own."
            ) from error
        public = [known for known in vars(module) if not known.startswith("_")]
        raise UsageError(f"{path} has no {attribute!r}.{did_you_mean(attribute, public)}") from error


def _parameters(method: Any) -> list[str]:
    """Names of the parameters of a protocol's method, without self."""
    return list(inspect.signature(method).parameters)[1:]


def _accepts(method: Any, declared: Any) -> bool:
    """Whether a method can be called with the arguments of the protocol's method."""
    try:
        inspect.signature(method).bind(*_parameters(declared))
    except (TypeError, ValueError):
        return False
    return True
