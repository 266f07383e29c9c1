"""Facts about an environment, without playing it: what is missing, how many tasks it has, and its options."""

from __future__ import annotations

import inspect
import json
from contextlib import suppress

from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.error import DependencyNotInstalled

from agentgym_envs.core.registry import find_spec, make, text_env, world_class, world_options
from agentgym_envs.core.tasks import SPLITS
from agentgym_envs.util.listing import Setting, argument_docs
from agentgym_envs.util.package_files import package_text


def missing_dependency(world_id: str) -> str | None:
    """Return what an environment lacks, with the command that installs it; None if nothing is missing.

    Raises:
        ValueError: if there is no such environment.
    """
    try:
        env = make(world_id)
        try:
            text_env(env).check_dependencies()
        finally:
            env.close()
    except (DependencyNotInstalled, ImportError) as error:
        return str(error)
    return None


def task_counts(world_id: str) -> dict[str, int]:
    """Return the number of tasks per split under the default options, from `manifest.json` if there is one.

    Raises:
        ValueError: if there is no such environment.
        ImportError, gymnasium.error.DependencyNotInstalled: if a package that it needs is missing.
    """
    made = world_class(world_id)
    if made is not None:
        with suppress(ModuleNotFoundError):
            if (text := package_text(made.package, "manifest.json")) is not None:
                recorded = json.loads(text)
                return {split: recorded.get(split, {}).get("tasks", 0) for split in SPLITS}
    env = make(world_id)
    try:
        tasks = text_env(env).tasks
        return {split: len(tasks.split(split)) for split in SPLITS}
    finally:
        env.close()


def described_options(world_id: str) -> tuple[Setting, ...]:
    """Return the options of an environment with their defaults, described by its class's docstring.

    Raises:
        ValueError: if there is no such environment.
        ImportError, gymnasium.error.DependencyNotInstalled: if a package that it needs is missing.
    """
    spec = find_spec(world_id)
    defaults, about = _defaults(spec)
    return tuple(Setting(name, defaults.get(name, ...), about.get(name, "")) for name in world_options(spec))


def _defaults(spec: EnvSpec) -> tuple[dict[str, object], dict[str, str]]:
    """Return the defaults and descriptions of the parameters of the constructors of an environment's class."""
    creator = load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else spec.entry_point
    defaults, about = dict[str, object](), dict[str, str]()
    for maker in reversed(getattr(creator, "__mro__", (creator,))):
        about |= argument_docs(maker)
        function = maker.__dict__.get("__init__") if isinstance(maker, type) else maker
        if inspect.isfunction(function):
            parameters = inspect.signature(function).parameters.values()
            defaults |= {one.name: one.default for one in parameters if one.default is not one.empty}
    return defaults, about
